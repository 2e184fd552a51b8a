"""What is billed, for whom and until when: the verdict behind ``fcctl hosts audit``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.base.clock import iso
from orchestrator.base.errors import ConfigError
from orchestrator.machines.cloud import (
    MANAGED_LABEL,
    RUN_LABEL,
    SNAPSHOT_LABEL,
    WORKSPACE_LABEL,
    BillableResource,
    Machine,
    Operation,
    Power,
)
from orchestrator.machines.power_history import last_start
from orchestrator.machines.provision.actions import UP_PREFIX, started_by_hosts_up
from orchestrator.machines.provision.find import is_fcctls
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.billable import is_ours
from orchestrator.money.caps import FENCE_LATENESS_S, MINIMUM_BILLED_S, Budget
from orchestrator.money.prices.machine import machine_price

Verdict = Literal["off", "run", "session", "kept", "up", "foreign", "person", "stray"]
#: In use by others: an audit stops such a machine only by its name.
OTHERS: frozenset[Verdict] = frozenset({"foreign", "person"})
#: For these, the machine and the cloud's operations may say more than the journals here.
DOUBTFUL: frozenset[Verdict] = frozenset({"foreign", "person", "stray"})


@dataclass(frozen=True)
class Claim:
    """What a run has to do with a machine."""

    run_id: str
    #: ``followed`` by a living fcctl; ``alive`` on the machine, followed or not; ``busy``: the same, and none of this
    #: workspace's; ``left`` by an fcctl that is gone, and the machine does not say that it is active; ``over``. And
    #: what is no run: a ``session``, and ``up`` for ``hosts up``.
    state: Literal["followed", "alive", "busy", "session", "up", "left", "over"]
    #: The newest line of its journal: what fcctl did last, or was about to.
    line: str | None = None
    #: Until when the machine is kept for the next run, epoch seconds.
    kept_until: float | None = None
    #: Between when it had the machine started, epoch seconds of the cloud's clock; None: it did not.
    turned_on: tuple[float, float] | None = None

    def is_of(self, machine: Machine) -> bool:
        """Whether the machine is on since then; one that never started: was made then."""
        since = machine.started if machine.started is not None else machine.created
        if self.turned_on is None or since is None:
            return False
        return self.turned_on[0] <= since <= self.turned_on[1]


@dataclass(frozen=True)
class Evidence:
    """What others know of a machine: the cloud of its last start, the machine itself of its runs."""

    started_by: Literal["fcctl", "person", "unknown"] = "unknown"
    #: Who that was, as the cloud names them.
    user: str = ""
    #: Whether the cloud's request id proves it; else journals and labels make it likely.
    certain: bool = False
    #: Whether the machine listed its active runs.
    answered: bool = False


NO_EVIDENCE = Evidence()


@dataclass(frozen=True)
class Finding:
    """The audit's finding about one machine. Dollars are None without a price."""

    machine: Machine
    verdict: Verdict
    why: str
    since: float | None = None
    usd_per_hour: float | None = None
    usd_so_far: float | None = None
    #: When the cloud itself ends the billing, epoch seconds, and what the machine can have cost by then.
    fence: float | None = None
    usd_by_then: float | None = None
    #: Of a machine that is off: what its disks and addresses cost a month all the same.
    usd_per_month: float | None = None

    @property
    def in_order(self) -> bool:
        """Whether somebody uses it, as far as known."""
        return self.verdict != "stray"


def judge(
    machine: Machine, claims: Sequence[Claim], rate: float | None, now: float, workspace: str | None = None,
    evidence: Evidence = NO_EVIDENCE,
) -> Finding:  # fmt: skip
    """Returns the finding about one machine. ``claims`` are about this machine; ``rate`` is dollars per hour;
    ``workspace`` is this one's name in labels."""
    verdict, why = _verdict(machine, claims, now, workspace, evidence)
    if not machine.billed:
        return Finding(machine, verdict, why, machine.stopped, rate)
    since = machine.started if machine.started is not None else machine.created
    if machine.power is Power.STARTING and machine.started is not None:
        since = None  # that is the time of an earlier start
    return Finding(
        machine,
        verdict,
        why,
        since,
        rate,
        _dollars(rate, since, now),
        machine.deadline,
        None if machine.deadline is None else _dollars(rate, since, machine.deadline + FENCE_LATENESS_S),
    )


def _dollars(rate: float | None, since: float | None, until: float) -> float | None:
    if rate is None or since is None:
        return None
    return max(MINIMUM_BILLED_S, until - since) / 3600 * rate


def _verdict(
    machine: Machine, claims: Sequence[Claim], now: float, workspace: str | None, evidence: Evidence
) -> tuple[Verdict, str]:
    if not machine.billed:
        return "off", "suspended: the cloud bills its memory" if machine.power is Power.SUSPENDED else "stopped"
    for claim in claims:
        if claim.state == "followed":
            return "run", f"{claim.run_id} runs on it, followed by an fcctl"
        if claim.state == "alive":
            return "run", f"{claim.run_id} runs on it; no fcctl follows that run (fcctl attach {claim.run_id})"
        if claim.state == "session":
            return "session", f"session {claim.run_id} keeps it on (fcctl session status)"
    if machine.power in (Power.STOPPING, Power.SUSPENDING):
        return "off", f"stopping ({machine.status})"
    busy = next((claim.run_id for claim in claims if claim.state == "busy"), None)
    if busy is not None:
        return "foreign", f"{busy} runs on it, which is not a run of this workspace"
    kept = max((c.kept_until for c in claims if c.kept_until is not None), default=0.0)
    if kept > now:
        return "kept", "kept on for the next run (release = keep in the target)"
    is_up = any(claim.state == "up" for claim in claims) and (machine.deadline or 0.0) > now
    if is_up or started_by_hosts_up(machine, now):
        return "up", "started by fcctl hosts up"
    return _of_others(machine, claims, workspace, evidence) or _stray(claims, machine.labels)


def _of_others(
    machine: Machine, claims: Sequence[Claim], workspace: str | None, evidence: Evidence
) -> tuple[Verdict, str] | None:
    """The verdict if it is on for somebody outside this workspace; None: for nobody, as far as known."""
    if evidence.started_by == "person":
        since = iso(machine.started)
        return "person", f"started by {evidence.user or 'a person'}{f' at {since}' if since else ''}, not by fcctl"
    label, whose = machine.labels.get(RUN_LABEL, ""), machine.labels.get(WORKSPACE_LABEL)
    if label and whose not in (None, workspace) and all(claim.run_id != label for claim in claims):
        known = "no run uses it now" if evidence.answered else "fcctl cannot see whether a run uses it"
        return "foreign", f"started for {label} of another workspace, {whose}; {known}"
    if evidence.started_by == "fcctl" and (claims or not label) and not any(claim.is_of(machine) for claim in claims):
        return "foreign", "started by fcctl, but for no known run of this workspace"
    if not claims and not label and MANAGED_LABEL not in machine.labels:
        return "person", "a target names it, but fcctl did not start it; a person probably did"
    return None


def _stray(claims: Sequence[Claim], labels: Mapping[str, str]) -> tuple[Verdict, str]:
    for claim in claims:
        last = f"; the last line of its journal: {claim.line}" if claim.line else ""
        if claim.state == "left":
            return "stray", f"the fcctl that followed {claim.run_id} has ended{last}"
        return "stray", f"{claim.run_id} has ended{last}"
    label = labels.get(RUN_LABEL, "")
    if label.startswith(UP_PREFIX):
        return "stray", "started by fcctl hosts up; its time has ended, or it has no time limit"
    if label:
        return "stray", f"last started for {label}, which this workspace does not know"
    return "stray", "created by fcctl; no run of this workspace uses it"


def start_of(machine: Machine, operations: Sequence[Operation], claims: Sequence[Claim]) -> Evidence:
    """Returns who started the machine last, from its ``operations``, newest first. ``claims`` decide for a cloud whose
    operations have no request ids."""
    last = last_start(operations, machine.id)
    if last is None:
        return NO_EVIDENCE
    if is_fcctls(last.request_id):
        return Evidence("fcctl", last.user, certain=True)
    if any(is_fcctls(op.request_id) for op in operations if op.target_id in ("", machine.id)):
        return Evidence("person", last.user, certain=True)
    if any(claim.is_of(machine) for claim in claims):
        return Evidence("fcctl", last.user)
    label = machine.labels.get(RUN_LABEL)
    is_labelled = label is not None or MANAGED_LABEL in machine.labels
    if is_labelled and all(claim.run_id != label for claim in claims):
        return NO_EVIDENCE  # its labels say that fcctl did, and nothing says otherwise
    return Evidence("person", last.user)


# ---------------------------------------------------------------------------------------------------------- prices
def rate_of(machine: Machine, target: CloudTarget | None, budget: Budget) -> float | None:
    """Returns dollars per hour of the machine: its target's or the budget's price, else the list price; None if
    unknown."""
    try:
        return machine_price(machine.hardware, budget, target).usd
    except ConfigError:
        return None


# -------------------------------------------------------------------------------------------------------- resources
@dataclass(frozen=True)
class Orphan:
    """An unused resource, and its dollars per month; None without a price."""

    thing: BillableResource
    usd_per_month: float | None


def orphans(resources: Iterable[BillableResource], names: Iterable[str]) -> list[BillableResource]:
    """What nothing uses, of what fcctl made or what is called after one of the machines ``names``."""
    known = frozenset(names)
    return [one for one in resources if not one.users and is_ours(one, known)]


def made_by_rebuild(resource: BillableResource) -> bool:
    """Whether it is a snapshot that was made because a zone had no stock."""
    return resource.kind == "snapshot" and SNAPSHOT_LABEL in resource.labels


def older_copies(machines: Iterable[Machine]) -> dict[tuple[str, str], str]:
    """Maps (zone, name) of each stopped machine to the zone of a copy that was on later: a rebuild made that one of its
    disk."""
    newest: dict[str, Machine] = {}
    copies = list(machines)
    for machine in copies:
        known = newest.get(machine.name)
        if known is None or (machine.started or 0.0) > (known.started or 0.0):
            newest[machine.name] = machine
    return {
        (one.zone, one.name): newest[one.name].zone
        for one in copies
        if not one.billed and newest[one.name] is not one
    }  # fmt: skip


def delete_machine_command(machine: Machine) -> str:
    """What ends the costs of a machine that is off; fcctl itself deletes no disk."""
    return (
        f"gcloud compute instances delete {machine.name} --zone {machine.zone} --project {machine.project}"
        " --delete-disks=all"
    )


def delete_command(resource: BillableResource) -> str:
    """What gets rid of it; fcctl itself deletes no disk."""
    if made_by_rebuild(resource):
        return "fcctl hosts prune"
    place = {"disk": f"--zone {resource.place}", "address": f"--region {resource.place}", "snapshot": ""}
    if resource.kind == "address" and resource.place == "global":
        place["address"] = "--global"
    noun = {"disk": "disks", "address": "addresses", "snapshot": "snapshots"}[resource.kind]
    words = ["gcloud compute", noun, "delete", resource.name, place[resource.kind], f"--project {resource.project}"]
    return " ".join(word for word in words if word)
