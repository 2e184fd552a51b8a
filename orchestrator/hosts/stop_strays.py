"""``fcctl hosts audit --stop``: stops machines without an owner, and those of others that are named."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.base.errors import FcctlError, NotFoundError, UsageError
from orchestrator.hosts.audit import Audit, one_line, release_lost
from orchestrator.hosts.claims import active_on, as_target, finding
from orchestrator.hosts.places import is_target, projects_of, target_of_plan
from orchestrator.hosts.recover import recover
from orchestrator.machines.provision.release import ReleaseRequest, release
from orchestrator.machines.targets import Target
from orchestrator.money.audit import OTHERS, Finding
from orchestrator.money.caps import Budget
from orchestrator.runs.services import Services

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StopResult:
    """The result for one machine that was to be stopped."""

    finding: Finding
    stopped: bool
    why: str
    #: It has an owner by now, and was kept on.
    kept: bool = False


def named(audit: Audit, names: Sequence[str]) -> list[Finding]:
    """The machines of others with these names; an ambiguous name is typed with its zone, ``ZONE/NAME``. Raises
    NotFoundError: there is none of that name; UsageError: there are several."""
    chosen = []
    for name in names:
        candidates = [*audit.others, *audit.strays]
        same = [f for f in candidates if name in (f.machine.name, f"{f.machine.zone}/{f.machine.name}")]
        if not same:
            raise NotFoundError(
                f"no machine {name} is on for somebody else", hint="fcctl hosts audit lists what is on, and for whom"
            )
        if len(same) > 1:
            places = " or ".join(f"{f.machine.zone}/{f.machine.name}" for f in same)
            raise UsageError(f"{len(same)} machines are called {name}", hint=f"type which: {places}")
        chosen += [
            f for f in same if f.verdict in OTHERS and f not in chosen
        ]  # machines without an owner are stopped in any case
    return chosen


def stop(
    services: Services, targets: Mapping[str, Target], budget: Budget, doomed: Iterable[Finding], *, workspace: str,
) -> list[StopResult]:  # fmt: skip
    """Stops machines and waits until each is off. Runs that an fcctl left on them are collected first if possible.

    Each machine is checked again just before: one that has an owner by then is kept on. A machine that cannot be
    stopped does not block the others.
    """
    places = list(projects_of(services, targets))
    ended = []
    for one in doomed:
        machine = one.machine
        place = next(p for p in places if p.project == machine.project)
        try:
            cloud = services.clouds.open(place.targets[0])
            now = cloud.machine(machine.zone, machine.name)
            if now is not None and now.id == machine.id and now.billed:
                again = finding(services, cloud, place, now, budget, workspace)
                if again.verdict not in (one.verdict, "off", "stray"):
                    ended.append(StopResult(one, False, again.why, kept=True))
                    continue
            if left := list(active_on(services, machine)):
                recover(services, left)
            target = place.target_of(machine) or as_target(machine, place)
            done = release(services, target, [ReleaseRequest(machine.zone, machine.id)], "stop", _log)
        except FcctlError as error:
            ended.append(StopResult(one, False, one_line(error)))
        else:
            ended.append(StopResult(one, True, done[0].reason or done[0].how))
            for run_id, debt in services.store.owed().items():
                if is_target(target_of_plan(debt), machine):
                    services.store.paid(run_id)
            release_lost(services, cloud, machine.project)
    return ended


def _log(kind: str, **data: object) -> None:
    """Needs no journal: after a crash the next audit finds the machine."""
    _LOG.info("%s %s", kind, data)
