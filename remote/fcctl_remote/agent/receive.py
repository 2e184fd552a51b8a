"""``receive WORKSPACE``: unpack a tar stream into a workspace's tree, for hosts without rsync."""

from __future__ import annotations

import os
import sys
import tarfile
from typing import BinaryIO

from fcctl_remote.agent import put
from fcctl_remote.base import files, tree
from fcctl_remote.base.layout import Layout


class BadArchive(ValueError):
    """The stream is no tar archive, or names a path that must not be written."""


def unpack(stream: BinaryIO, root: str) -> int:
    """Extract regular files and symbolic links below ``root``; each file replaces its predecessor in one step.

    Raises:
        BadArchive: nothing of the offending member was written.
    """
    os.makedirs(root, exist_ok=True)
    count = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for member in archive:
                if not member.isdir():
                    _extract(archive, member, root)
                    count += 1
    except tarfile.TarError as error:
        raise BadArchive("not a tar stream: %s" % error) from None
    return count


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    path = member.name[2:] if member.name.startswith("./") else member.name
    fault = tree.path_fault(path)
    if fault is not None:
        raise BadArchive("refused path %r: %s" % (path[:200], fault))
    if not (member.isreg() or member.issym()):
        raise BadArchive("refused %r: neither a file nor a symbolic link" % path[:200])
    if member.issym():
        put.replace(root, path, lambda temporary: os.symlink(member.linkname, temporary))
    else:
        put.replace(root, path, lambda temporary: _write(archive, member, temporary))


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, temporary: str) -> None:
    content = archive.extractfile(member)
    if content is None:
        raise BadArchive("%r has no content" % member.name)
    mode = 0o755 if member.mode & 0o100 else 0o644
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        while True:
            block = content.read(262144)
            if not block:
                break
            files.write_all(fd, block)
    finally:
        os.close(fd)
    os.utime(temporary, (member.mtime, member.mtime))


def main(layout: Layout, workspace: str) -> int:
    """0, or 1 with the reason on stderr; stdout says how many files came.

    The tree's lock is not held: a sender whose link went silent would keep it. Each file is replaced in one step, and
    a snapshot checks every file.
    """
    root = layout.tree(workspace)
    try:
        count = unpack(sys.stdin.buffer, root)
    except (BadArchive, OSError) as error:
        print("fcctl-host receive: %s" % error, file=sys.stderr)
        return 1
    print("received %d files" % count)
    return 0
