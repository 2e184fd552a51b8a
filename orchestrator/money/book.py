"""The user's ledger, ``book.jsonl`` in the state folder: one append-only file for all workspaces with
reservations, costs of runs, and what the cloud said of machines and resources. A line is one change, ``CRC KIND JSON``
with ``TAB KIND JSON`` for each further entry, written whole or not at all and on disk before the call returns. A torn
last line is cut off; a damaged line costs only itself, and is counted."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fcctl_remote.base.files import flush, sync_folder, write_all
from orchestrator.base.clock import Clock
from orchestrator.base.errors import ConflictError
from orchestrator.base.files import disk_errors, make_folders, write_atomic
from orchestrator.base.models import KEPT
from orchestrator.money.billable import ResourceRecord, without_repetitions
from orchestrator.money.ledger import RunUsage, UsageRecord, latest
from orchestrator.money.reservations import Reservation, Scope

NAME, LOCK = "book.jsonl", "book.lock"
#: How long to wait for another fcctl's lock on the book, seconds; and after it was not released in that time.
PATIENCE_S, IMPATIENCE_S = 30.0, 1.0
#: Whenever the file has grown by so many bytes, it is looked whether half of it is of no use any more.
COMPACT_BYTES = 1 << 20

Model = TypeVar("Model", bound=BaseModel)


class FiringCost(BaseModel):
    """What one firing of a schedule counts in its month, until its run's own cost is known."""

    model_config = KEPT

    firing: str  # see :func:`orchestrator.money.firings.firing_id`
    schedule: str  # project/schedule
    due: float
    usd: float
    ended: bool = False
    #: What machines cost that it left on, from its runs' end until they were off.
    left_on_usd: float = 0.0


@dataclass(frozen=True)
class Line:
    """One entry of the book: whose it is (the project's name, and its ``results``), and what it says."""

    kind: str
    project: str
    results: str
    data: dict[str, Any]

    @property
    def text(self) -> bytes:
        """Without a tab or a line end: JSON has them as escapes."""
        content = json.dumps({"by": [self.project, self.results], "data": self.data}, separators=(",", ":"))
        return f"{self.kind} {content}".encode()


@dataclass
class State:
    """The entries of the book, by kind, oldest first. Reading one kind parses no other."""

    raw: dict[str, list[bytes]] = field(default_factory=dict)
    #: Bytes up to the end of the last whole line, and that line; numbers of damaged lines before it.
    length: int = 0
    last: bytes = b""
    damaged: list[int] = field(default_factory=list)
    count: int = 0
    #: By kind what was parsed, and what was validated of so many lines. Replaced, never changed: threads share it.
    _parsed: dict[str, list[Line]] = field(default_factory=dict)
    _valid: dict[str, tuple[int, list[tuple[Line, Any]]]] = field(default_factory=dict)

    def lines(self, kind: str) -> list[Line]:
        done = self._parsed.get(kind, [])
        new = [json.loads(raw) for raw in self.raw.get(kind, [])[len(done) :]]
        if new:
            made = (Line(kind, project, results, one["data"]) for one in new for project, results in [one["by"]])
            done = self._parsed[kind] = [*done, *made]
        return done

    def of(self, kind: str, model: type[Model]) -> list[tuple[Line, Model]]:
        """The lines of a kind that this version can read."""
        lines, (count, readable) = self.lines(kind), self._valid.get(kind, (0, []))
        if count < len(lines):
            new = ((line, _valid(line, model)) for line in lines[count:])
            readable = [*readable, *((line, one) for line, one in new if one is not None)]
            self._valid[kind] = len(lines), readable
        return readable

    def open(self) -> dict[str, Reservation]:
        """Reservations that are not released, oldest first."""
        reservations = {one.reservation_id: one for _, one in self.of("reserve", Reservation)}
        # A reservation may be made anew under the same id after a release, and a clock may be set back in between.
        released = {(line.data.get("reservation_id"), line.data.get("made")) for line in self.lines("release")}
        return {name: one for name, one in reservations.items() if (name, one.at) not in released}

    def starts(self) -> list[UsageRecord]:
        """The latest record of each start of a machine, the oldest start first."""
        return latest(one for _, one in self.of("power", UsageRecord))

    def runs(self) -> dict[str, tuple[Line, RunUsage]]:
        return {usage.run_id: (line, usage) for line, usage in self.of("run", RunUsage)}

    def firings(self) -> dict[str, FiringCost]:
        return {one.firing: one for _, one in self.of("firing", FiringCost)}


def _valid(line: Line, model: type[Model]) -> Model | None:
    try:
        return model.model_validate(line.data)
    except ValidationError:
        return None


class Change:
    """Entries to be written together, while no other process writes."""

    def __init__(self, state: State, scope: Scope) -> None:
        self.state, self._scope = state, scope
        self.lines: list[Line] = []

    def add(self, kind: str, data: BaseModel | dict[str, Any]) -> None:
        plain = data.model_dump(mode="json") if isinstance(data, BaseModel) else data
        self.lines.append(Line(kind, self._scope.project, self._scope.results, plain))

    def reserve(self, reservation: Reservation) -> None:
        self.add("reserve", reservation)

    def release(self, reservation: Reservation) -> None:
        self.add("release", {"reservation_id": reservation.reservation_id, "made": reservation.at})


class SpendingBook:
    """The book as one workspace sees it. Safe with many processes."""

    def __init__(self, folder: Path, clock: Clock, scope: Scope, firing: str | None = None) -> None:
        """Args: firing: the schedule's firing that this command belongs to."""
        self._folder, self._clock, self.scope, self.firing = folder, clock, scope, firing
        self._state, self._inode, self._patience_s = State(), 0, PATIENCE_S
        #: Threads of one process share what was read.
        self._mutex = threading.RLock()

    # ------------------------------------------------------------------------------------------------------- reading
    def state(self) -> State:
        """The book as it is now. Raises DiskError."""
        with self._mutex:
            return self._read()

    def _read(self) -> State:
        """Reads what was appended since the last time; all, if the file is another one by now. Raises DiskError."""
        with disk_errors("read the ledger", self._folder):
            try:
                self._read_file()
            except FileNotFoundError:
                self._state, self._inode = State(), 0
        return self._state

    def _read_file(self) -> None:
        with (self._folder / NAME).open("rb") as file:
            inode, last = os.fstat(file.fileno()).st_ino, self._state.last
            file.seek(self._state.length - len(last))
            # A new file may have the inode number of a deleted one.
            if inode != self._inode or file.read(len(last)) != last:
                self._state, self._inode = State(), inode
                file.seek(0)
            _parse(file.read(), self._state)

    # ------------------------------------------------------------------------------------------------------- writing
    @contextmanager
    def changing(self) -> Iterator[Change]:
        """Reads, decides and writes as one step; writes nothing if the block raises. Raises ConflictError if another
        fcctl keeps the lock, FcctlError if the state folder cannot be written."""
        with self._mutex, self._lock():
            change = Change(self._read(), self.scope)
            yield change
            if change.lines:
                self._append(change.lines)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with disk_errors("write the ledger", self._folder):
            make_folders(self._folder, 0o700)
            lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode=0o600)
        try:
            self._wait_for(lock)
            yield
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> None:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    self._patience_s = IMPATIENCE_S
                    raise ConflictError(
                        f"another fcctl has locked the ledger for more than {PATIENCE_S:.0f} s",
                        cause=f"it holds the lock {self._folder / LOCK}",
                        hint=f"find that process: fuser {self._folder / LOCK}; then run the command again",
                    ) from None
                time.sleep(0.005)
            else:
                self._patience_s = PATIENCE_S
                return

    def _append(self, lines: list[Line]) -> None:
        state, before = self._state, self._state.length
        with disk_errors("write the ledger", self._folder):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
            fd = os.open(self._folder / NAME, flags, mode=0o600)
            try:
                os.ftruncate(fd, state.length)  # what a crash cut short was never reported as done
                os.lseek(fd, state.length, os.SEEK_SET)
                try:
                    write_all(fd, _encoded(lines))
                    flush(fd)
                except OSError:
                    os.ftruncate(fd, state.length)
                    raise
                self._inode = os.fstat(fd).st_ino
            finally:
                os.close(fd)
            sync_folder(self._folder)
        if self._read().length // COMPACT_BYTES > before // COMPACT_BYTES:
            self._compact()

    def _compact(self) -> None:
        """Write the book anew without what counts no more, if that halves it."""
        content = b"".join(_encoded([line]) for line in _live(self._state))
        if not self._state.damaged and len(content) < self._state.length / 2:
            with disk_errors("compact the ledger", self._folder):
                write_atomic(self._folder, NAME, content, mode=0o600)
            self._read()

    def set_damage_aside(self) -> str | None:
        """Write the book anew without its damaged lines, and keep the damaged book beside it; its path, if any was."""
        with self.changing() as change:
            if not change.state.damaged:
                return None
            aside = self._folder / f"book.damaged-{int(self._clock.now())}.jsonl"
            with disk_errors("write the ledger", self._folder):
                write_atomic(self._folder, aside.name, (self._folder / NAME).read_bytes(), mode=0o600)
                whole = b"".join(_encoded([line]) for line in _all(change.state))
                write_atomic(self._folder, NAME, whole, mode=0o600)
            self._read()
        return str(aside)

    # ---------------------------------------------------------------------------------------- what the cloud said
    def add_usage(self, record: UsageRecord) -> None:
        """A start keeps its first price: the machine may have been resized since, or have another price."""
        with self.changing() as change:
            known = (one for _, one in change.state.of("power", UsageRecord) if one.usd_per_hour is not None)
            same = (one for one in known if one.is_same_start(record))
            change.add("power", record.priced_as(next(same, record)))

    def usage(self) -> list[UsageRecord]:
        return [one for _, one in self.state().of("power", UsageRecord)]

    def add_resource(self, record: ResourceRecord) -> None:
        with self.changing() as change:
            change.add("resource", record)

    def resources(self) -> list[ResourceRecord]:
        return [one for _, one in self.state().of("resource", ResourceRecord)]


def _encoded(lines: Iterable[Line]) -> bytes:
    """One line of the file."""
    text = b"\t".join(line.text for line in lines)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(content: bytes, state: State) -> None:
    """Add whole lines to ``state``. A damaged one counts only if a good one follows: else it is what a crash left."""
    position, suspects, length = 0, [], state.length
    while (end := content.find(b"\n", position)) >= 0:
        line, position = content[position:end], end + 1
        state.count += 1
        text = line[9:]
        if not text or line[:9] != b"%08x " % zlib.crc32(text):
            suspects.append(state.count)
            continue
        for entry in text.split(b"\t"):
            kind, _, data = entry.partition(b" ")
            state.raw.setdefault(kind.decode(), []).append(data)
        state.damaged += suspects
        suspects, state.length, state.last = [], length + position, content[position - len(line) - 1 : position]
    state.count -= len(suspects)


def _all(state: State) -> Iterator[Line]:
    for kind in state.raw:
        yield from state.lines(kind)


def _live(state: State) -> Iterator[Line]:
    """The entries that still count: the last record of each start and run, open reservations, resources without
    repetitions."""
    open_ = state.open()
    power = state.of("power", UsageRecord)
    last = {id(one) for one in latest(one for _, one in power)}
    yield from (line for line, one in power if id(one) in last)
    yield from _last(state, "run", "run_id")
    yield from _last(state, "firing", "firing")
    yield from (line for line in _last(state, "reserve", "reservation_id") if line.data.get("reservation_id") in open_)
    resources = state.of("resource", ResourceRecord)
    known = {id(one) for one in without_repetitions(one for _, one in resources)}
    yield from (line for line, one in resources if id(one) in known)
    yield from _last(state, "notice", "key")
    others = {"power", "run", "firing", "reserve", "release", "resource", "notice"}
    for kind in state.raw.keys() - others:  # of a later version
        yield from state.lines(kind)


def _last(state: State, kind: str, key: str) -> list[Line]:
    return list({str(line.data.get(key)): line for line in state.lines(kind)}.values())
