"""Reconciles the ledger with the cloud's list of operations, which says when machines were on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.base.errors import FcctlError
from orchestrator.hosts.claims import AuditedProject, recent_records
from orchestrator.machines.cloud import Machine, Operation
from orchestrator.machines.cloud_api import Cloud
from orchestrator.machines.power_history import NEAR_START_S, PowerInterval, times_on
from orchestrator.money import ledger as books
from orchestrator.money import reconcile as accounting
from orchestrator.money.caps import Budget
from orchestrator.money.ledger import Line, UsageRecord
from orchestrator.money.reconcile import Account
from orchestrator.money.usage_recorder import ResourceRecorder, usage_of
from orchestrator.runs.cost.spending import lines
from orchestrator.runs.services import Services


def reconcile(
    services: Services,
    cloud: Cloud,
    place: AuditedProject,
    machines: Sequence[Machine],
    budget: Budget,
    before: Sequence[Line],
) -> tuple[list[Account], list[tuple[str, str]]]:
    """Records what the cloud says of every machine of the ledger in one project, and compares it with the ledger.

    Args:
        machines: those that the cloud lists in the project.
        before: the ledger before the cloud was queried.

    Returns: The accounts, and (what, why) of what could not be queried.
    """
    reconciling = _Reconciling(services, cloud, place, machines, budget)
    learned, unanswered, histories = [], [], []
    for zone, name in reconciling.places():
        try:
            history = cloud.operations(zone, name)
        except FcctlError as error:
            unanswered.append((f"the operations on {name} in {zone}", error.message))
            history = []
        learned += list(reconciling.learn(zone, name, history))
        histories.append(history)
    disks = ResourceRecorder(services.spending, services.clock)
    for history in histories:
        disks.record_operations(history)
    after = lines(services)
    records = services.spending.usage()
    accounts = []
    for record, exists, earlier in learned:
        on = books.spans(_of(records, record.instance_id))
        accounts.append(accounting.account(record, exists, on, before, after, earlier))
    return accounts, unanswered


class _Reconciling:
    def __init__(
        self, services: Services, cloud: Cloud, place: AuditedProject, machines: Sequence[Machine], budget: Budget
    ) -> None:
        self._services, self._cloud, self._place, self._machines = services, cloud, place, machines
        self._budget, self._now = budget, services.clock.now()
        self._records = [record for record in services.spending.usage() if record.project == place.project]

    def places(self) -> list[tuple[str, str]]:
        """(zone, name) of the machines to query: those that a target names, and those in the ledger."""
        listed = {(m.zone, m.name) for m in self._machines if m.name in self._place.names}
        known = {(r.zone, r.name) for r in recent_records(self._services) if r.project == self._place.project}
        return sorted(listed | known)

    def learn(
        self, zone: str, name: str, history: Sequence[Operation]
    ) -> Iterator[tuple[UsageRecord, bool | None, list[PowerInterval]]]:
        """Records what the cloud says of each machine that has, or had, the name in the zone.

        Yields:
            A record of the machine, whether it exists, and when it was on before the ledger knew it.
        """
        for instance_id in self._ids(zone, name):
            machine, exists = self._look(zone, name, instance_id)
            known = _of(self._records, instance_id)
            current = self._record_of(machine)
            if current is not None:
                known.append(current)
            if not known:
                continue
            times = times_on(history, instance_id, machine)
            self._note(known, times, history, exists)
            began = min(record.started for record in known)
            yield known[-1], exists, [time for time in times if time.started < began - NEAR_START_S]

    def _look(self, zone: str, name: str, instance_id: str) -> tuple[Machine | None, bool | None]:
        """The machine, and whether it exists; None: unknown. A machine that no target names any more is in no list."""
        for listed in self._machines:
            if (listed.zone, listed.name, listed.id) == (zone, name, instance_id):
                return listed, True
        try:
            machine = self._cloud.machine(zone, name)
        except FcctlError:
            return None, None
        return (machine, True) if machine is not None and machine.id == instance_id else (None, False)

    def _ids(self, zone: str, name: str) -> list[str]:
        ids = [r.instance_id for r in self._records if (r.zone, r.name) == (zone, name)]
        ids += [m.id for m in self._machines if (m.zone, m.name) == (zone, name)]
        return list(dict.fromkeys(ids))

    def _record_of(self, machine: Machine | None) -> UsageRecord | None:
        """A record of what the cloud says of an existing machine, written to the ledger."""
        target = self._place.target_of(machine) if machine is not None else None
        if machine is None or target is None or machine.started is None:
            return None
        record = usage_of(target, machine, self._budget, self._now)
        self._services.spending.add_usage(record)
        return record

    def _note(
        self,
        known: list[UsageRecord],
        times: Sequence[PowerInterval],
        history: Sequence[Operation],
        exists: bool | None,
    ) -> None:
        corrected = accounting.corrections(known, times, known[-1], self._now)
        corrected += accounting.closings([*known, *corrected], history, self._now)
        if exists is False:
            corrected += accounting.bounds([*known, *corrected], self._now)
        for record in corrected:
            self._services.spending.add_usage(record)


def _of(records: Iterable[UsageRecord], instance_id: str) -> list[UsageRecord]:
    return [record for record in records if record.instance_id == instance_id]
