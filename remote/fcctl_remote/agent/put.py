"""Writes files into a workspace's tree: each replaces its predecessor in one step, none is written outside the tree."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Sequence

from fcctl_remote.base import files, tree
from fcctl_remote.base.refusal import Refusal
from fcctl_remote.wire import PutFile


def put(root: str, listed: Sequence[PutFile], blob: bytes) -> int:
    """Write the files of one call, whose contents are ``blob`` end to end. Hold the tree's lock meanwhile.

    Raises:
        Refusal: bad_request; nothing was written.
        OSError: the disk is full, say; the files before it are there.
    """
    pieces = _pieces(listed, blob)
    files.own_folder(root)
    for file, content in pieces:
        if file.link is None and (file.offset or not file.last):
            _put_part(root, file, content)
        else:
            replace(root, file.path, _maker(file, content))
    return len(pieces)


def _put_part(root: str, file: PutFile, content: bytes) -> None:
    """Add a part of a large file to what came before it; the last one puts the file in its place.

    Raises:
        Refusal: bad_request; another part is to come next.
    """
    folder, _ = _parents(root, file.path)
    name = hashlib.sha256(file.path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    temporary = os.path.join(folder, ".fcctl-part-" + name)
    if file.offset == 0:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        files.write_new(temporary, content, file.executable)
    else:
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            raise Refusal("bad_request", "%r does not begin with this part" % file.path[:200]) from None
        try:
            if os.fstat(fd).st_size != file.offset:
                raise Refusal("bad_request", "%r has another part next" % file.path[:200])
            files.write_all(fd, content)
        finally:
            os.close(fd)
    if file.last:
        os.utime(temporary, (file.mtime, file.mtime))
        replace(root, file.path, lambda new: os.rename(temporary, new))


def _pieces(listed: Sequence[PutFile], blob: bytes) -> list[tuple[PutFile, bytes]]:
    pieces, offset = [], 0
    for file in listed:
        fault = tree.path_fault(file.path)
        if fault is None and file.link is not None and (not file.link or "\0" in file.link or file.size):
            fault = "is no link"
        if fault is not None:
            raise Refusal("bad_request", "refused path %r: %s" % (file.path[:200], fault))
        if not 0 <= file.size <= len(blob) - offset:
            raise Refusal("bad_request", "%r has not the bytes it was announced with" % file.path[:200])
        pieces.append((file, blob[offset : offset + file.size]))
        offset += file.size
    if offset != len(blob):
        raise Refusal("bad_request", "%d bytes belong to no file" % (len(blob) - offset))
    return pieces


def _maker(file: PutFile, content: bytes) -> Callable[[str], None]:
    def make(temporary: str) -> None:
        if file.link is not None:
            os.symlink(file.link, temporary)
            return
        files.write_new(temporary, content, file.executable)
        os.utime(temporary, (file.mtime, file.mtime))

    return make


def replace(root: str, path: str, make: Callable[[str], None]) -> None:
    """Put what ``make`` creates, at the name it is given, in the place of ``path`` below ``root``.

    Raises:
        OSError: what was there before is there still.
    """
    folder, target = _parents(root, path)
    if os.path.isdir(target) and not os.path.islink(target):
        tree.remove_tree(target)
    temporary = os.path.join(folder, ".fcctl-put-%d" % os.getpid())
    try:
        make(temporary)
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _parents(root: str, path: str) -> tuple[str, str]:
    """Make the folders of ``path`` below ``root``, replacing any file or link that stands in their way.

    Returns the folder and the file's full path.
    """
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
