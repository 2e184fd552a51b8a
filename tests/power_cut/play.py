"""Run a subject on a real folder, cut the power after each operation, and judge what is left with the real code."""

from __future__ import annotations

import builtins
import functools
import io
import os
import random
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fcctl_remote.run import process
from tests.power_cut.disk import Disk, Tree, materialise

#: Each changes names or contents; what else does so shows at the next of them.
CHANGES = (
    "open", "write", "pwrite", "writev", "ftruncate", "truncate", "posix_fallocate", "sendfile", "copy_file_range",
    "rename", "replace", "link", "symlink", "unlink", "remove", "mkdir", "rmdir",
)  # fmt: skip
SYNCS = ("fsync", "fdatasync")


Done = Callable[[str], None]


class Subject(ABC):
    """Something that writes files, beginning with an empty folder."""

    #: Crash states after each operation, at most.
    states = 100

    def prepare(self, root: Path) -> None:  # noqa: B027
        """What is on the disk for long."""

    @abstractmethod
    def act(self, root: Path, done: Done) -> None:
        """Write; ``done`` names a promise as soon as it is given."""

    def recover(self, root: Path, done: tuple[str, ...]) -> None:  # noqa: B027
        """What whoever comes next does first; if the power fails meanwhile, ``judge`` holds as well."""

    @abstractmethod
    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        """Fails if a promise in ``done`` is not kept in ``root``, or if its owner cannot go on there."""


@dataclass(frozen=True)
class Cut:
    tree: Tree
    done: tuple[str, ...]
    after: str


@dataclass
class Result:
    operations: int = 0
    states: int = 0
    violations: list[str] = field(default_factory=list)


class Recorder:
    """Watches ``root``. ``states``: how many crash states it keeps after each operation."""

    def __init__(self, root: Path, states: int, done: tuple[str, ...] = ()) -> None:
        self._disk, self._states, self._busy, self._done = Disk(root), states, False, done
        self.operations = 0
        self.cuts: dict[int, Cut] = {}
        self._cut("nothing")

    def done(self, promise: str) -> None:
        self._disk.observe()
        self._done = (*self._done, promise)
        self._cut(f"done: {promise}")

    @contextmanager
    def recording(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in filter(functools.partial(hasattr, os), CHANGES):
                patch.setattr(os, name, self._watched(getattr(os, name)))
            for name in filter(functools.partial(hasattr, os), SYNCS):
                patch.setattr(os, name, self._synced(getattr(os, name)))
            opened = self._watched(io.open)
            patch.setattr(io, "open", opened)
            patch.setattr(builtins, "open", opened)
            yield
        self._observed("the end")

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            if only_reads(real.__name__, args):
                return real(*args, **kwargs)
            self._observed("a buffered write")
            try:
                return real(*args, **kwargs)
            finally:
                self._observed(f"{real.__name__}{args!r:.200}")

        return call

    def _synced(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(fd: Any) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            self._observed("a buffered write")
            real(fd)
            self._disk.sync(number)
            self.operations += 1
            self._cut(f"{real.__name__} of a {'folder' if stat.S_ISDIR(os.fstat(number).st_mode) else 'file'}")

        return call

    def _observed(self, after: str) -> None:
        if not self._busy:
            self._busy = True
            try:
                if self._disk.observe():
                    self.operations += 1
                    self._cut(after)
            finally:
                self._busy = False

    def left(self, seed: str) -> Tree:
        """One of the states that a power cut may leave now."""
        self._observed("a buffered write")
        return random.Random(seed).choice(list(self._disk.crash_states(60, seed)))

    def restore(self, tree: Tree, root: Path) -> None:
        """Begin anew with ``tree``, all of it durable."""
        self._busy = True
        try:
            restore(tree, root)
            self._disk = Disk(root)
        finally:
            self._busy = False

    def _cut(self, after: str) -> None:
        if not self._states:
            return
        for tree in self._disk.crash_states(self._states, str(self.operations)):
            looks = tuple((name, node.mode, node.data) for name, node in tree.items())
            self.cuts.setdefault(hash((self._done, looks)), Cut(tree, self._done, after))


def only_reads(name: str, args: tuple[Any, ...]) -> bool:
    """Whether it is a file that is opened for reading, which changes nothing."""
    how = args[1] if name == "open" and len(args) > 1 else "r" if name == "open" else None
    return not how & (os.O_ACCMODE | os.O_CREAT | os.O_TRUNC) if isinstance(how, int) else how in ("r", "rb")


@contextmanager
def folder() -> Iterator[Path]:
    """In memory where there is such a place: nothing here needs a disk that really syncs."""
    with tempfile.TemporaryDirectory(
        prefix="power-cut-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as made:
        yield Path(made).resolve() / "root"


def record(subject: Subject, root: Path) -> Recorder:
    root.mkdir()
    subject.prepare(root)
    recorder = Recorder(root, subject.states)
    with recorder.recording():
        subject.act(root, recorder.done)
    return recorder


def play(subject: Subject, most_violations: int = 1) -> Result:
    """Stops at ``most_violations``. States and promises that were judged once are not judged again."""
    no_process_is_left = patch.object(process, "end_orphans", return_value=0)  # after a power cut; it reads all /proc
    with folder() as root, no_process_is_left:
        recorder = record(subject, root)
        result = Result(recorder.operations)
        cuts = list(recorder.cuts.values())
        for cut in chain(cuts, _again(subject, root, cuts)):
            restore(cut.tree, root)
            result.states += 1
            try:
                subject.judge(root, cut.done)
            except Exception as error:  # whatever it is, whoever comes after a power cut must not meet it
                names = {name: node.data[:80] for name, node in cut.tree.items()}
                what = f"{type(error).__name__}: {error}"
                result.violations.append(f"after {cut.after}, promised {cut.done}: {what:.600}\nleft: {names!r:.1500}")
                if len(result.violations) >= most_violations:
                    break
    return result


def _again(subject: Subject, root: Path, cuts: list[Cut]) -> Iterator[Cut]:
    """The power fails in the recovery, too."""
    if type(subject).recover is Subject.recover:
        return
    chance = random.Random(0)
    for cut in chance.sample(cuts, min(len(cuts), 12)):
        restore(cut.tree, root)
        recorder = Recorder(root, 12, cut.done)
        with suppress(Exception), recorder.recording():  # what fails without a second cut was told by now
            subject.recover(root, cut.done)
        found = list(recorder.cuts.values())
        yield from chance.sample(found, min(len(found), 16))


def restore(tree: Tree, root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()
    materialise(tree, root)
