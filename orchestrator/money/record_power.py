"""Write down what a cloud says of machines' starts and stops, for the ledger."""

from __future__ import annotations

from orchestrator.base.clock import Clock
from orchestrator.base.errors import ConfigError
from orchestrator.machines.cloud import BillableResource, Machine, Operation
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.book import SpendingBook
from orchestrator.money.caps import Budget
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.prices.machine import machine_price
from orchestrator.money.prices.storage import of_leftover, of_machine
from orchestrator.money.reconcile import closings
from orchestrator.money.record_billable import ResourceRecorder, is_emulated

_Word = tuple[str, float, float | None, float | None]


class UsageRecorder:
    """Writes each word down once."""

    def __init__(self, book: SpendingBook, clock: Clock, budget: Budget) -> None:
        self._book = book
        self._clock = clock
        self._budget = budget
        self._holdings = ResourceRecorder(book, clock)
        self._told: set[_Word] | None = None

    def see(self, target: GcpTarget, machine: Machine) -> None:
        """A machine as it is now."""
        now, emulated = self._clock.now(), is_emulated(target)
        self._holdings.see(of_machine(machine, target, self._budget.prices, now, emulated=emulated))
        if machine.started is None:
            return
        said = sighting_of(target, machine, self._budget, now)
        if _word(said) not in self._words():
            self._note(said)

    def see_disks(self, target: GcpTarget, machine: Machine, found: list[BillableResource]) -> None:
        """The machine's disks, as their own entries have them: their type and age are the cloud's word."""
        now, emulated, prices = self._clock.now(), is_emulated(target), self._budget.prices
        self._holdings.see(of_leftover(one, target, [machine], prices, now, emulated=emulated) for one in found)

    def hear(self, target: GcpTarget, zone: str, operations: list[Operation]) -> None:
        """What was done to the machine: it says when one that is gone went off."""
        place = (target.project, zone, target.instance)
        known = [s for s in self._book.all() if (s.project, s.zone, s.name) == place]
        for said in closings(known, operations, self._clock.now()):
            self._note(said)
        self._holdings.hear(operations)

    def _note(self, said: UsageRecord) -> None:
        self._book.note(said)
        self._words().add(_word(said))  # one that the disk did not take is written the next time

    def _words(self) -> set[_Word]:
        """What was said already. That a machine is on is said once more by each process: it is on still."""
        if self._told is None:
            self._told = {_word(said) for said in self._book.all() if said.stopped is not None}
        return self._told


def _word(said: UsageRecord) -> _Word:
    # A machine's limit is of no more interest once it is off.
    return said.instance_id, said.started, said.stopped, said.fence if said.stopped is None else None


def sighting_of(target: GcpTarget, machine: Machine, budget: Budget, now: float) -> UsageRecord:
    """What a machine that was on at least once says of its last start."""
    try:
        price = machine_price(machine.hardware, budget, target)
    except ConfigError:
        price = None
    off = machine.stopped is not None and machine.stopped >= (machine.started or 0.0) and not machine.billed
    return UsageRecord(
        project=machine.project,
        zone=machine.zone,
        name=machine.name,
        instance_id=machine.id,
        target=target.name,
        usd_per_hour=None if price is None else price.usd,
        address_usd_per_hour=0.0 if price is None else price.address_usd,
        started=machine.started or 0.0,
        stopped=machine.stopped if off else None,
        seen=now,
        fence=machine.deadline,
        emulated=is_emulated(target),
        api_endpoint=target.api_endpoint,
    )
