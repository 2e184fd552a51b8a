"""Power cuts while the controller's own files are written: atomic files, journal, lock, configuration, key, cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.base import files
from orchestrator.base.clock import SystemClock
from orchestrator.base.journal import FileJournal, OwnerLock, read_object
from orchestrator.machines.cache import FileMachineCache
from orchestrator.machines.cloud import Endpoint
from orchestrator.machines.connect import bootstrap
from orchestrator.providers.gcp import clouds
from orchestrator.workspace import init
from orchestrator.workspace.root import add_table, remove_table
from tests.power_cut.play import Done, Subject

#: More than one block, and no multiple of a sector.
LONG = b"0123456789abcdef" * 300 + b"end"


def is_newest(found: object, versions: list[object], done: tuple[str, ...]) -> None:
    """``found`` is the newest of ``versions`` that was promised, or one that was being written."""
    assert found in versions[len(done) :], f"{found!r:.300} after {done}"


class WriteAtomic(Subject):
    """``files.write_atomic``: a file that is replaced."""

    contents = (b"first", LONG, b"third")
    before: bytes | None = b"old"

    def prepare(self, root: Path) -> None:
        (root / "file").write_bytes(b"old")

    def act(self, root: Path, done: Done) -> None:
        for at, content in enumerate(self.contents):
            files.write_atomic(root, "file", content)
            done(str(at))

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        path = root / "file"
        is_newest(path.read_bytes() if path.exists() else None, [self.before, *self.contents], done)
        for left in root.iterdir():
            os.utime(left, (1.0, 1.0))  # an hour later
        with files.alone_in(root):
            files.write_atomic(root, "file", b"afterwards")
        assert os.listdir(root) == ["file"]
        assert path.read_bytes() == b"afterwards"


class WriteNew(WriteAtomic):
    """The same for one that is not there yet."""

    before = None

    def prepare(self, root: Path) -> None: ...


class Journal(Subject):
    """A run's journal, begun, closed and opened again."""

    kinds = ("prewake", "acquire", "cloud", "arm", "submit")

    def act(self, root: Path, done: Done) -> None:
        for kinds in (self.kinds[:3], self.kinds[3:]):
            journal = FileJournal(root / "journal.jsonl", SystemClock())
            for kind in kinds:
                journal.append(kind, text=LONG.decode() if kind == "cloud" else "x")
                done(kind)
            journal.close()

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        journal = FileJournal(root / "journal.jsonl", SystemClock())
        found = [entry.kind for entry in journal.entries()]
        assert found in [list(self.kinds[:count]) for count in range(len(done), len(self.kinds) + 1)]
        journal.append("after")
        journal.close()
        again = FileJournal(root / "journal.jsonl", SystemClock()).entries()
        assert [entry.kind for entry in again] == [*found, "after"]
        assert [entry.seq for entry in again] == list(range(1, len(found) + 2))


class TornJournal(Journal):
    """A journal whose last line an earlier power cut tore: it is cut off before the next is written."""

    def prepare(self, root: Path) -> None:
        (root / "journal.jsonl").write_bytes(b'{"seq":1,"time":1.0,"kind":"prew')


class Lock(Subject):
    """``OwnerLock``: taken, let go, taken again; and by somebody while its owner deletes it."""

    def act(self, root: Path, done: Done) -> None:
        for started in (1.0, 2.0):
            lock = OwnerLock.take(root / "lock", started)
            assert lock is not None
            lock.release()

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        path = root / "lock"
        read_object(path)
        lock = OwnerLock.take(path, 3.0)
        assert lock is not None
        assert OwnerLock.take(path, 4.0) is None
        assert (read_object(path) or {})["started"] == 3.0
        lock.release()
        assert self._take_while(path, Path.unlink) is None, "the lock of a file that nobody else would find"
        assert self._take_while(path, (root / "new").replace) is None, "the lock of a former file"

    def _take_while(self, path: Path, owner_does: Callable[[Path], object]) -> OwnerLock | None:
        """Its owner changes the file just after it was opened here."""
        real = os.open

        def opened(name: Path, *args: int) -> int:
            fd = real(name, *args)
            owner_does(name)
            return fd

        (path.parent / "new").touch()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", opened)
            return OwnerLock.take(path, 5.0)


class Config(Subject):
    """``fcctl.toml``: a table more, a table less."""

    start = '# mine\n[project]\nname = "p"\n'

    def prepare(self, root: Path) -> None:
        (root / "fcctl.toml").write_text(self.start)

    def act(self, root: Path, done: Done) -> None:
        add_table(root / "fcctl.toml", ("targets", "one"), {"kind": "ssh", "host": "h" * 5000})
        done("added")
        remove_table(root / "fcctl.toml", ("targets", "one"))
        done("removed")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        text = (root / "fcctl.toml").read_text()
        whole = "h" * 5000 + '"' in text
        assert text.startswith(self.start)
        assert whole or "targets" not in text
        assert "removed" not in done or not whole
        add_table(root / "fcctl.toml", ("targets", "two"), {"kind": "ssh"})
        assert "two" in (root / "fcctl.toml").read_text()


class Init(Subject):
    """``fcctl init --force``: what it wrote is there, and what was there before it."""

    mine = b'[project]\nname = "mine"\n'

    def __init__(self) -> None:
        self._written: dict[str, bytes] = {}

    def prepare(self, root: Path) -> None:
        (root / "fcctl.toml").write_bytes(self.mine)

    def act(self, root: Path, done: Done) -> None:
        written = init.init(root, force=True).written
        self._written = {str(path.relative_to(root)): path.read_bytes() for path in written}
        done("written")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        assert self.mine in [path.read_bytes() for path in root.glob("fcctl.toml*")]
        assert not done or {name: (root / name).read_bytes() for name in self._written} == self._written
        init.init(root, force=True)
        assert {name: (root / name).read_bytes() for name in self._written} == self._written


class HostProgram(Subject):
    """The archive of the host program in the cache: its name is its hash, and so is what it holds."""

    def _build(self, root: Path) -> bootstrap.RunnerArchive:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bootstrap, "_sources", lambda: [("__main__.py", b"pass\n"), ("wire.py", LONG)])
            return bootstrap.build_runner(root / "cache")

    def act(self, root: Path, done: Done) -> None:
        self._build(root)

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        archive = self._build(root)
        assert hashlib.sha256(archive.path.read_bytes()).hexdigest() == archive.sha256


class Key(Subject):
    """fcctl's own key: once it was handed out, machines know it."""

    def __init__(self) -> None:
        self._public = ""

    def act(self, root: Path, done: Done) -> None:
        self._public = clouds.public_key(clouds.own_key(root / "share" / "keys"))
        done("made")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        path = clouds.own_key(root / "share" / "keys")
        public = clouds.public_key(path)
        assert not done or public == self._public
        assert path.stat().st_mode & 0o777 == 0o600


class MachineCache(Subject):
    """What is remembered of a machine: whole, or unknown."""

    def _endpoint(self, address: str) -> Endpoint:
        host_keys = ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGTTV3HgWqpMjmfFBNpsVTGyU2ZQxhhV4oFH3HvvYpK5",)
        return Endpoint("my-project", "vm", "us-west1-c", "123", address, 22, "me", "/key", host_keys)

    def act(self, root: Path, done: Done) -> None:
        book = FileMachineCache(root / "state" / "machines")
        for address in ("10.0.0.1", "10.0.0.2"):
            book.remember(self._endpoint(address))
            done(address)
        book.forget("my-project", "vm")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        book = FileMachineCache(root / "state" / "machines")
        found = book.known("my-project", "vm")
        allowed = [None, self._endpoint("10.0.0.1"), self._endpoint("10.0.0.2"), None]
        assert found in allowed[len(done) :]
        book.remember(self._endpoint("10.0.0.3"))
        assert book.known("my-project", "vm") == self._endpoint("10.0.0.3")


BASE = (WriteAtomic, WriteNew, Journal, TornJournal, Lock, Config, Init, HostProgram, Key, MachineCache)
