"""``__main__.py`` of the archive. It runs from a copy unpacked beside it, with its modules compiled, to start faster.

Each start compares the copy with the sums that were taken when it was made; what differs is put back from the archive,
file by file, so that a process that runs from it finds each file whole at any time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import sys

#: Exit status of a program whose archive is damaged: it is to be sent again.
DAMAGED = 92
#: More than any file of it, and than the archive, has, bytes.
MAX_BYTES = 16 * 1024 * 1024
#: In the copy: the sha256 of each of its files. A Python of another version has compiled modules, and sums, of its own.
SUMS = "sums-%s.json" % sys.implementation.cache_tag


def _digest(path: str) -> str:
    """The sha256 of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(_content(path)).hexdigest()
    except OSError:
        return ""


def _content(path: str) -> bytes:
    """All of a regular file of ours: a step may have put a FIFO, a link or an endless file in its place. Raises
    OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_BYTES:
            raise OSError("%s is not a file of the host program" % path)
        return os.read(fd, facts.st_size)
    finally:
        os.close(fd)


def damaged(folder: str) -> list[str] | None:
    """The files of the copy that are not as they were; None if this Python has not made, or completed, one yet."""
    try:
        sums = json.loads(_content(os.path.join(folder, SUMS)))["files"]
        return sorted(name for name, digest in sums.items() if _digest(os.path.join(folder, name)) != digest)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [SUMS]


def unpack(archive: str, folder: str) -> None:
    """Extract to ``folder`` in one step; whoever comes second finds it there. Raises OSError: no room, or not writable;
    nothing is left behind."""
    import shutil

    partial = "%s.partial-%d" % (folder, os.getpid())
    try:
        put_right(archive, partial)  # what a power cut makes of it, the next start puts right
        os.rename(partial, folder)
    finally:
        if os.path.isdir(partial):
            shutil.rmtree(partial, ignore_errors=True)


def put_right(archive: str, folder: str) -> None:
    """Make every file of ``folder`` what the archive has, compile the modules, and take the sums. Raises OSError: no
    room, or not writable."""
    import importlib.util
    import py_compile
    import zipfile

    sums: dict[str, str] = {}
    with zipfile.ZipFile(archive) as bundle:
        for name in bundle.namelist():
            path, content = os.path.join(folder, name), bundle.read(name)
            digest = hashlib.sha256(content).hexdigest()
            if _digest(path) != digest:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                _replace(path, content)
            sums[name] = digest
            # Not checked against its source when it is imported: it was against its sum.
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            code = importlib.util.cache_from_source(path)
            py_compile.compile(path, cfile=code, dfile=name, doraise=True, invalidation_mode=mode)
            sums[os.path.relpath(code, folder)] = _digest(code)
    _replace(os.path.join(folder, SUMS), json.dumps({"files": sums}).encode("ascii"))


def _replace(path: str, content: bytes) -> None:
    temporary = "%s.tmp-%s" % (path, os.urandom(8).hex())
    with open(temporary, "wb") as stream:
        stream.write(content)
    os.replace(temporary, path)


def _prepare(archive: str, folder: str) -> list[str]:
    """Have an intact copy in ``folder``; the files of it that were damaged. Raises OSError: there is none, and none can
    be written."""
    wrong = damaged(folder)
    if wrong == []:
        return []
    if _digest(archive) != os.path.basename(archive)[: -len(".pyz")]:
        print("the host program's archive is damaged: %s" % archive, file=sys.stderr)
        sys.exit(DAMAGED)
    if os.path.isdir(folder):
        put_right(archive, folder)
    else:
        try:
            unpack(archive, folder)
        except OSError:
            if damaged(folder) != []:  # nobody else was faster
                raise
    return wrong or []


def _in_use(archive: str) -> None:
    """Until this process ends, the program is not deleted as an old one (:mod:`fcctl_remote.base.bundles`)."""
    name = os.path.basename(archive)[: -len(".pyz")]
    locks = os.path.join(os.path.dirname(os.path.dirname(archive)), "locks")
    try:
        os.makedirs(locks, exist_ok=True)
        path = os.path.join(locks, "runner-%s.lock" % name)
        os.utime(archive)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pass  # a folder that is not ours to write: nothing is deleted there either


def start(place: str) -> int:
    """Run the command line; ``place`` is the archive, or the folder that it was unpacked to."""
    stem = place[: -len(".d")] if place.endswith(".d") else place[: -len(".pyz")]
    archive, folder = stem + ".pyz", stem + ".d"
    mended: list[str] = []
    home = place
    if os.path.basename(os.path.dirname(place)) == "runner":
        _in_use(archive)
        try:
            mended = _prepare(archive, folder)
            home = folder
        except OSError:
            home = archive  # it runs from there too, only slower
    if home != place:  # this package is of the other one
        sys.path[0] = home
        del sys.modules["fcctl_remote"]
    from fcctl_remote.__main__ import main

    return main(archive=archive, mended=mended)
