"""Files of a workspace's tree in, files of a run out. A file that arrives replaces its predecessor in one step; none is
written outside the tree."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Sequence

from fcctl_remote import wire
from fcctl_remote.base import files, tree
from fcctl_remote.base.layout import RunLayout
from fcctl_remote.wire import PutFile, Refusal


def put(root: str, listed: Sequence[PutFile], blob: bytes) -> int:
    """Write the files of one call, whose contents are ``blob`` end to end. Hold the tree's lock meanwhile.

    Each is written beside its place; its last part, most often the only one, puts it there. Raises Refusal:
    bad_request; nothing was written, or another part is to come next; OSError: the disk is full, say; the files before
    it are there, and what stood in its place still is."""
    pieces = _pieces(listed, blob)
    files.own_folder(root)
    for file, content in pieces:
        folder, target = _parents(root, file.path)
        name = hashlib.sha256(file.path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        temporary = os.path.join(folder, ".fcctl-part-" + name)
        try:
            _write(temporary, file, content)
            if file.last:
                if os.path.isdir(target) and not os.path.islink(target):
                    tree.remove_tree(target)
                os.rename(temporary, target)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    return len(pieces)


def _write(temporary: str, file: PutFile, content: bytes) -> None:
    """Make the file, or add a part to what came before it."""
    if file.offset == 0:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if file.link is not None:
            os.symlink(file.link, temporary)
            return
        tree.write_new(temporary, content, file.executable)
    else:
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            raise Refusal("bad_request", "%r: the first part of the file is missing" % file.path[:200]) from None
        with files.closing(fd):
            if os.fstat(fd).st_size != file.offset:
                raise Refusal("bad_request", "%r: this is not the next part of the file" % file.path[:200])
            files.write_all(fd, content)
    os.utime(temporary, (file.mtime, file.mtime))


def _pieces(listed: Sequence[PutFile], blob: bytes) -> list[tuple[PutFile, bytes]]:
    pieces, offset = [], 0
    for file in listed:
        fault = tree.path_fault(file.path)
        if fault is None and file.link is not None and (not file.link or "\0" in file.link or file.size):
            fault = "is not a valid link"
        if fault is not None:
            raise Refusal("bad_request", "refused path %r: %s" % (file.path[:200], fault))
        if not 0 <= file.size <= len(blob) - offset:
            raise Refusal("bad_request", "%r: the number of bytes differs from the announced size" % file.path[:200])
        pieces.append((file, blob[offset : offset + file.size]))
        offset += file.size
    if offset != len(blob):
        raise Refusal("bad_request", "%d bytes belong to no file" % (len(blob) - offset))
    return pieces


def _parents(root: str, path: str) -> tuple[str, str]:
    """Make the folders of ``path`` below ``root``, replacing any file or link that stands in their way; the last folder
    and the file's full path."""
    folder = root
    for part in path.split("/")[:-1]:
        folder = os.path.join(folder, part)
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                os.unlink(folder)
                os.mkdir(folder)
        except FileNotFoundError:
            os.mkdir(folder)
    return folder, os.path.join(root, path)


#: Not plan.json: the controller keeps the one it wrote.
TOP_FILES = ("events.jsonl", "telemetry.jsonl", "outcome.json", "supervisor.log")
TOP_FOLDERS = ("steps", "artifacts")
MAX_FILE_BYTES = 2 * 1024**3
MAX_FILES = 50_000
#: Of all files together; the store takes half of it. To hash them is one call, which must end.
MAX_BYTES = 40 * 1024**3
#: The list has to fit a frame, bytes: all of its names, and what stands beside each.
LIST_BYTES, ENTRY_BYTES = wire.MAX_FRAME_BYTES - 1024 * 1024, 120
MAX_PATH_BYTES = 900  # leaves room for the folder it will be put into, on systems whose limit is 1024


#: What is none of the run's results, by the kind of file.
_KINDS = {stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}


class Listing:
    """Walks a run's folder; follows no link, opens nothing but regular files."""

    def __init__(self, run: RunLayout) -> None:
        self._run = run
        self._limit = int(os.environ.get("FCCTL_MAX_FILE_BYTES") or MAX_FILE_BYTES)
        self.listing = wire.FileList([])
        self._room = LIST_BYTES
        self._bytes = MAX_BYTES
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
            reason = self._list(path)
        except OSError as error:  # of a folder that became a link meanwhile, say
            reason = "symlink" if error.errno in (errno.ELOOP, errno.ENOTDIR) else "unreadable"
        if reason is not None:
            self._omit(path, reason)

    def _list(self, path: str) -> str | None:
        """List a file with the hash of as many bytes as it has now: an append-only file may grow, and still match its
        entry; or what is in a folder. Returns why it is not listed. Raises OSError: it cannot be read."""
        if has_bad_name(path):
            return "bad_name"
        full = os.path.join(self._run.folder, path)
        facts = os.lstat(full)
        if stat.S_ISDIR(facts.st_mode):
            for name in sorted(os.listdir(full)):
                self._visit(path + "/" + name)
            return None
        if not stat.S_ISREG(facts.st_mode):
            return _KINDS.get(stat.S_IFMT(facts.st_mode), "device")
        if facts.st_size > min(self._limit, self._bytes) or len(self.listing.files) >= MAX_FILES:
            return "too_large"
        if not (path == "supervisor.log" and facts.st_size == 0) and self._has_room(path):
            with files.closing(files.open_beneath(self._run.folder, path)) as fd:
                digest, size = tree.hash_open(fd)
            self._bytes -= size
            self.listing.files.append(wire.FileEntry(path, size, digest))
        return None

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

    A part that would not fit is served short, or with size 0; so is one that reaches past the file's end. Raises
    Refusal: not_found, when a file is not there or is none of the run's results."""
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
    with files.closing(fd):
        return os.pread(fd, min(part.size, room), part.offset)
