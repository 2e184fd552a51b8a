"""Records what a cloud says of machines and of billable resources: in the book, each fact once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from orchestrator.base.clock import Clock
from orchestrator.base.errors import ConfigError, ConflictError, DiskError, FcctlError
from orchestrator.machines.cloud import BillableResource, Machine, Operation, Power
from orchestrator.machines.interfaces import Cloud
from orchestrator.machines.power_history import deleted_at, disk_deleted_at
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.targets import SANDBOX_PROJECT, CloudTarget
from orchestrator.money import billable
from orchestrator.money.audit import SAME_STOP_S, closings
from orchestrator.money.billable import (
    Key,
    ResourceHistory,
    ResourceRecord,
    is_ours,
    of_machine,
    of_resource,
    target_of,
)
from orchestrator.money.book import SpendingBook
from orchestrator.money.caps import Budget
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.prices.machine import machine_price
from orchestrator.money.prices.table import PriceTable

_Fact = tuple[str, float, float | None, float | None]
#: In these states a machine has the time limit of its start, though the cloud shows no deadline.
_GOING_OFF = (Power.STOPPING, Power.SUSPENDING, Power.REPAIRING)


def is_emulated(target: CloudTarget) -> bool:
    """Whether it is the sandbox's machine, which costs nothing. Another emulator's machine stands for a real one."""
    return target.project == SANDBOX_PROJECT and on_loopback(target.api_endpoint)


class UsageRecorder:
    """Records the machines of targets. ``note`` is called once if the book cannot be written."""

    def __init__(
        self, book: SpendingBook, clock: Clock, budget: Budget, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self._book, self._clock, self._budget, self._note = book, clock, budget, note
        self._resources = ResourceRecorder(book, clock)
        self._recorded: set[_Fact] | None = None
        self._failure: FcctlError | None = None

    def record_machine(self, target: CloudTarget, machine: Machine) -> None:
        """Records the target's machine as it is now."""
        with self._writing():
            now, emulated = self._clock.now(), is_emulated(target)
            self._resources.record(of_machine(machine, target, self._budget.prices, now, emulated=emulated))
            if machine.started is not None:
                record = self._ended(usage_of(target, machine, self._budget, now), machine)
                if record is not None and _fact(record) not in self._facts() and not self._ended_before(record):
                    self._add(record)
            self._failure = None

    def record_disks(self, target: CloudTarget, machine: Machine, disks: list[BillableResource]) -> None:
        """Records the machine's disks with the type and the age of their own entries."""
        now, emulated, prices = self._clock.now(), is_emulated(target), self._budget.prices
        with self._writing():
            self._resources.record(
                of_resource(disk, target, [machine], prices, now, emulated=emulated) for disk in disks
            )

    def record_operations(self, target: CloudTarget, zone: str, operations: list[Operation]) -> None:
        """Records when the machine went off, as the operations on its name have it."""
        place = (target.project, zone, target.instance)
        with self._writing():
            known = [one for one in self._book.usage() if (one.project, one.zone, one.name) == place]
            for record in closings(known, operations, self._clock.now()):
                self._add(record)
            self._resources.record_operations(operations)

    def check(self) -> None:
        """Raises FcctlError before a start if the last record could not be written."""
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (ConflictError, DiskError) as error:  # whoever looks may want to stop the machine
            if self._failure is None:
                self._note(
                    f"the ledger cannot be written ({error.cause}); add the missing entries later: fcctl hosts audit"
                )
            self._failure = error

    def _add(self, record: UsageRecord) -> None:
        self._book.add_usage(record)
        self._facts().add(_fact(record))  # what the disk did not take is written the next time

    def _ended(self, record: UsageRecord, machine: Machine) -> UsageRecord | None:
        """The record with the latest end of a machine that is off, where the cloud does not say when it went off; None
        if the ledger has the end of that start already, or no record of it."""
        if machine.power is not Power.STOPPED or record.stopped is not None:
            return record
        own = [one for one in self._book.usage() if one.is_same_start(record)]
        if not own or any(one.stopped is not None for one in own):
            return None
        end = min(record.seen, *(one.latest_end for one in own))
        return record.model_copy(update={"stopped": max(end, record.started), "bound": True})

    def _ended_before(self, record: UsageRecord) -> bool:
        """Whether the start has ended already: this is the stop of a later one, at which the machine never ran."""
        ends = (stopped for number, started, stopped, _ in self._facts()
                if (number, started) == (record.instance_id, record.started) and stopped is not None)  # fmt: skip
        return record.stopped is not None and any(end < record.stopped - SAME_STOP_S for end in ends)

    def _facts(self) -> set[_Fact]:
        """What the book has. That a machine is on is recorded once more by each process."""
        if self._recorded is None:
            self._recorded = {_fact(record) for record in self._book.usage() if record.stopped is not None}
        return self._recorded


def _fact(record: UsageRecord) -> _Fact:
    return record.instance_id, record.started, record.stopped, record.fence if record.stopped is None else None


def usage_of(target: CloudTarget, machine: Machine, budget: Budget, now: float) -> UsageRecord:
    """The record of the last start of a machine that was on at least once."""
    try:
        price = machine_price(machine.hardware, budget, target)
    except ConfigError:
        price = None
    # While it starts, the times are those of the start before.
    may_be_off = not machine.billed or machine.power is Power.STARTING
    off = machine.stopped is not None and machine.stopped >= (machine.started or 0.0) and may_be_off
    deadline = machine.deadline
    if machine.power in _GOING_OFF and machine.max_run_s is not None and machine.started is not None:
        deadline = machine.started + machine.max_run_s
    return UsageRecord(
        project=machine.project, zone=machine.zone, name=machine.name, instance_id=machine.id, target=target.name,
        usd_per_hour=None if price is None else price.usd,
        address_usd_per_hour=0.0 if price is None else price.address_usd,
        started=machine.started or 0.0, stopped=machine.stopped if off else None, seen=now, fence=deadline,
        emulated=is_emulated(target), api_endpoint=target.api_endpoint, target_kind=target.kind,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- resources
def record_resources(
    book: SpendingBook, clock: Clock, cloud: Cloud, targets: Sequence[CloudTarget], machines: Sequence[Machine],
    resources: Sequence[BillableResource], prices: PriceTable, *, workspace: str, whole: bool,
) -> None:  # fmt: skip
    """Records the disks, snapshots and addresses that the cloud lists for a project. ``resources`` has everybody's;
    ``whole``: the list is complete, so that what is missing is gone."""
    names = frozenset(target.instance for target in targets)
    now, emulated = clock.now(), all(is_emulated(target) for target in targets)
    recorder = ResourceRecorder(book, clock)
    recorder.record(
        of_resource(one, target_of(one, targets), machines, prices, now, emulated=emulated)
        for one in resources
        if is_ours(one, names, workspace)
    )
    if whole:
        present = ((one.project, one.kind, one.place, one.name) for one in resources)
        recorder.record_missing(targets[0].project, present, cloud)


class ResourceRecorder:
    """Records what is new of disks, snapshots and addresses."""

    def __init__(self, book: SpendingBook, clock: Clock) -> None:
        self._book, self._clock = book, clock
        self._known: dict[Key, ResourceHistory] | None = None

    def record(self, resources: Iterable[ResourceRecord]) -> None:
        """Records resources as they are now."""
        for seen in resources:
            record = billable.news(self._histories().get(seen.key), seen)
            if record is not None:
                self._add(record)

    def record_operations(self, operations: Sequence[Operation]) -> None:
        """Ends the disks that were deleted with their machine."""
        for history in self.standing():
            last = history.last
            if last.auto_delete and last.machine_id:
                at = deleted_at(operations, last.machine_id)
                if at is not None and at >= (history.created or 0.0):
                    self._add(billable.ended(history, at, self._clock.now()))

    def record_missing(self, project: str, present: Iterable[Key], cloud: Cloud) -> None:
        """Ends the known resources of a project that its complete list, ``present``, does not have."""
        there = set(present)
        for history in self.standing():
            last = history.last
            if last.project == project and last.key not in there:
                at, now = _deleted(last, cloud), self._clock.now()
                self._add(billable.ended(history, now if at is None else at, now, missed=at is None))

    def record_deleted(self, resource: BillableResource, at: float) -> None:
        """Ends a resource that this fcctl has deleted."""
        history = self._histories().get((resource.project, resource.kind, resource.place, resource.name))
        if history is not None and history.gone is None:
            self._add(billable.ended(history, at, at))

    def standing(self) -> list[ResourceHistory]:
        """The resources that are not known to be gone."""
        return [history for history in self._histories().values() if history.gone is None]

    def _add(self, record: ResourceRecord) -> None:
        self._book.add_resource(record)
        before = self._histories().get(record.key)
        records = [*before.records, record] if before is not None else [record]
        self._histories()[record.key] = billable.histories(records)[-1]

    def _histories(self) -> dict[Key, ResourceHistory]:
        """The newest history of each resource."""
        if self._known is None:
            self._known = {one.last.key: one for one in billable.histories(self._book.resources())}
        return self._known


def _deleted(last: ResourceRecord, cloud: Cloud) -> float | None:
    """When a disk was deleted, as far as the cloud's operations say."""
    if last.kind != "disk":
        return None
    try:
        history = cloud.operations(last.place, last.name)
    except FcctlError:
        return None
    return disk_deleted_at(history, last.name, last.seen)
