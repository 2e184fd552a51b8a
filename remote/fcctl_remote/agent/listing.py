"""What a run left behind: names, sizes, hashes, and the bytes themselves."""

from __future__ import annotations

import errno
import hashlib
import os
import stat

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import RunLayout
from fcctl_remote.base.refusal import Refusal

#: Not plan.json: the controller keeps the one it wrote.
TOP_FILES = ("events.jsonl", "telemetry.jsonl", "outcome.json", "supervisor.log")
TOP_FOLDERS = ("steps", "artifacts")
MAX_FILE_BYTES = 2 * 1024**3
MAX_FILES = 50_000
#: The list has to fit a frame, bytes: all of its names, and what stands beside each.
LIST_BYTES, ENTRY_BYTES = wire.MAX_FRAME_BYTES - 1024 * 1024, 120
MAX_PATH_BYTES = 900  # leaves room for the folder it will be put into, on systems whose limit is 1024


class _OmittedError(Exception):
    """The text says why a file is not listed."""


class Listing:
    """Walks a run's folder; follows no link, opens nothing but regular files."""

    def __init__(self, run: RunLayout) -> None:
        self._run = run
        self._limit = int(os.environ.get("FCCTL_MAX_FILE_BYTES") or MAX_FILE_BYTES)
        self.listing = wire.FileList([])
        self._room = LIST_BYTES
        self._more = 0  # files that are not listed

    def make(self) -> wire.FileList:
        for name in (*TOP_FILES, *TOP_FOLDERS):
            if os.path.lexists(os.path.join(self._run.folder, name)):
                self._visit(name)
        if self._more:
            self.listing.omitted.append(wire.Omitted("%d more files" % self._more, "too_large"))
        return self.listing

    def _has_room(self, path: str) -> bool:
        self._room -= len(files.to_json(path)) + ENTRY_BYTES
        self._more += self._room < 0
        return self._room >= 0

    def _visit(self, path: str) -> None:
        try:
            self._list(path)
        except _OmittedError as omitted:
            self._omit(path, str(omitted))
        except OSError:
            self._omit(path, "unreadable")

    def _list(self, path: str) -> None:
        """Raises: _OmittedError with the reason; OSError: it cannot be read."""
        if has_bad_name(path):
            raise _OmittedError("bad_name")
        full = os.path.join(self._run.folder, path)
        facts = os.lstat(full)
        if stat.S_ISDIR(facts.st_mode):
            for name in sorted(os.listdir(full)):
                self._visit(path + "/" + name)
            return
        for test, kind in ((stat.S_ISLNK, "symlink"), (stat.S_ISFIFO, "fifo"), (stat.S_ISSOCK, "socket")):
            if test(facts.st_mode):
                raise _OmittedError(kind)
        if not stat.S_ISREG(facts.st_mode):
            raise _OmittedError("device")
        if facts.st_size > self._limit or len(self.listing.files) >= MAX_FILES:
            raise _OmittedError("too_large")
        if not (path == "supervisor.log" and facts.st_size == 0) and self._has_room(path):
            self.listing.files.append(self._hash(path))

    def _hash(self, path: str) -> wire.FileEntry:
        """Hash as many bytes as there are now: an append-only file may grow, and still match its entry."""
        try:
            fd = files.open_beneath(self._run.folder, path)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise _OmittedError("symlink") from None
            raise
        digest = hashlib.sha256()
        try:
            size = remaining = os.fstat(fd).st_size
            while remaining > 0 and (block := os.read(fd, min(remaining, 262144))):
                digest.update(block)
                remaining -= len(block)
        finally:
            os.close(fd)
        return wire.FileEntry(path, size - remaining, digest.hexdigest())

    def _omit(self, path: str, reason: str) -> None:
        shown = path.encode("utf-8", "backslashreplace").decode("utf-8")
        if not shown.isprintable():
            shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)
        if self._has_room(shown[:MAX_PATH_BYTES]):
            self.listing.omitted.append(wire.Omitted(shown[:MAX_PATH_BYTES], reason))


def has_bad_name(path: str) -> bool:
    """Whether the path could do harm, or not exist, on another machine."""
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return len(encoded) > MAX_PATH_BYTES or "\\" in path or not path.isprintable()


def fetch(run: RunLayout, parts: list[wire.FilePart]) -> tuple[list[wire.FilePart], bytes]:
    """The parts' bytes end to end, at most MAX_BLOB_BYTES of them; what was served, in the same order.

    A part that would not fit is served short, or with size 0; so is one that reaches past the file's end.

    Raises:
        Refusal: not_found, when a file is not there or is none of the run's results.
    """
    served = []
    pieces = []
    room = wire.MAX_BLOB_BYTES
    for part in parts:
        data = _part(run, part, room)
        room -= len(data)
        pieces.append(data)
        served.append(wire.FilePart(part.path, part.offset, len(data)))
    return served, b"".join(pieces)


def _part(run: RunLayout, part: wire.FilePart, room: int) -> bytes:
    top = part.path.split("/", 1)[0]
    if part.path not in TOP_FILES and top not in TOP_FOLDERS:
        raise Refusal("not_found", "%r is not one of the run's results" % part.path[:200])
    if part.offset < 0 or part.size < 0:
        raise Refusal("bad_request", "offset and size of %r must not be negative" % part.path[:200])
    try:
        fd = files.open_beneath(run.folder, part.path)
    except OSError as error:
        raise Refusal("not_found", "%r cannot be read: %s" % (part.path[:200], error.strerror)) from None
    try:
        return os.pread(fd, min(part.size, room), part.offset)
    finally:
        os.close(fd)
