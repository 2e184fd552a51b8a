"""The interfaces that a run works with, filled in by ``app.py``, the simulation and tests. All calls block; all waiting
goes through the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.files import Unread
from orchestrator.leases.session_files import SessionFiles
from orchestrator.machines.interfaces import Bundles, MachineParts
from orchestrator.money.caps import Budget
from orchestrator.results.records import RunRecord
from orchestrator.runs.machine.left_on import MachinesLeftOn
from orchestrator.runs.source import Source, SourceReader

if TYPE_CHECKING:
    from orchestrator.leases.session_rules import SessionRecord
    from orchestrator.money.book import SpendingBook
    from orchestrator.results.store.store import FileStore
    from orchestrator.runs.job.saved_plan import SavedPlan
    from orchestrator.runs.notices import Notice, Notifier


#: Makes the report of a run: content by path, of its record, its folder and its steps' settings; raises FcctlError.
ReportFiles = Callable[[RunRecord, Path, Mapping[str, str]], Mapping[str, bytes]]


@dataclass(frozen=True, kw_only=True)
class Services(MachineParts):
    """A machine's parts, and what only runs use."""

    store: FileStore
    source: SourceReader
    notifier: Notifier
    #: Opens the user's ledger; see :attr:`spending`.
    open_book: Callable[[], SpendingBook]
    #: The caps of this workspace.
    budget: Budget
    sessions: SessionFiles
    #: The libraries of searches; loaded when a job needs them.
    bundles: Callable[[], Bundles]
    #: Completes those of these runs that have ended, for the controller that left them.
    recover_runs: Callable[[Services, Sequence[str]], object]
    #: Ends the sessions whose machine is off, or whose fcctl was killed.
    recover_sessions: Callable[[Services], None]
    #: Runs local steps on a builder; see :func:`orchestrator.runs.builder.run_there`.
    run_on_builder: Callable[[Services, SavedPlan, Source | None], RunRecord | None]
    report_files: ReportFiles | None = None
    #: Makes the report of a session: content by name; raises FcctlError.
    session_files: Callable[[Services, SessionRecord], Mapping[str, bytes]] | None = None
    #: The container image whose nvcc compiles here where there is none; empty: none does.
    cuda_image: str = ""
    #: The values of secrets by name; raises ConfigError if one is not there.
    secrets: Callable[[Sequence[str]], Mapping[str, str]] = lambda _names: {}
    #: The machines that this command leaves on.
    left_on: MachinesLeftOn = field(default_factory=MachinesLeftOn)
    #: What a stop does without.
    unread: Unread = field(default_factory=Unread)

    def notify(self, notice: Notice) -> None:
        """Sends ``notice`` as ``[notify]`` says; notes failures."""
        for problem in self.notifier.send(notice):
            self.observer.note(problem)

    @cached_property
    def spending(self) -> SpendingBook:
        """The book that every start asks; loaded by what costs something."""
        return self.open_book()

    @property
    def has_opened_book(self) -> bool:
        """Whether this command has used the ledger."""
        return "spending" in vars(self)
