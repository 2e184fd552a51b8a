"""Writes a run's files as they arrive, within limits: collected from a host, or out of an archive."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcctl_remote import wire
from fcctl_remote.base.files import sync_folder, write_all
from orchestrator.base import json_text, safe_paths
from orchestrator.base.errors import ConflictError, FcctlError, HostFault
from orchestrator.base.files import disk_errors, make_folders, sync_tree
from orchestrator.base.safe_paths import RESERVED, opened
from orchestrator.results.records import RunRecord
from orchestrator.results.store.rows import DamagedRecord, read_record

#: What a JSON file may take in memory.
MAX_JSON_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """The limits on a collected run."""

    bytes: int = 20 * 1024**3
    files: int = 100_000


class FolderIntake:
    """Files of mode 0o644 (never executable) below ``root``, which is created.

    Every path is as the host calls the file. A name that a program of this computer would act on is stored under
    another one (:func:`orchestrator.base.safe_paths.harmless`). Names are taken first come, first served: one that a
    case-insensitive file system would take for an earlier one is refused, on every system alike.
    """

    def __init__(self, root: Path, limits: Limits | None = None) -> None:
        self.root = root
        self.limits = limits or Limits()
        self._files: dict[str, str] = {}  # folded name -> as first spelled, as stored
        self._sent: dict[str, str] = {}  # as stored -> as this host calls it
        self._folders: dict[str, str] = {}
        self._left: dict[str, int] = {}  # path -> bytes of an earlier collection
        self._room: dict[str, int] = {}  # path -> bytes that are set aside for it
        self._taken = 0  # the sum of them
        self.written = 0  # bytes that arrived
        with disk_errors("make the folder for the results", root.parent):
            make_folders(root)
            self._scan()

    def accepts(self, path: str, size: int = 0) -> str | None:
        """None, which also reserves the name and the room, or why not: bad_name, reserved, collides, too_many_files,
        too_large.

        ``size`` is what the host announced, in bytes. What is here of a file that is too large goes.
        """
        place, reason = _place(path)
        if reason:
            return reason
        key = safe_paths.folded(place)
        if self._files.get(key) != place:
            if key in self._files or self._clashes(place, key):
                return "collides"
            if len(self._files) >= self.limits.files:
                return "too_many_files"
        if self._sent.setdefault(place, path) != path:
            return "collides"
        if not self._reserve(place, max(size, self._left.get(place, 0))):
            self.discard(path)
            return "too_large"
        self._take(place, key)
        return None

    def renamed(self) -> list[tuple[str, str]]:
        """What is stored under another name than it was sent as, as (sent, stored): of a folder, not of each file in
        it."""
        return sorted({pair for place in self._files.values() if (pair := safe_paths.renamed(place))})

    def size(self, path: str) -> int:
        """Bytes already here; 0 when the file is absent or its name is not acceptable."""
        place, reason = _place(path)
        if not reason:
            with self._reading(), safe_paths.opened(self.root, place, os.O_RDONLY) as fd:
                return os.fstat(fd).st_size
        return 0

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Put ``data`` at ``offset`` bytes, which is at most the present size: the host cannot make holes. Raises
        HostFault: an unacceptable name (``bad_name``), a gap (``bad_reply``), or over the limit (``too_large``);
        FcctlError: the disk is full, or something that is no plain file stands in the way."""
        reason = self.accepts(path)
        if reason:
            raise HostFault(f"the host sent a file that cannot be stored: {path!r:.200}", fault=reason, cause=reason)
        place = safe_paths.harmless(path)
        again = "collect the run again: fcctl pull-results"
        with (
            disk_errors("store the results", self.root, again=again),
            safe_paths.opened(self.root, place, os.O_WRONLY, create=True) as fd,
        ):
            size = os.fstat(fd).st_size
            if not 0 <= offset <= size:
                raise HostFault(
                    f"the host sent bytes of {path!r} out of order",
                    fault="bad_reply",
                    cause=f"{size} bytes have arrived, but the next part is for offset {offset}",
                )
            self._refuse_over_limit(place, offset + len(data))
            os.lseek(fd, offset, os.SEEK_SET)
            try:
                write_all(fd, data)
            except OSError:
                os.ftruncate(fd, size)  # what little room there is, is for the journal
                raise
            self.written += len(data)

    def verified(self, entry: wire.FileEntry) -> bool:
        """Whether the file here has the size and sha256 the host announced."""
        place, reason = _place(entry.path)
        if reason:
            return False
        with self._reading(), safe_paths.opened(self.root, place, os.O_RDONLY) as fd:
            if os.fstat(fd).st_size != entry.size:
                return False
            with os.fdopen(os.dup(fd), "rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest() == entry.sha256.lower()
        return False

    def discard(self, path: str) -> None:
        """Delete the file, if it is here; its name stays taken."""
        place, reason = _place(path)
        if reason:
            return
        *folders, name = place.split("/")
        with self._reading("discard a file"), safe_paths.folder(self.root, folders) as parent:
            os.unlink(name, dir_fd=parent)
        self._left.pop(place, None)
        self._taken -= self._room.pop(place, 0)

    def flush(self) -> None:
        """Sync all collected files and their folders to the disk; they survive a power cut from then on."""
        with disk_errors("store the results", self.root, again="collect the run again: fcctl pull-results"):
            sync_tree(self.root)

    def read_json(self, path: str, most: int = MAX_JSON_BYTES) -> Any:
        """A collected JSON file, None if absent. Raises ValueError: it is not JSON, nests too deeply, or takes more
        than ``most`` bytes of memory."""
        place, reason = _place(path)
        if not reason:
            with (
                self._reading(),
                safe_paths.opened(self.root, place, os.O_RDONLY) as fd,
                os.fdopen(os.dup(fd), "rb") as stream,
            ):
                try:
                    return json_text.loads(stream.read(most + 1), most)
                except ValueError as error:
                    raise ValueError(f"{path}: {error}") from None
        return None

    @contextmanager
    def _reading(self, action: str = "read the results") -> Iterator[None]:
        """Around the use of a file that may be absent, which is no error here."""
        with disk_errors(action, self.root), suppress(FileNotFoundError):
            yield

    def _reserve(self, path: str, size: int) -> bool:
        """Whether ``size`` bytes of a file fit in beside all others; then they are set aside."""
        before = self._room.get(path, 0)
        if size <= before:
            return True
        if self._taken - before + size > self.limits.bytes:
            return False
        self._room[path] = size
        self._taken += size - before
        return True

    def _refuse_over_limit(self, path: str, size: int) -> None:
        if not self._reserve(path, size):
            raise HostFault(
                f"the host sent more than {self.limits.bytes} bytes of results",
                fault="too_large",
                cause=f"{path!r} exceeds the limit; the files stored before it are kept",
                hint="make the job write fewer files below its folder, or delete files at its end",
            )

    def _clashes(self, path: str, key: str) -> bool:
        """Whether the new file, stored as ``path``, meets a folder of its name, or needs as folder a file or another
        spelling."""
        if key in self._folders:
            return True
        return any(
            name in self._files or self._folders.get(name, spelled) != spelled
            for name, spelled in _parents(path)
        )  # fmt: skip

    def _take(self, path: str, key: str) -> None:
        self._files[key] = path
        self._folders.update(_parents(path))

    def _scan(self) -> None:
        """Learn what an earlier, interrupted collection left here."""
        for top, _folders, names, folder_fd in os.fwalk(self.root, follow_symlinks=False):
            for name in names:
                path = (Path(top) / name).relative_to(self.root).as_posix()
                if safe_paths.fault(path) is None:
                    self._left[path] = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_size
                    self._take(path, safe_paths.folded(path))


def _place(path: str) -> tuple[str, str | None]:
    """Where the file ``path`` of a host is stored, and why it is not."""
    if reason := safe_paths.fault(path):
        return path, reason
    place = safe_paths.harmless(path)
    return place, None if place == path else safe_paths.fault(place)


def _parents(path: str) -> list[tuple[str, str]]:
    """(folded, as spelled) of each folder above ``path``."""
    found = []
    end = path.find("/")
    while end >= 0:
        found.append((safe_paths.folded(path[:end]), path[:end]))
        end = path.find("/", end + 1)
    return found


#: Folders of runs that are not whole yet; whatever is called so is nobody's if its maker has gone.
PREFIX = ".import-"


class IncomingRun:
    """It is none of the store's until :meth:`finish`."""

    def __init__(self, root: Path, run_id: str, index: Callable[[RunRecord], None]) -> None:
        self.run_id = run_id
        self._final = root / "runs" / run_id
        self._folder = root / "runs" / f"{PREFIX}{run_id}-{secrets.token_hex(4)}"
        self._index = index
        self._intake = FolderIntake(self._folder)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Put ``data`` at ``offset``, which is the present size. Raises HostFault: an unacceptable name, or over the
        limits; FcctlError: the disk is full."""
        if path not in RESERVED:
            self._intake.write(path, offset, data)
            return
        # What a host may not send, a store may: its own files are part of an archive.
        with disk_errors("store the run", self._folder), opened(self._folder, path, os.O_WRONLY, create=True) as fd:
            if os.fstat(fd).st_size != offset:
                raise ValueError(f"{path}: out of order")
            os.lseek(fd, offset, os.SEEK_SET)
            write_all(fd, data)

    def check(self) -> None:
        """Whether :meth:`finish` can be called: for all runs of an archive, before it is for any. Raises FcctlError:
        this is no complete run; ConflictError: something has its name by now."""
        if self._final.exists():
            raise ConflictError(f"run {self.run_id} already exists", hint=f"see its files: ls {self._final}")
        try:
            read_record(self._folder, self.run_id)
        except DamagedRecord as exc:
            raise FcctlError(
                f"run {self.run_id} of the archive is not valid",
                cause=str(exc),
                hint="export it again on the computer that collected it: fcctl results export",
            ) from exc

    def finish(self) -> Path:
        """Make it a run of the store, flushed and indexed. After :meth:`check`."""
        with disk_errors("store the run", self._folder):
            sync_tree(self._folder)
            os.rename(self._folder, self._final)  # noqa: PTH104
            sync_folder(self._final.parent)
            self._index(read_record(self._final, self.run_id))
        return self._final

    def discard(self) -> None:
        """Remove what was written, if it has not become a run."""
        shutil.rmtree(self._folder, ignore_errors=True)
