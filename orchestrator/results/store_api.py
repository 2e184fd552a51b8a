"""Runs on this computer's disk: those under way, with their journals, and those that are home."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fcctl_remote import wire
from orchestrator.base.journal import JournalEntry
from orchestrator.results.records import RunRecord, RunRow

if TYPE_CHECKING:
    from orchestrator.results.measurement import Measurement
    from orchestrator.results.tags import Tag


class Journal(Protocol):
    """A run's append-only record of intent; each line is on disk before the call returns."""

    def append(self, kind: str, **data: Any) -> None:
        """Raises: DiskError, if this computer's disk is full; then there is no such line."""

    def append_if_possible(self, kind: str, **data: Any) -> bool:
        """The same for a line whose effect must not wait for room on the disk. False: it is in memory, and reaches the
        disk with the next line that does."""

    def entries(self) -> list[JournalEntry]: ...

    def age(self, entry: JournalEntry) -> float:
        """How long ago one of the entries was written, seconds; those that this computer slept count.

        Setting the computer's clock changes nothing of it, unless that was done after another process wrote the line
        and before this one read it: then all there is to reckon by is the time of day.
        """


class Intake(Protocol):
    """Where bytes from an untrusted host become files: only below the run's own ``.partial`` folder."""

    def accepts(self, path: str, size: int = 0) -> str | None:
        """None, which reserves name and room, or why the file is left out: ``bad_name``, ``too_large``, ..."""

    def size(self, path: str) -> int:
        """Bytes already here; 0 when the file is absent."""

    def write(self, path: str, offset: int, data: bytes) -> None: ...

    def verified(self, entry: wire.FileEntry) -> bool:
        """Whether the file here has the size and sha256 the host announced."""

    def discard(self, path: str) -> None: ...

    def renamed(self) -> list[tuple[str, str]]:
        """What is stored under another name than it was sent as, as (sent, stored)."""

    def flush(self) -> None:
        """Sync all collected files and their folders to the disk; they survive a power cut from then on."""

    def read(self, path: str, limit: int) -> bytes | None:
        """A collected file; None if it is absent, empty, or longer than ``limit`` bytes."""

    def read_json(self, path: str, most: int = ...) -> Any:
        """A collected JSON file, None if absent; raises ValueError if it is not JSON, or takes more memory than
        ``most``."""


class ActiveRun(Protocol):
    """A run this controller owns until it is complete; no other controller can claim it meanwhile."""

    run_id: str

    @property
    def journal(self) -> Journal: ...

    @property
    def plan(self) -> dict[str, Any]:
        """What was saved by :meth:`Store.begin`."""

    def intake(self) -> Intake: ...

    def add(self, make: Callable[[Path], Mapping[str, bytes]]) -> None:
        """Files of our own beside those that came home: ``make`` gets their folder, and gives paths and contents."""

    def complete(self, record: RunRecord) -> Path:
        """Write run.json, rename ``.partial`` to its final name, index it, end the active run. Idempotent."""

    def release(self) -> None:
        """Let another controller claim the run (a detached run stays active)."""

    def discard(self) -> None:
        """Remove an active run that has no plan: it was killed while being made, and never was."""


class IncomingRun(Protocol):
    """A run that is written from an archive; it is none of the store's until :meth:`finish`."""

    run_id: str

    def write(self, path: str, offset: int, data: bytes) -> None: ...

    def check(self) -> None:
        """Raises: FcctlError, if what was written is no complete run."""

    def finish(self) -> Path: ...

    def discard(self) -> None: ...


class Store(Protocol):
    def begin(self, run_id: str, plan: dict[str, Any]) -> ActiveRun: ...

    def active(self) -> list[str]:
        """Ids of the runs that are not complete, oldest first."""

    def claim(self, run_id: str) -> ActiveRun | None:
        """Take over an active run; None while another live process owns it.

        Raises:
            RunNotFound: it is not active (any more).
        """

    def plan_of(self, run_id: str) -> dict[str, Any] | None:
        """An active run's saved plan, without claiming it."""

    def journal_of(self, run_id: str) -> list[JournalEntry]:
        """A run's journal, active or complete, without claiming it; empty if there is no such run."""

    def owe(self, run_id: str, debt: dict[str, Any]) -> None:
        """Write down that a machine which ``run_id`` turned on is not known to be off."""

    def owed(self) -> dict[str, dict[str, Any]]:
        """What was written down so and not yet :meth:`paid`, by run id."""

    def paid(self, run_id: str) -> None:
        """The machine is off."""

    def is_complete(self, run_id: str) -> bool:
        """Whether the run's results are here, whole."""

    def get(self, run_id: str) -> RunRecord: ...

    def resolve(self, name: str) -> str:
        """A full run id from an id, a unique prefix or suffix, or ``last``.

        Raises:
            RunNotFound: with the nearest id as a hint.
        """

    def rows(self, *, limit: int | None = None, **filters: str | None) -> list[RunRow]: ...

    def measurements(self, *, limit: int = 1000, **filters: str | None) -> list[Measurement]:
        """What complete runs measured, newest first, out of the index; no run's folder is opened."""

    def benchmarks(self) -> list[tuple[str, str]]:
        """(benchmark, variant) of all that complete runs measured, in order."""

    def query(self, sql: str, limit_s: float, max_rows: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
        """Columns, rows and whether there are more, of a SELECT on the index of the runs."""

    def incoming(self, run_id: str) -> IncomingRun: ...

    def best(self, count: int) -> set[str]:
        """The runs that hold one of the ``count`` best times of any benchmark of ours."""

    def size(self, run_id: str) -> int:
        """Bytes of a complete run on the disk."""

    def delete(self, run_ids_gone: Sequence[str]) -> None:
        """Delete complete runs for good."""

    def tags(self) -> dict[str, Tag]:
        """Names that people gave to runs, by name."""

    def tag(self, tag: Tag, *, move: bool) -> None:
        """Add a name; only with ``move`` may it leave the runs it stands for (else ConflictError)."""

    def untag(self, name: str) -> None: ...

    def folder(self, run_id: str) -> Path: ...

    def reindex(self) -> tuple[int, Sequence[tuple[str, str]]]:
        """Build the list behind :meth:`rows` anew: how many runs it holds, and (run id, reason) of each skipped."""
