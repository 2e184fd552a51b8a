"""The ledger reconciled with the cloud: when its machines were on, as the cloud's own books have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.base.errors import FcctlError
from orchestrator.hosts.places import may_be_there
from orchestrator.machines.cloud import Machine, Operation
from orchestrator.machines.cloud_api import Cloud
from orchestrator.machines.power_history import NEAR_START_S, PowerInterval, times_on
from orchestrator.machines.targets import GcpTarget
from orchestrator.money import ledger as books
from orchestrator.money import reconcile as judgement
from orchestrator.money.caps import Budget
from orchestrator.money.ledger import Line, UsageRecord
from orchestrator.money.reconcile import Account
from orchestrator.money.usage_recorder import ResourceRecorder, usage_of
from orchestrator.runs.cost.spending import lines
from orchestrator.runs.services import Services


@dataclass(frozen=True)
class Listed:
    """What a project's list of machines came to."""

    project: str
    targets: Sequence[GcpTarget]
    machines: Sequence[Machine]

    def target_of(self, name: str) -> GcpTarget | None:
        return next((target for target in self.targets if target.instance == name), None)

    def has(self, zone: str, name: str, instance_id: str) -> Machine | None:
        return next((m for m in self.machines if (m.zone, m.name, m.id) == (zone, name, instance_id)), None)


def reconcile(
    services: Services, cloud: Cloud, listed: Listed, budget: Budget, before: Sequence[Line]
) -> tuple[list[Account], list[tuple[str, str]]]:
    """Every machine of the ledger in one project: what the cloud says of it, written down, against what was there.

    Args:
        before: the ledger before the cloud was asked for anything.

    Returns:
        The accounts, and (what, why) of what could not be asked.
    """
    reconciling = _Reconciling(services, cloud, listed, budget)
    found, unanswered, histories = [], [], []
    for zone, name in reconciling.places():
        try:
            history = cloud.operations(zone, name)
        except FcctlError as error:
            unanswered.append((f"what was done to {name} in {zone}", error.message))
            history = []
        found += list(reconciling.learn(zone, name, history))
        histories.append(history)
    disks = ResourceRecorder(services.spending, services.clock)
    for history in histories:
        disks.record_operations(history)
    after = lines(services)
    told = services.spending.usage()
    accounts = []
    for word, there, earlier in found:
        on = books.spans(_of(told, word.instance_id))
        accounts.append(judgement.account(word, there, on, before, after, earlier))
    return accounts, unanswered


class _Reconciling:
    def __init__(self, services: Services, cloud: Cloud, listed: Listed, budget: Budget) -> None:
        self._services = services
        self._cloud = cloud
        self._listed = listed
        self._budget = budget
        self._now = services.clock.now()
        self._words = [word for word in services.spending.usage() if word.project == listed.project]

    def places(self) -> list[tuple[str, str]]:
        """(zone, name) of all that is to be asked after: what a target names, and what the ledger knows."""
        there = {(m.zone, m.name) for m in self._listed.machines if self._listed.target_of(m.name) is not None}
        known = {
            (word.zone, word.name) for word in may_be_there(self._services) if word.project == self._listed.project
        }
        return sorted(there | known)

    def learn(
        self, zone: str, name: str, history: Sequence[Operation]
    ) -> Iterator[tuple[UsageRecord, bool | None, list[PowerInterval]]]:
        """Write down what the cloud tells of each machine that has, or had, the name there.

        Yields:
            A word on the machine, whether it is there, and when it was on before the ledger knew it.
        """
        for instance_id in self._ids(zone, name):
            machine, there = self._look(zone, name, instance_id)
            known = _of(self._words, instance_id)
            said = self._said(machine)
            if said is not None:
                known.append(said)
            if not known:
                continue
            times = times_on(history, instance_id, machine)
            self._note(known, times, history, there)
            began = min(word.started for word in known)
            yield known[-1], there, [time for time in times if time.started < began - NEAR_START_S]

    def _look(self, zone: str, name: str, instance_id: str) -> tuple[Machine | None, bool | None]:
        """The machine, and whether it is there; None: nobody knows. One that no target names any more is in no list."""
        listed = self._listed.has(zone, name, instance_id)
        if listed is not None:
            return listed, True
        try:
            found = self._cloud.machine(zone, name)
        except FcctlError:
            return None, None
        return (found, True) if found is not None and found.id == instance_id else (None, False)

    def _ids(self, zone: str, name: str) -> list[str]:
        ids = [w.instance_id for w in self._words if (w.zone, w.name) == (zone, name)]
        ids += [m.id for m in self._listed.machines if (m.zone, m.name) == (zone, name)]
        return list(dict.fromkeys(ids))

    def _said(self, machine: Machine | None) -> UsageRecord | None:
        """What a machine that is there says of itself; on disk."""
        target = self._listed.target_of(machine.name) if machine is not None else None
        if machine is None or target is None or machine.started is None:
            return None
        said = usage_of(target, machine, self._budget, self._now)
        self._services.spending.add_usage(said)
        return said

    def _note(
        self, known: list[UsageRecord], times: Sequence[PowerInterval], history: Sequence[Operation], there: bool | None
    ) -> None:
        news = judgement.corrections(known, times, known[-1], self._now)
        news += judgement.closings([*known, *news], history, self._now)
        if there is False:
            news += judgement.bounds([*known, *news], self._now)
        for word in news:
            self._services.spending.add_usage(word)


def _of(words: Iterable[UsageRecord], instance_id: str) -> list[UsageRecord]:
    return [word for word in words if word.instance_id == instance_id]
