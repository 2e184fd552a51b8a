"""The interfaces that a run works with, filled in by ``app.py``, the simulation and tests. All calls block; all waiting
goes through the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.leases.session_files import SessionFiles
from orchestrator.machines.host_api import Bundles
from orchestrator.machines.parts import MachineParts
from orchestrator.money.caps import Budget
from orchestrator.results.records import RunRecord
from orchestrator.results.store_api import Store
from orchestrator.runs.machine.left_on import MachinesLeftOn
from orchestrator.runs.notify.notices import Notifier
from orchestrator.runs.source.api import SourceReader

if TYPE_CHECKING:
    from orchestrator.money.book import SpendingBook


#: Makes the report of a run: content by path, of its record, its folder and its steps' settings; raises FcctlError.
ReportFiles = Callable[[RunRecord, Path, Mapping[str, str]], Mapping[str, bytes]]


@dataclass(frozen=True, kw_only=True)
class Services(MachineParts):
    """A machine's parts, and what only runs use."""

    store: Store
    source: SourceReader
    notifier: Notifier
    #: Opens the user's book of spending; see :attr:`spending`.
    open_book: Callable[[], SpendingBook]
    #: The caps of this workspace.
    budget: Budget
    sessions: SessionFiles
    bundles: Bundles
    #: Completes those of these runs that have ended, for the controller that left them.
    recover_runs: Callable[[Services, Sequence[str]], object]
    #: Ends the sessions whose machine is off, or whose fcctl was killed.
    recover_sessions: Callable[[Services], None]
    report_files: ReportFiles | None = None
    #: The machines that this command leaves on.
    left_on: MachinesLeftOn = field(default_factory=MachinesLeftOn)

    @cached_property
    def spending(self) -> SpendingBook:
        """The book that every start asks; loaded by what costs something."""
        return self.open_book()

    @property
    def has_opened_book(self) -> bool:
        """Whether this command has used the book of spending."""
        return "spending" in vars(self)
