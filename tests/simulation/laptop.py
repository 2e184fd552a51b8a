"""A virtual laptop: its clock, its disk (the real store, whose every line is an effect), and nobody to be told."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fcctl_remote import wire
from orchestrator.base import clock
from orchestrator.base.files import disk_errors
from orchestrator.leases.session_files import LockedSession, SessionFiles
from orchestrator.money.book import Change, SpendingBook
from orchestrator.money.reservations import Reservation, Scope
from orchestrator.results.store.active import FileActiveRun
from orchestrator.results.store.store import FileStore
from orchestrator.runs.source import Source
from tests.simulation.world import Actor, Killed, World


class VirtualClock:
    """The laptop's clock: the world's, give or take its skew."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world, self._actor = world, actor

    def now(self) -> float:
        return self._world.now + self._world.skew

    def monotonic(self) -> float:
        return self._world.now

    def elapsed(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        if not self._actor.alive:
            raise Killed
        self._world.advance(max(0.0, seconds))


class Files:
    """A source of one file."""

    def read(self, root: Path) -> Source:
        entry = wire.TreeEntry("a.cu", "0" * 64, 10)
        return Source(root, (entry,), "1" * 64, None, False)


class Nobody:
    """A notifier that nobody listens to."""

    def wants(self, event: object) -> bool:
        return False

    def send(self, notice: object) -> list[str]:
        return []


def refuse_if_full(world: World, folder: Path) -> None:
    """Raises FcctlError: there is no room on the laptop's disk, as the true code says it."""
    if world.now < world.laptop_full_until:
        with disk_errors("write", folder):
            raise OSError(errno.ENOSPC, "No space left on device")


class CountedBook(SpendingBook):
    """The real book of spending, on a disk that may be full; a controller may be killed after each change."""

    def __init__(
        self, folder: Path, clock: Any, scope: Scope, firing: str | None, world: World, actor: Actor,
        reserved: Callable[[Reservation], None],
    ) -> None:  # fmt: skip
        """Args: reserved: hears of each start that the book has let pass."""
        super().__init__(folder, clock, scope, firing)
        self._world, self._actor, self._reserved = world, actor, reserved

    @contextmanager
    def changing(self) -> Iterator[Change]:
        kinds: set[str] = set()
        with super().changing() as change:
            yield change
            if change.lines:
                refuse_if_full(self._world, self._folder)
                kinds = {line.kind for line in change.lines}
        if kinds == {"reserve"}:  # else it takes the place of another one
            self._reserved(Reservation.model_validate(change.lines[0].data))
        if kinds & {"reserve", "release"}:
            self._world.effect(self._actor, f"book: {'+'.join(sorted(kinds))}", lambda: None, via="disk")


class CountedStore(FileStore):
    """The real store; what it writes are effects, at which a controller may be killed, and its runs die with it."""

    def __init__(self, root: Path, clock: Any, world: World, actor: Actor) -> None:
        super().__init__(root, clock)
        self._world, self.actor, self.held = world, actor, []  # type: ignore[var-annotated]

    def begin(self, run_id: str, plan: dict[str, Any]) -> FileActiveRun:
        made = super().begin
        return self._effect("store.begin", lambda: self._counted(made(run_id, plan)))

    def add_pending_release(self, run_id: str, debt: dict[str, Any]) -> None:
        refuse_if_full(self._world, self.root)
        super().add_pending_release(run_id, debt)

    def claim(self, run_id: str) -> FileActiveRun | None:
        claimed = super().claim(run_id)
        return self._counted(claimed) if claimed is not None else None

    def _effect(self, name: str, write: Callable[[], Any]) -> Any:
        def written() -> Any:
            refuse_if_full(self._world, self.root)
            return write()

        return self._world.effect(self.actor, name, written, via="disk")

    def _counted(self, active: FileActiveRun) -> FileActiveRun:
        self.held.append(active)
        journal: Any = active.journal
        append, write_lines = journal.append, journal._write
        complete, intake, discard = active.complete, active.intake, active.discard

        def counted_append(kind: str, **data: Any) -> None:
            self._effect(f"journal {kind}", lambda: append(kind, **data))

        def write_lines_if_room(lines: bytes) -> None:
            refuse_if_full(self._world, self.root)
            write_lines(lines)

        def counted_complete(record: Any) -> Path:
            folder: Path = self._effect(f"complete {record.status}", lambda: complete(record))
            return folder

        def intake_on_this_disk(most: int | None = None) -> Any:
            found: Any = intake(most)
            write = found.write

            def write_if_room(path: str, offset: int, data: bytes) -> None:
                refuse_if_full(self._world, self.root)
                write(path, offset, data)

            found.write = write_if_room
            return found

        journal.append, journal._write = counted_append, write_lines_if_room
        active.discard = lambda: self._effect("discard", discard)  # type: ignore[method-assign]
        active.complete = counted_complete  # type: ignore[method-assign]
        active.intake = intake_on_this_disk  # type: ignore[method-assign]
        return active


class CountedSessions(SessionFiles):
    """The real book of sessions; a controller may be killed at each line that it writes there."""

    def __init__(self, root: Path, clock: Any, world: World, actor: Actor, computer: str) -> None:
        super().__init__(root, clock, lambda: root.parent.parent / f"sessions-{computer}")
        self._world, self._actor, self.held = world, actor, []  # type: ignore[var-annotated]

    def begin(self, session_id: str, plan: dict[str, Any]) -> LockedSession:
        made = super().begin
        return self._world.effect(self._actor, "session", lambda: self._counted(made(session_id, plan)), via="disk")

    def claim(self, session_id: str) -> LockedSession | None:
        claimed = super().claim(session_id)
        return self._counted(claimed) if claimed is not None else None

    def _counted(self, held: LockedSession) -> LockedSession:
        self.held.append(held)
        append, end = held.journal.append, held.end

        def counted_append(kind: str, **data: Any) -> None:
            def written() -> None:
                refuse_if_full(self._world, self._folder)
                append(kind, **data)

            self._world.effect(self._actor, f"session {kind}", written, via="disk")

        def counted_end(record: Any) -> None:
            self._world.effect(self._actor, f"session ended: {record.how}", lambda: end(record), via="disk")

        held.journal.append = counted_append  # type: ignore[method-assign]
        held.end = counted_end  # type: ignore[method-assign]
        return held


class Inline:
    """A thread that does its work when it is started: one world, one order of events."""

    def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...] = (), **_: Any) -> None:
        self._target, self._args = target, args

    def start(self) -> None:
        self._target(*self._args)


@contextmanager
def no_threads() -> Iterator[None]:
    """The workflows' background threads, made part of the one order of events."""

    class Threading:
        Thread = Inline

    own = clock.threading
    clock.threading = Threading
    try:
        yield
    finally:
        clock.threading = own
