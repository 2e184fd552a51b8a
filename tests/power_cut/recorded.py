"""What real processes did to the files below a folder: recorded by a library in LD_PRELOAD, and done again elsewhere.

All processes of a command are seen: fcctl, the agent, tmux, the supervisor, its watchdog, and a step's own programs.
Not seen: what glibc's stdio writes, until its file is closed or synced (see recorder.c); what is written to mapped
memory, which SQLite's index alone is; and programs that are linked statically.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.power_cut.disk import Disk

SOURCE = Path(__file__).with_name("recorder.c")
UNLINKED = " (deleted)"


@functools.cache
def why_not() -> str:
    """Why nothing can be recorded here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "LD_PRELOAD with the names of glibc is for Linux"
    if shutil.which("cc") is None:
        return "no C compiler (cc)"
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder, "recorder.so"))
        (Path(folder) / "root").mkdir()
        log = Log(Path(folder, "log"), Path(folder, "root"))
        env = {**os.environ, **log.environment(Path(folder, "recorder.so"))}
        subprocess.run([sys.executable, "-c", "open('file', 'w')"], cwd=f"{folder}/root", env=env, check=True)
        return "" if any(record.kind == "O" for record in log) else "LD_PRELOAD has no effect on Python"


def build(library: Path) -> None:
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)


class Record(NamedTuple):
    """One operation. ``path`` and ``other`` are relative to the root, except for what a symbolic link names."""

    #: O open, W write, C content, T size, P mode, F sync, M mkdir, S symlink, L link, R rename, U unlink, D done.
    kind: str
    mode: int
    inode: int
    #: W: the offset; T: the size; O: 1 if it was emptied; U and R: the flags.
    number: int
    path: str
    other: str
    data: bytes

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.path, self.other)))


class Log:
    def __init__(self, path: Path, root: Path) -> None:
        self._path, self._root = path, root

    def environment(self, library: Path) -> dict[str, str]:
        return {"LD_PRELOAD": str(library), "POWER_CUT_ROOT": str(self._root), "POWER_CUT_LOG": str(self._path)}

    def done(self, promise: str) -> None:
        """Record that a command has ended and what it reported as done."""
        with self._path.open("ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.write(b"D 0 0 0 0 0 %d\n%s" % (len(promise.encode()), promise.encode()))

    def __iter__(self) -> Iterator[Record]:
        data, at = self._path.read_bytes() if self._path.exists() else b"", 0
        while at < len(data):
            end = data.index(b"\n", at)
            kind, *numbers = data[at:end].split()
            mode, inode, number, *sizes = map(int, numbers)
            parts: list[bytes] = []
            at = end + 1
            for size in sizes:
                parts.append(data[at : at + size])
                at += size
            path, other = (os.fsdecode(part).removeprefix(str(self._root)).lstrip("/") for part in parts[:2])
            if kind == b"S":
                path = os.fsdecode(parts[0])
            yield Record(kind.decode(), mode, inode, number, path, other, parts[2])


class Replay:
    """Does the operations again in the folder ``root``, a copy of what was there at the beginning.

    Args:
        ignore: a pattern; syncs of files and folders whose path it matches have no effect.
    """

    def __init__(self, root: Path, ignore: str | None = None) -> None:
        self._root, self._ignore = root, ignore
        self._open: dict[int, int] = {}  # descriptors, by the number of the recorded inode
        self.disk = Disk(root)

    def apply(self, record: Record) -> None:
        if self._changes(record):
            self.disk.observe(str(self._root / record.path))
        if record.kind == "F" and not (self._ignore and re.search(self._ignore, record.path)):
            fd = self._descriptor(record)
            if fd is not None:
                self.disk.sync(fd)

    def apply_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.apply(record)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _changes(self, record: Record) -> bool:
        """Whether this operation changed anything."""
        if record.kind in "OWCTP":
            fd = self._descriptor(record)
            return fd is not None and _change_file(fd, record)
        return self._change_names(record)

    def _descriptor(self, record: Record) -> int | None:
        path = self._root / record.path
        if record.mode & 0o170000 == 0o040000:
            folder = os.open(path, os.O_RDONLY)
            self._forget(-1)
            self._open[-1] = folder
            return folder
        if record.kind == "O":  # it may have the number of a file that is gone
            self._forget(record.inode)
        if record.inode not in self._open:
            if record.path.endswith(UNLINKED):
                return None
            self._open[record.inode] = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if record.kind in "OC":
                os.fchmod(self._open[record.inode], record.mode & 0o7777)
        return self._open[record.inode]

    def _forget(self, inode: int) -> None:
        if inode in self._open:
            os.close(self._open.pop(inode))

    def _change_names(self, record: Record) -> bool:
        path, other = self._root / record.path, self._root / record.other
        if record.kind == "M":
            path.mkdir()
            path.chmod(record.mode & 0o7777)
        elif record.kind == "S":
            os.symlink(record.path, other)
        elif record.kind == "L":
            os.link(path, other, follow_symlinks=False)
        elif record.kind == "R":
            assert record.number in (0, 1), f"{record}: an exchange of names"
            path.rename(other)
        elif record.kind == "U":
            (path.rmdir if record.number else path.unlink)()
        else:
            return False
        return True


def _change_file(fd: int, record: Record) -> bool:
    facts = os.fstat(fd)
    if record.kind == "W":
        os.pwrite(fd, record.data, record.number)
    elif record.kind == "T":
        os.ftruncate(fd, record.number)
    elif record.kind == "P":
        os.fchmod(fd, record.mode & 0o7777)
    elif record.kind == "O":
        if record.number:
            os.ftruncate(fd, 0)
    elif os.pread(fd, facts.st_size + 1, 0) == record.data:
        return False
    else:
        os.ftruncate(fd, 0)
        os.pwrite(fd, record.data, 0)
    return True


@contextmanager
def replaying(before: Path, ignore: str | None = None) -> Iterator[Replay]:
    """``before``: a copy of the folder, made before the recording; it is changed."""
    replay = Replay(before, ignore)
    try:
        yield replay
    finally:
        replay.close()
