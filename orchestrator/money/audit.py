"""The rules of ``fcctl hosts audit``: which machines are billed, for which owner and until when; and differences
between the ledger and the cloud's list of operations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.base.clock import iso
from orchestrator.base.errors import ConfigError
from orchestrator.machines.cloud import (
    MANAGED_LABEL,
    RUN_LABEL,
    WORKSPACE_LABEL,
    Machine,
    Operation,
    Power,
)
from orchestrator.machines.power_history import NEAR_START_S, PowerInterval, last_start, off_at
from orchestrator.machines.provision.actions import UP_PREFIX, started_by_hosts_up
from orchestrator.machines.provision.ready import is_fcctls
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.caps import FENCE_LATENESS_S, MINIMUM_BILLED_S, Budget
from orchestrator.money.ledger import SLIGHT_S, Line, UsageRecord, latest
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
    #: The API that lists it; None: the provider's own.
    api_endpoint: str | None = None

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


#: By how much a stop that was seen may be from the end of the stop's operation without being another, seconds.
SAME_STOP_S = 60.0


# ------------------------------------------------------------------------------------------- what the ledger learns
def closings(known: Iterable[UsageRecord], operations: Sequence[Operation], now: float) -> list[UsageRecord]:
    """Records that end starts whose end was not seen, from the cloud's operations."""
    records = []
    for record in latest(known):
        if record.stopped is not None and not record.bound:
            continue
        at = off_at(operations, record.instance_id, record.started)
        if at is not None:
            records.append(record.model_copy(update={"stopped": at, "seen": now, "bound": False}))
    return records


def corrections(
    known: Iterable[UsageRecord], times: Sequence[PowerInterval], like: UsageRecord, now: float
) -> list[UsageRecord]:
    """Returns usage records for one machine that the ledger lacks, or has with other times than the cloud, from its
    first ``known`` record on. ``times`` are from the cloud; ``like`` gives price and place."""
    seen = latest(known)
    records, same_as = [], _paired(seen, times)
    for on in times:
        same = same_as.get(on)
        if same is None:
            if not seen or on.started > seen[0].started:
                new = {"started": on.started, "stopped": on.stopped, "seen": now, "user": on.user, "bound": False}
                records.append(like.model_copy(update=new))
        elif _is_news(same, on):
            new = {"stopped": on.stopped, "seen": now, "user": on.user or same.user, "bound": False}
            records.append(same.model_copy(update=new))
    return records


def _paired(seen: Sequence[UsageRecord], times: Sequence[PowerInterval]) -> dict[PowerInterval, UsageRecord]:
    """Matches records and times, the nearest starts first, each once."""
    pairs = [(abs(s.started - on.started), s, on) for s in seen for on in times]
    paired: dict[PowerInterval, UsageRecord] = {}
    for apart, record, on in sorted(pairs, key=lambda pair: pair[0]):
        if apart <= NEAR_START_S and on not in paired and record not in paired.values():
            paired[on] = record
    return paired


def _is_news(known: UsageRecord, on: PowerInterval) -> bool:
    if on.stopped is None:
        return False
    return known.stopped is None or known.bound or abs(known.stopped - on.stopped) > SAME_STOP_S


def bounds(known: Iterable[UsageRecord], now: float) -> list[UsageRecord]:
    """Returns records that end the machine's open times at its deadline plus the late-stop allowance, or now."""
    records = []
    for record in latest(known):
        if record.stopped is None:
            limit = min(now, record.latest_end)
            records.append(record.model_copy(update={"stopped": max(limit, record.started), "seen": now,
                                                     "bound": True}))  # fmt: skip
    return records


def learned(
    known: Sequence[UsageRecord], history: Sequence[Operation], times: Sequence[PowerInterval], there: bool | None,
    now: float,
) -> list[UsageRecord]:  # fmt: skip
    """Returns what the ledger learns of one machine, of which it has the ``known`` records: what the cloud has
    otherwise; without a word of the cloud on a deleted machine (not ``there``), its latest possible end."""
    records = corrections(known, times, known[-1], now)
    records += closings([*known, *records], history, now)
    return records + bounds([*known, *records], now) if there is False else records


# --------------------------------------------------------------------------------------------- what the audit shows
@dataclass(frozen=True)
class Time:
    """One time of being on, and the seconds of it that runs and sessions of this workspace used."""

    span: UsageRecord
    used_s: float

    @property
    def for_nobody(self) -> bool:
        return self.used_s < SLIGHT_S


@dataclass(frozen=True)
class Account:
    """One machine in the cloud's books and in ours."""

    #: The newest of the ledger.
    record: UsageRecord
    #: Whether the cloud has it still; None: that part of the cloud did not answer.
    there: bool | None
    times: tuple[Time, ...]
    #: What the ledger had before the audit, which added what the cloud has beyond it.
    ledger_s: float
    ledger_usd: float
    #: What runs claim beyond what the machine was on; it is not in the ledger.
    beyond_s: float
    beyond_usd: float
    #: When it was on before the ledger's first record; not in the ledger.
    earlier: tuple[PowerInterval, ...] = ()

    @property
    def cloud_s(self) -> float:
        return sum(time.span.billed_s for time in self.times)

    @property
    def cloud_usd(self) -> float:
        return sum(time.span.usd(time.span.billed_s) for time in self.times)

    @property
    def difference_s(self) -> float:
        """What the ledger had beyond the cloud; below zero: what it lacked."""
        return self.ledger_s - self.cloud_s

    @property
    def difference_usd(self) -> float:
        return self.ledger_usd - self.cloud_usd

    @property
    def agrees(self) -> bool:
        return abs(self.difference_s) < SLIGHT_S and abs(self.beyond_s) < SLIGHT_S


def account(
    record: UsageRecord, there: bool | None, on: Sequence[UsageRecord], before: Iterable[Line], after: Iterable[Line],
    earlier: Sequence[PowerInterval] = (),
) -> Account:  # fmt: skip
    """Returns the account of one machine: ``on`` as the cloud has it, the ledger ``before`` and ``after`` the cloud was
    asked, and times ``earlier`` than the ledger's first record."""
    had = [line for line in before if line.machine == record.machine and line.what is None]
    has = [line for line in after if line.machine == record.machine and line.what is None]
    used = {span.started: 0.0 for span in on}
    for line in has:
        if line.run_id is not None and line.on_since in used:
            used[line.on_since] += line.seconds
    beyond = [(line.beyond_s, line.usd / line.seconds * line.beyond_s) for line in has if line.beyond_s]
    return Account(
        record, there, tuple(Time(span, min(used[span.started], span.billed_s)) for span in on),
        sum(line.seconds for line in had), sum(line.usd for line in had),
        sum(seconds for seconds, _ in beyond), sum(usd for _, usd in beyond), tuple(earlier),
    )  # fmt: skip
