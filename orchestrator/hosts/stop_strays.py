"""``fcctl hosts audit --stop``: stop machines that are on for nobody, and those of others whose names were typed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.base.errors import FcctlError, NotFoundError, UsageError
from orchestrator.hosts.audit import Audit, release_lost, said
from orchestrator.hosts.claims import active_on, as_target, finding
from orchestrator.hosts.places import is_target, places_of, target_of_plan
from orchestrator.hosts.recover import recover
from orchestrator.machines.provision.release import ReleaseRequest, release
from orchestrator.machines.targets import Target
from orchestrator.money.audit import OTHERS, Finding
from orchestrator.money.caps import Budget
from orchestrator.runs.services import Services

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StopResult:
    """What became of one machine that was to be stopped."""

    finding: Finding
    stopped: bool
    why: str
    #: It is on for somebody by now, and was not to be stopped any more.
    kept: bool = False


def named(audit: Audit, names: Sequence[str]) -> list[Finding]:
    """Those machines of others that are called so; a name that two have is to be typed with its zone, ``ZONE/NAME``.

    Raises:
        NotFoundError: there is none of that name among them.
        UsageError: there are several.
    """
    found = []
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
        found += [f for f in same if f.verdict in OTHERS and f not in found]  # the strays are stopped in any case
    return found


def stop(
    services: Services, targets: Mapping[str, Target], budget: Budget, doomed: Iterable[Finding], *, workspace: str,
) -> list[StopResult]:  # fmt: skip
    """Stop machines, each until it is off. Runs that an fcctl left on them are collected first, as far as they can be.

    Each is looked at once more just before: one that somebody has come to meanwhile stays on. A machine that cannot be
    stopped does not keep the others from it.
    """
    places = list(places_of(services, targets))
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
            ended.append(StopResult(one, False, said(error)))
        else:
            ended.append(StopResult(one, True, done[0].reason or done[0].how))
            for run_id, debt in services.store.owed().items():
                if is_target(target_of_plan(debt), machine):
                    services.store.paid(run_id)
            release_lost(services, cloud, machine.project)
    return ended


def _log(kind: str, **data: object) -> None:
    """Stopping needs no journal: whoever is killed at it leaves a machine that the next audit finds."""
    _LOG.info("%s %s", kind, data)
