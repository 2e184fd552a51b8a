"""Libraries that steps run on, as zip files by content, each unpacked once; and the removal of old ones, of old host
programs and source trees, by age and by size, and of what is left of runs that were not submitted or half deleted.

``<sha256>.zip`` appears when it is complete and has that hash. It is unpacked beside itself; each use compares the
files with the hashes in the archive, and unpacks a damaged or incomplete folder again.

What a process uses is locked, and stays: a program by each process that runs from it, a bundle by its step, a tree by
the call that works on it. Whatever is deleted here is sent again when it is needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
import zipfile
from collections.abc import Iterator

from fcctl_remote import wire
from fcctl_remote.base import files, hostfacts, tree
from fcctl_remote.base.layout import FORGOTTEN, RUN_ID, Layout, RunLayout
from fcctl_remote.record import Any
from fcctl_remote.wire import Refusal

#: Names every other file of the archive with its sha256, and what the libraries need: ``python``, ``modules``.
CONTENTS = "fcctl-bundle.json"
MAX_BYTES = 256 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Bundles:
    """The bundles below one root folder."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.bundles
        self._lock = os.path.join(layout.locks, "bundles.lock")

    def here(self, sha256: str) -> bool:
        return os.path.isfile(self._archive(sha256))

    def take(self, sha256: str, size: int, offset: int, data: bytes) -> wire.BundleState:
        """Append ``data`` at ``offset`` to the bundle; with the last piece the hash is checked.

        A piece that does not begin where the last one ended changes nothing; the answer says where to continue. Raises
        Refusal: ``bundle_mismatch``, if all of it is here and is not what was announced: it is thrown away; OSError: no
        room."""
        archive, partial = self._archive(sha256), self._archive(sha256) + ".partial"
        files.make_folders(self._folder)
        with files.locked(self._lock):
            if os.path.isfile(archive):
                return wire.BundleState(True, size)
            received = files.size_of(partial)
            if data and offset == received and received + len(data) <= min(size, MAX_BYTES):
                received += _append(partial, data)
            if not 0 < size <= received:
                return wire.BundleState(False, received)
            if _hash(partial) != sha256:
                os.unlink(partial)
                raise Refusal(
                    "bundle_mismatch", "the libraries were damaged during the transfer", "run the command again"
                )
            os.rename(partial, archive)
            files.sync_folder(self._folder)
        return wire.BundleState(True, size)

    @contextlib.contextmanager
    def in_use(self, sha256: str) -> Iterator[str]:
        """The folder with the unpacked libraries, complete and unaltered; nobody removes it meanwhile. Raises Refusal:
        ``not_found``, if the bundle is not here; ``bad_request``, if it cannot be unpacked; OSError: no room to unpack
        it."""
        archive = self._archive(sha256)
        folder = archive[: -len(".zip")] + ".d"
        files.make_folders(self._folder)
        fd = files.open_own(archive + ".lock", os.O_RDWR, 0o600)
        try:
            with files.locked(self._lock):
                if not os.path.isfile(archive):
                    raise Refusal(
                        "not_found", "the machine does not have the libraries of this step", "start the job again"
                    )
                fcntl.flock(fd, fcntl.LOCK_SH)
                os.utime(archive)
                if not _intact(folder):
                    _unpack(archive, folder)
            yield folder
        finally:
            os.close(fd)

    def _archive(self, sha256: str) -> str:
        """Raises: Refusal: bad_request."""
        if not _SHA256.fullmatch(sha256):
            raise Refusal("bad_request", "%r is not a sha256" % sha256[:80])
        return os.path.join(self._folder, sha256 + ".zip")


def contents(folder: str) -> dict[str, Any]:
    """What an unpacked bundle says of itself."""
    return files.read_object(os.path.join(folder, CONTENTS)) or {}


def _append(path: str, data: bytes) -> int:
    with files.closing(files.open_own(path, os.O_WRONLY | os.O_APPEND, 0o600)) as fd:
        files.write_all(fd, data)
        files.flush(fd)
    return len(data)


def _hash(path: str) -> str:
    """Raises: OSError: also of a file that is larger than a bundle may be."""
    if files.size_of(path) > MAX_BYTES:
        raise OSError(errno.EFBIG, "larger than a bundle may be", path)
    return tree.hash_file(path)


def _intact(folder: str) -> bool:
    """Whether every file of the bundle lies in ``folder`` as it was. More may lie there: what Python compiled."""
    listed = contents(folder).get("files")
    if not isinstance(listed, dict):
        return False
    try:
        return all(_hash(os.path.join(folder, name)) == digest for name, digest in listed.items())
    except OSError:
        return False


def _unpack(archive: str, folder: str) -> None:
    """Raises: Refusal, if the archive names a place outside ``folder`` or lacks its own list of contents."""
    partial = folder + ".partial"
    tree.remove_tree(partial)
    with zipfile.ZipFile(archive) as bundle:
        faults = [name for name in bundle.namelist() if tree.path_fault(name)]
        if faults or sum(info.file_size for info in bundle.infolist()) > MAX_BYTES:
            raise Refusal("bad_request", "the libraries contain a file that is not allowed: %r" % faults[:1])
        bundle.extractall(partial)
    if not _intact(partial):
        tree.remove_tree(partial)
        raise Refusal("bad_request", "the libraries differ from their list of contents")
    tree.remove_tree(folder)
    os.rename(partial, folder)


DAY_S = 86400.0
#: Programs and bundles that stay, the last used first, however old they are.
KEPT = 3
#: How long any other one stays, seconds.
PROGRAM_S, BUNDLE_S = 14 * DAY_S, DAY_S
#: How long a tree stays that nobody uses, seconds, and the most that all trees together may take, bytes.
TREE_S, TREES_BYTES = 30 * DAY_S, 10 * 1024**3
#: A tree that was used so lately stays in any case, seconds: its run may be about to begin.
LATELY_S = DAY_S
#: With less free there than this, only the trees that were used lately stay, bytes.
LOW_BYTES = 2 * 1024**3
#: How often it is looked, seconds, unless the disk is nearly full.
EVERY_S = DAY_S
_ARCHIVE = re.compile(r"([0-9a-f]{64})\.(?:pyz|zip|d)")


def mark(layout: Layout) -> str:
    """The file whose time says when it was looked last."""
    return os.path.join(layout.locks, "tidied")


def tidy(layout: Layout) -> None:
    """Delete what is old. A courtesy: what cannot be deleted stays."""
    now, is_low = time.time(), hostfacts.free_bytes(layout.root) < LOW_BYTES
    if not is_low and 0 <= now - _used(mark(layout)) < EVERY_S:
        return
    with contextlib.suppress(OSError):
        os.close(files.open_own(mark(layout), os.O_WRONLY, 0o600))
        os.utime(mark(layout))
        _old_archives(layout.runner, ".pyz", os.path.join(layout.locks, "runner-%s.lock"), now - PROGRAM_S)
        _old_archives(layout.bundles, ".zip", os.path.join(layout.bundles, "%s.zip.lock"), now - BUNDLE_S)
        _left_of_runs(layout, now - DAY_S)
        _old_trees(layout, now - (LATELY_S if is_low else TREE_S), now - LATELY_S)


def _old_archives(folder: str, suffix: str, lock: str, before: float) -> None:
    """Archives by content, each unpacked beside itself: all but the last :data:`KEPT` that were used last ``before``,
    and what an interrupted transfer left."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    digests = {match.group(1) for match in map(_ARCHIVE.fullmatch, names) if match}
    by_use = sorted(((_used(os.path.join(folder, digest + suffix)), digest) for digest in digests), reverse=True)
    for used, digest in by_use[KEPT:]:
        if used < before:
            with contextlib.suppress(OSError):
                _delete_archive(os.path.join(folder, digest), suffix, lock % digest)
    for name in names:
        path = os.path.join(folder, name)
        if not _ARCHIVE.fullmatch(name) and not name.endswith(".lock") and _used(path) < time.time() - DAY_S:
            with contextlib.suppress(OSError):
                tree.remove_tree(path)


def _delete_archive(stem: str, suffix: str, lock: str) -> None:
    with files.locked_now(lock) as is_unused:
        if is_unused:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(stem + suffix)
            tree.remove_tree(stem + ".d")
            os.unlink(lock)


def _left_of_runs(layout: Layout, before: float) -> None:
    """Deletes what an interrupted deletion of a run left, and the sources of runs that were never submitted, if
    they were last used ``before``, a Unix time."""
    for name in os.listdir(layout.runs):
        run = RunLayout(os.path.join(layout.runs, name), name)
        is_run = any(map(os.path.lexists, (run.plan, run.events, run.heartbeat, run.outcome)))
        if (name.startswith(FORGOTTEN) or (RUN_ID.fullmatch(name) and not is_run)) and _used(run.folder) < before:
            with contextlib.suppress(OSError):
                tree.remove_tree(run.folder)


def _old_trees(layout: Layout, before: float, lately: float) -> None:
    """Those that were used last ``before``; and of the others, but for those used ``lately``, what is too much."""
    stay = []
    for name in os.listdir(layout.trees):
        if name == os.path.basename(layout.indexes):
            continue
        with contextlib.suppress(ValueError):  # no name of ours
            used = _tree_used(layout, name)
            if used < before:
                _delete_tree(layout, name, before)
            else:
                stay.append((used, name))
    _fit(layout, sorted(stay, reverse=True), lately)


def _fit(layout: Layout, by_use: list[tuple[float, str]], lately: float) -> None:
    total = 0
    for used, name in by_use:
        total += _size(layout.tree(name))
        if total > TREES_BYTES and used < lately:
            _delete_tree(layout, name, lately)


def _delete_tree(layout: Layout, name: str, before: float) -> None:
    """Unless somebody works on it, or came back to it meanwhile."""
    with contextlib.suppress(OSError), files.locked_now(layout.tree_lock(name)) as is_unused:
        if is_unused and _tree_used(layout, name) < before:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(layout.index(name))
            tree.remove_tree(layout.tree(name))


def _tree_used(layout: Layout, name: str) -> float:
    """When it was compared, or changed, last."""
    return max(map(_used, (layout.tree_lock(name), layout.index(name), layout.tree(name))))


def _size(folder: str) -> int:
    total = 0
    for _top, children in files.walk(folder):
        for child in children:
            with contextlib.suppress(OSError):
                total += child.stat(follow_symlinks=False).st_size
    return total


def _used(path: str) -> float:
    """When the file was touched last, epoch seconds; 0 if it is absent."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
