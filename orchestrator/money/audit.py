"""What is billed, for whom and until when: the judgement behind ``fcctl hosts audit``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.base.errors import ConfigError
from orchestrator.machines.cloud import (
    MANAGED_LABEL,
    RUN_LABEL,
    SNAPSHOT_LABEL,
    WORKSPACE_LABEL,
    Leftover,
    Machine,
    Power,
)
from orchestrator.machines.provision.spec import UP_PREFIX, woken_by_hand
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.caps import FENCE_LATENESS_S, MINIMUM_BILLED_S, Budget
from orchestrator.money.machine_price import machine_price
from orchestrator.money.storage_prices import belongs

Verdict = Literal["off", "run", "session", "kept", "up", "foreign", "stray"]
#: These are nobody's business: they cost nothing by the hour, or somebody wants them on.
IN_ORDER: frozenset[Verdict] = frozenset({"off", "run", "session", "kept", "up"})


@dataclass(frozen=True)
class Claim:
    """What a run of this workspace has to do with a machine."""

    run_id: str
    #: ``followed`` by a living fcctl; ``alive`` on the machine, followed or not; ``left`` by an fcctl that is gone, and
    #: the machine does not say that the run goes on; ``over``.
    state: Literal["followed", "alive", "session", "left", "over"]
    #: The newest line of its journal: what fcctl did last, or was about to.
    line: str | None = None
    #: A machine that was kept for the next run: until then, epoch seconds.
    kept_until: float | None = None


@dataclass(frozen=True)
class Finding:
    """One machine, and what is to be said of it. Dollars are None where no price is known."""

    machine: Machine
    verdict: Verdict
    why: str
    since: float | None = None
    usd_per_hour: float | None = None
    usd_so_far: float | None = None
    #: When the cloud itself ends the billing, epoch seconds, and what the machine can have cost by then.
    fence: float | None = None
    usd_by_then: float | None = None

    @property
    def in_order(self) -> bool:
        return self.verdict in IN_ORDER


def judge(
    machine: Machine, claims: Sequence[Claim], rate: float | None, now: float, workspace: str | None = None
) -> Finding:
    """What to think of one machine.

    Args:
        claims: of runs of this workspace, about this very machine.
        rate: dollars an hour while it is on.
        now: epoch seconds.
        workspace: this one's name as labels have it.
    """
    verdict, why = _verdict(machine, claims, now, workspace)
    if not machine.billed:
        return Finding(machine, verdict, why, machine.stopped, rate)
    since = machine.started if machine.started is not None else machine.created
    fence = machine.deadline
    return Finding(
        machine,
        verdict,
        why,
        since,
        rate,
        _dollars(rate, since, now),
        fence,
        None if fence is None else _dollars(rate, since, fence + FENCE_LATENESS_S),
    )


def _dollars(rate: float | None, since: float | None, until: float) -> float | None:
    if rate is None or since is None:
        return None
    return max(MINIMUM_BILLED_S, until - since) / 3600 * rate


def _verdict(machine: Machine, claims: Sequence[Claim], now: float, workspace: str | None) -> tuple[Verdict, str]:
    if not machine.billed:
        return "off", "suspended: its memory is billed" if machine.power is Power.SUSPENDED else "stopped"
    for claim in claims:
        if claim.state == "followed":
            return "run", f"an fcctl follows {claim.run_id}"
        if claim.state == "alive":
            return "run", f"{claim.run_id} goes on there, and nobody follows it (fcctl attach {claim.run_id})"
        if claim.state == "session":
            return "session", f"{claim.run_id} keeps it warm (fcctl session status)"
    if machine.power in (Power.STOPPING, Power.SUSPENDING):
        return "off", f"on its way down ({machine.status})"
    kept = max((c.kept_until for c in claims if c.kept_until is not None), default=0.0)
    if kept > now:
        return "kept", "kept for the next run, as the target says"
    if woken_by_hand(machine, now):
        return "up", "woken by fcctl hosts up"
    return _stray(machine, claims, machine.labels.get(RUN_LABEL, ""), workspace)


def _stray(machine: Machine, claims: Sequence[Claim], label: str, workspace: str | None) -> tuple[Verdict, str]:
    whose = machine.labels.get(WORKSPACE_LABEL)
    if not claims and label and whose and whose != workspace:
        return "foreign", f"started for {label} of the workspace {whose}, which is not this one"
    for claim in claims:
        last = f"; the last of its journal: {claim.line}" if claim.line else ""
        if claim.state == "left":
            return "stray", f"the fcctl that ran {claim.run_id} is gone{last}"
        return "stray", f"{claim.run_id} is over{last}"
    if label.startswith(UP_PREFIX):
        return "stray", "woken by fcctl hosts up, and past its time or without a limit"
    if label:
        return "stray", f"last started for {label}, of which nothing is known here"
    if MANAGED_LABEL in machine.labels:
        return "stray", "made by fcctl, and no run of this workspace is on it"
    return "stray", "a target names it, and no run of this workspace is on it: started by hand?"


# ---------------------------------------------------------------------------------------------------------- prices
def rate_of(machine: Machine, target: GcpTarget | None, budget: Budget) -> float | None:
    """Dollars an hour of the machine as the cloud shows it: as the target of its name or the budget says, else the list
    price of what it is made of; None if nobody knows."""
    try:
        return machine_price(machine.hardware, budget, target).usd
    except ConfigError:
        return None


# -------------------------------------------------------------------------------------------------------- leftovers
@dataclass(frozen=True)
class Orphan:
    """A thing that nothing uses, and what it costs a month; None where no price is known."""

    thing: Leftover
    usd_per_month: float | None


def orphans(leftovers: Iterable[Leftover], names: Iterable[str]) -> list[Leftover]:
    """What nothing uses, of what fcctl made or what is called after one of the machines ``names``."""
    known = frozenset(names)
    return [one for one in leftovers if not one.users and belongs(one, known)]


def made_by_rebuild(leftover: Leftover) -> bool:
    """Whether it is a snapshot that was made because a zone had no stock: the copy of a disk that stayed."""
    return leftover.kind == "snapshot" and SNAPSHOT_LABEL in leftover.labels


def delete_command(leftover: Leftover) -> str:
    """What gets rid of it; fcctl itself deletes no disk."""
    if made_by_rebuild(leftover):
        return "fcctl hosts prune"
    place = {"disk": f"--zone {leftover.place}", "address": f"--region {leftover.place}", "snapshot": ""}
    if leftover.kind == "address" and leftover.place == "global":
        place["address"] = "--global"
    noun = {"disk": "disks", "address": "addresses", "snapshot": "snapshots"}[leftover.kind]
    words = ["gcloud compute", noun, "delete", leftover.name, place[leftover.kind], f"--project {leftover.project}"]
    return " ".join(word for word in words if word)
