"""The ledger: every billed second of a machine belongs to a run and an activity, or is ``idle``. Pure. Runs say what
they used; the cloud says how long machines were on, and that is the bill: runs that claim more are scaled down, and
what no run used is idle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pydantic import BaseModel

from orchestrator.base.clock import epoch
from orchestrator.base.models import KEPT
from orchestrator.machines.power_history import NEAR_START_S
from orchestrator.money.caps import FENCE_LATENESS_S, MINIMUM_BILLED_S
from orchestrator.results.records import CostRecord, MachineRecord

#: How far a line can be relied on: it is what the cloud said; it is computed from what the cloud said once; it cannot
#: have been more, and may have been less; it costs something, and no price is known.
Sure = Literal["known", "estimated", "upper_bound", "unpriced"]
IDLE = "idle"
#: Whose it is that no target has.
STANDING = "(project)"
#: Why a machine's seconds may be too many.
BOUND = "the time of the machine's stop is unknown: counted until its time limit"
#: What a line is for beside a machine's seconds.
ADDRESS = "external address"
EGRESS = "estimated from the size of the results, at the highest list price"
#: Smaller differences do not count, seconds.
SLIGHT_S = 1.0
#: How far a run's start of a machine may be from the cloud's, seconds.
NEAR_S = 900.0


class RunUsage(BaseModel):
    """What a complete run cost, as the ledger needs it: it survives the run's own files."""

    model_config = KEPT

    run_id: str
    job: str
    target: str
    created: str
    started: str | None = None
    cost: CostRecord
    machine: MachineRecord | None = None
    #: The schedule's firing that it was started for.
    firing: str | None = None


class UsageRecord(BaseModel):
    """What the cloud said of one start of a machine at one moment. Times are epoch seconds of the cloud's clock."""

    model_config = KEPT

    project: str
    zone: str
    name: str
    instance_id: str
    target: str
    #: None: no price is known.
    usd_per_hour: float | None
    started: float
    #: None: it was on when this was seen.
    stopped: float | None = None
    seen: float
    #: When the cloud was to stop it by itself.
    fence: float | None = None
    #: ``stopped`` is an upper bound: the real time is unknown.
    bound: bool = False
    #: Who requested the start, as the cloud names them; empty: unknown.
    user: str = ""
    #: Nobody pays: it is the sandbox's.
    emulated: bool = False
    #: Its external address, while it is on; 0: it has none, or a static one that is billed by itself.
    address_usd_per_hour: float = 0.0
    #: The API that was asked; None: Google's, or an older version's record.
    api_endpoint: str | None = None
    #: The kind of its target, which names its provider.
    target_kind: str = "gcp"

    @property
    def machine(self) -> str:
        return f"{self.name} ({self.instance_id})"

    @property
    def is_on(self) -> bool:
        return self.stopped is None

    @property
    def until(self) -> float:
        """When it went off; if it is still on, when that was seen last, which a wrong clock here may put too late."""
        return self.stopped if self.stopped is not None else max(min(self.seen, self.latest_end), self.started)

    @property
    def latest_end(self) -> float:
        """When the cloud has stopped it at the latest; infinite if it never does."""
        return math.inf if self.fence is None else self.fence + FENCE_LATENESS_S

    def is_same_start(self, other: UsageRecord) -> bool:
        return (self.instance_id, round(self.started)) == (other.instance_id, round(other.started))

    def priced_as(self, other: UsageRecord) -> UsageRecord:
        prices = {name: getattr(other, name) for name in ("usd_per_hour", "address_usd_per_hour")}
        return self.model_copy(update=prices)

    @property
    def billed_s(self) -> float:
        return max(MINIMUM_BILLED_S, self.until - self.started)

    def usd(self, seconds: float) -> float:
        return seconds / 3600 * (self.usd_per_hour or 0.0)


@dataclass(frozen=True)
class Line:
    """Some seconds of one machine, and what they were for."""

    start: float  # epoch seconds
    seconds: float
    usd: float
    activity: str
    target: str
    run_id: str | None = None
    job: str | None = None
    machine: str | None = None
    emulated: bool = False
    #: A disk, a snapshot, an address, egress. None: these are seconds of a machine.
    what: str | None = None
    sure: Sure = "known"
    #: What it is that is not known.
    why: str = ""
    #: When the machine's time of being on began that this is billed for.
    on_since: float | None = None
    #: What the run claims beyond the bill.
    beyond_s: float = 0.0

    @property
    def stands(self) -> bool:
        """Whether it costs while no machine is on."""
        return self.what is not None and self.machine is None


def latest(records: Iterable[UsageRecord]) -> list[UsageRecord]:
    """The latest record of each start, the oldest start first. A known stop counts before a bound."""
    starts: dict[tuple[str, int], UsageRecord] = {}
    for record in records:
        key = (record.instance_id, round(record.started))
        known = starts.get(key)
        if known is None or _strength(record) >= _strength(known):
            starts[key] = record
    return sorted(starts.values(), key=lambda one: (one.started, one.instance_id))


def _strength(record: UsageRecord) -> tuple[bool, bool, float]:
    return record.stopped is not None, not record.bound, record.seen


def spans(records: Iterable[UsageRecord]) -> list[UsageRecord]:
    """The times that machines were on, from RUNNING to TERMINATED, the oldest first. One ends when the machine was
    started again: it was off in between."""
    later: dict[str, float] = {}
    times = []
    for one in reversed(latest(records)):
        begun = later.get(one.instance_id)
        times.append(one if begun is None else one.model_copy(update={"stopped": min(one.until, begun)}))
        later[one.instance_id] = one.started
    return times[::-1]


@dataclass(frozen=True)
class _Use:
    """What a run says of one time that a machine was on for it: lines without gaps between them."""

    lines: list[Line]
    #: When the cloud had started the machine; None: unknown.
    started: float | None = None
    #: None: the run does not say.
    instance_id: str | None = None


class _Time(NamedTuple):
    since: float  # epoch seconds
    longest: float = math.inf  # seconds
    #: When the cloud had started the machine.
    started: float | None = None
    instance_id: str | None = None
    machine: str | None = None


def _uses(record: RunUsage) -> list[_Use]:
    """What one run used, by activity, in the order of its breakdown; a time while its machine was off is left out."""
    sure: Sure = "upper_bound" if record.cost.upper_bound else "known"
    costs = [(cost.activity, cost.seconds, cost.usd) for cost in record.cost.breakdown if cost.seconds > 0]
    uses = []
    for begun, longest, started, instance_id, machine in _times(record):
        lines: list[Line] = []
        start, room = begun, longest
        while costs and room > 1e-9:
            activity, seconds, usd = costs.pop(0)
            taken = min(seconds, room)
            if taken < seconds:
                costs.insert(0, (activity, seconds - taken, usd * (seconds - taken) / seconds))
            lines.append(
                Line(start, taken, usd * taken / seconds, activity, record.target, record.run_id, record.job, machine,
                     record.cost.emulated, sure=sure, why=BOUND if sure == "upper_bound" else "")
            )  # fmt: skip
            start, room = start + taken, room - taken
        uses.append(_Use(lines, started, instance_id))
    return [use for use in uses if use.lines]


def _times(record: RunUsage) -> list[_Time]:
    """Each time that the machine was on for the run; the last one has no end."""
    begun = epoch(record.started) or epoch(record.created) or 0.0
    machine = record.machine
    if machine is None:
        return [_Time(begun)]
    own = machine.instance_id, f"{machine.name} ({machine.instance_id})"
    times = [
        _Time(
            epoch(s.began) or begun, s.seconds, epoch(s.started),
            *((s.instance_id, f"{s.name} ({s.instance_id})") if s.instance_id else own),
        )
        for s in machine.sittings
        if s.seconds > 0
    ]  # fmt: skip
    if not times:
        return [_Time(epoch(machine.began) or begun, math.inf, None, *own)]
    return [*times[:-1], times[-1]._replace(longest=math.inf)]


def ledger(usages: Iterable[RunUsage], power: Iterable[UsageRecord]) -> list[Line]:
    """All lines, oldest first. Of a machine whose times of being on are known, they add up to the cloud's bill."""
    lines: list[Line] = []
    used: dict[str, list[_Use]] = {}
    on: dict[str, list[UsageRecord]] = {}
    for span in spans(power):
        on.setdefault(span.instance_id, []).append(span)
    for record in usages:
        uses = _uses(record)
        if record.machine is None and (likely := _likely(uses, on)) is not None:
            uses = [
                _Use([replace(line, machine=likely.machine) for line in use.lines], likely.started, likely.instance_id)
                for use in uses
            ]
        for use in uses:
            if use.instance_id in on:
                used.setdefault(use.instance_id, []).append(use)
            else:
                lines += use.lines
        if record.cost.egress_usd > 0:
            lines.append(_egress(record))
    for instance_id, of_machine in on.items():
        lines += shared(of_machine, used.get(instance_id, []))
    return sorted(lines, key=lambda line: (line.start, line.run_id or ""))


def _egress(record: RunUsage) -> Line:
    at, machine = epoch(record.started) or epoch(record.created) or 0.0, record.machine
    return Line(at, 0.0, record.cost.egress_usd, "egress", record.target, record.run_id, record.job,
                None if machine is None else f"{machine.name} ({machine.instance_id})",
                emulated=record.cost.emulated, what="egress", sure="estimated", why=EGRESS)  # fmt: skip


def _likely(uses: Sequence[_Use], on: Mapping[str, Sequence[UsageRecord]]) -> UsageRecord | None:
    """The machine that a run had started without reaching it: its target's, at that time."""
    if not uses:
        return None
    first, last = uses[0].lines[0], uses[-1].lines[-1]
    start, end = first.start, last.start + last.seconds

    def gap(span: UsageRecord) -> float:
        return max(span.started - end, start - (math.inf if span.is_on else span.until))

    near = [span for of_one in on.values() for span in of_one if span.target == first.target and gap(span) <= NEAR_S]
    return min(near, key=gap, default=None)


def shared(on: Sequence[UsageRecord], uses: Iterable[_Use]) -> list[Line]:
    """Divides the bill of each start among the runs that used it; the rest is ``idle``. A run on a start that the cloud
    never showed keeps its own account."""
    shares: list[list[Line]] = [[] for _ in on]
    lines: list[Line] = []
    for use in uses:
        first = _start_of(use, on)
        if first is None:
            lines += use.lines
            continue
        for line in _moved(use.lines, on[first]):
            for number, part in _pieces(line, on, first):
                shares[number].append(part)
    for span, own in zip(on, shares, strict=True):
        lines += _billed(span, own)
        if span.address_usd_per_hour > 0 and span.until > span.started:
            usd = (span.until - span.started) / 3600 * span.address_usd_per_hour
            lines.append(Line(span.started, span.until - span.started, usd, "address", span.target,
                              machine=span.machine, emulated=span.emulated, what=ADDRESS))  # fmt: skip
    return lines


def _start_of(use: _Use, on: Sequence[UsageRecord]) -> int | None:
    """Which start of the machine a run used: the one that it names, else the last one before it began."""
    if use.started is not None:
        apart, number = min((abs(span.started - use.started), number) for number, span in enumerate(on))
        return number if apart <= NEAR_START_S else None
    began = use.lines[0].start + SLIGHT_S
    return max((number for number, span in enumerate(on) if span.started <= began), default=0)


def _moved(lines: Sequence[Line], span: UsageRecord) -> Iterator[Line]:
    """Moves lines into the time that the machine was on: this computer's clock may be wrong."""
    end = math.inf if span.is_on else span.started + span.billed_s
    began, seconds = lines[0].start, sum(line.seconds for line in lines)
    inside = began if span.started <= began < end else max(span.started, min(began, end - seconds))
    return (replace(line, start=inside + (line.start - began)) for line in lines)


def _pieces(line: Line, on: Sequence[UsageRecord], number: int) -> Iterator[tuple[int, Line]]:
    """A line cut where the machine was started again; what the minute's minimum adds to a start is of that start."""
    while line.seconds > 1e-6:
        span, later = on[number], on[number + 1 :]
        room = (max(later[0].started, span.started + span.billed_s) if later else math.inf) - line.start
        if room > 1e-6:
            taken = min(room, line.seconds)
            yield number, replace(line, seconds=taken, usd=line.usd * taken / line.seconds)
            rest = line.seconds - taken
            line = replace(line, start=line.start + taken, seconds=rest, usd=line.usd * rest / line.seconds)
        number += 1


def _billed(span: UsageRecord, own: Sequence[Line]) -> Iterator[Line]:
    """One start: its runs' lines made to fit the bill, and what none of them used."""
    claimed = sum(line.seconds for line in own)
    # Of a machine that is still on, its runs know more than the last record.
    billed = max(span.billed_s, claimed) if span.is_on else span.billed_s
    fits = bool(own) and billed - claimed < SLIGHT_S
    scale = billed / claimed if fits else 1.0
    for line in own:
        seconds = line.seconds * scale
        usd = line.usd * scale if span.usd_per_hour is None else span.usd(seconds)
        beyond = max(0.0, line.seconds - seconds)
        yield replace(line, seconds=seconds, usd=usd, on_since=span.started, beyond_s=beyond)
    if not fits:
        yield from _idle(span, own, billed - claimed)


def _idle(span: UsageRecord, own: Iterable[Line], seconds: float) -> Iterator[Line]:
    """``seconds`` that no run used, in the gaps between their lines."""
    gaps, at, end = [], span.started, max(span.until, span.started + MINIMUM_BILLED_S)
    for start, until in [*sorted((line.start, line.start + line.seconds) for line in own), (end, end)]:
        if start - at >= SLIGHT_S:
            gaps.append((at, start - at))
        at = max(at, until)
    gaps = gaps or [(max(span.started, end - seconds), seconds)]
    scale = seconds / sum(length for _, length in gaps)
    sure: Sure = "unpriced" if span.usd_per_hour is None else "upper_bound" if span.bound else "known"
    why = {"unpriced": "no price is known for the machine", "upper_bound": BOUND}.get(sure, "")
    for start, length in gaps:
        yield Line(start, length * scale, span.usd(length * scale), IDLE, span.target, machine=span.machine,
                   emulated=span.emulated, sure=sure, why=why, on_since=span.started)  # fmt: skip
