"""The ledger: every second that a machine is billed belongs to a run and an activity, or to nobody (``idle``). Pure.

Runs say what they used (``run.json``). Machines' own spans of being on come from the cloud, as it was seen to tell
them; what of a span no run used is idle. Where runs add up to more than their machine was on, the difference is a line
of its own: the books show what does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Literal, Protocol

from pydantic import BaseModel

from orchestrator.base.models import KEPT
from orchestrator.money.calendar import days
from orchestrator.money.caps import MINIMUM_BILLED_S
from orchestrator.results.records import CostRecord, MachineRecord

Grouping = Literal["day", "week", "month", "job", "target", "activity", "run", "machine"]
#: How far a line can be relied on: it is what the cloud said; it is reckoned from what the cloud said once; it cannot
#: have been more, and may have been less; it costs something, and no price is known.
Sure = Literal["known", "estimated", "upper_bound", "unpriced"]
IDLE = "idle"
#: Whose it is that no target has.
STANDING = "(project)"
UNEXPLAINED = "unexplained"
#: Why a machine's seconds may be too many.
BOUND = "when its machine went off is not known: counted until it must have been off"
#: How far a run's own account of when it had a machine turned on may be from the cloud's, seconds.
NEAR_S = 900.0


class CostedRun(Protocol):
    """A complete run, as far as its cost goes."""

    @property
    def run_id(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def created(self) -> str: ...
    @property
    def started(self) -> str | None: ...
    @property
    def cost(self) -> CostRecord: ...
    @property
    def machine(self) -> MachineRecord | None: ...


class Sighting(BaseModel):
    """What the cloud said of one machine at one moment. Times are epoch seconds of the cloud's clock."""

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
    #: ``stopped`` is the latest that it can have been: nobody knows when it was.
    bound: bool = False
    #: Who asked for the start, as the cloud names them; empty: not asked.
    user: str = ""
    #: Nobody pays: it is the sandbox's.
    emulated: bool = False


@dataclass(frozen=True)
class Span:
    """One time of being on, from RUNNING to TERMINATED."""

    name: str
    instance_id: str
    target: str
    usd_per_hour: float | None
    started: float
    #: If it is still on, when that was seen last.
    until: float
    on: bool
    emulated: bool
    #: It was on no longer than this, and perhaps shorter.
    bound: bool = False
    user: str = ""

    @property
    def machine(self) -> str:
        return f"{self.name} ({self.instance_id})"

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
    #: What stood there, machine or not: a disk, a snapshot, an address. None: these are seconds of a machine.
    what: str | None = None
    sure: Sure = "known"
    #: What it is that is not known.
    why: str = ""


@dataclass(frozen=True)
class Total:
    """The lines of one group."""

    group: str
    #: Of machines; what stands, stands all the time.
    seconds: float
    usd: float
    runs: int
    idle_usd: float
    #: Of the dollars, those for disks, snapshots and addresses.
    standing_usd: float = 0.0
    #: Of the dollars, those that are not simply what the cloud said.
    unsure_usd: float = 0.0


def latest(sightings: Iterable[Sighting]) -> list[Sighting]:
    """The last word on each start, the oldest start first. A stop that was told is stronger than a bound of it."""
    found: dict[tuple[str, int], Sighting] = {}
    for sighting in sightings:
        key = (sighting.instance_id, round(sighting.started))
        known = found.get(key)
        if known is None or _strength(sighting) >= _strength(known):
            found[key] = sighting
    return sorted(found.values(), key=lambda s: (s.started, s.instance_id))


def _strength(sighting: Sighting) -> tuple[bool, bool, float]:
    return sighting.stopped is not None, not sighting.bound, sighting.seen


def spans(sightings: Iterable[Sighting]) -> list[Span]:
    """Each machine's times of being on, oldest first. Of several sightings of one start the latest word counts."""
    return _closed(
        [
            Span(
                s.name, s.instance_id, s.target, s.usd_per_hour, s.started,
                s.stopped if s.stopped is not None else max(s.seen, s.started), s.stopped is None, s.emulated,
                s.bound, s.user,
            )
            for s in latest(sightings)
        ]
    )  # fmt: skip


def _closed(found: list[Span]) -> list[Span]:
    """A machine that was started again was off in between, even if nobody saw when it went."""
    later: dict[str, float] = {}
    result = []
    for span in reversed(found):
        begun = later.get(span.instance_id)
        result.append(replace(span, until=min(span.until, begun), on=False) if begun is not None else span)
        later[span.instance_id] = span.started
    return result[::-1]


def run_lines(record: CostedRun) -> list[Line]:
    """What one run used, by activity, in the order of its breakdown; a time while its machine was off is left out."""
    sure: Sure = "upper_bound" if record.cost.upper_bound else "known"
    times = _times(record)
    machine = f"{record.machine.name} ({record.machine.instance_id})" if record.machine is not None else None
    lines = []
    for cost in record.cost.breakdown:
        left = cost.seconds
        while left > 0:
            begun, room = times[0]
            taken = left if len(times) == 1 else min(left, room)
            times = [(begun + taken, room - taken), *times[1:]] if taken < room or len(times) == 1 else times[1:]
            usd = cost.usd * taken / cost.seconds
            lines.append(
                Line(begun, taken, usd, cost.activity, record.target, record.run_id, record.job, machine,
                     record.cost.emulated, sure=sure, why=BOUND if sure == "upper_bound" else "")
            )  # fmt: skip
            left -= taken
    return lines


def _times(record: CostedRun) -> list[tuple[float, float]]:
    """(since, for how long) the machine was on for the run, epoch seconds and seconds; the last one has no end."""
    begun = _epoch(record.started) or _epoch(record.created) or 0.0
    machine = record.machine
    if machine is None:
        return [(begun, math.inf)]
    sittings = [(_epoch(sitting.began) or begun, sitting.seconds) for sitting in machine.sittings]
    return [one for one in sittings if one[1] > 0] or [(_epoch(machine.began) or begun, math.inf)]


def ledger(records: Iterable[CostedRun], sightings: Iterable[Sighting]) -> list[Line]:
    """All lines, oldest first."""
    lines: list[Line] = []
    used: dict[str, list[Line]] = {}
    on = spans(sightings)
    for record in records:
        of_run = run_lines(record)
        instance_id = record.machine.instance_id if record.machine is not None else None
        if record.machine is None and (likely := _likely(of_run, on)) is not None:
            instance_id = likely.instance_id
            of_run = [replace(line, machine=likely.machine) for line in of_run]
        lines += of_run
        if instance_id is not None:
            used.setdefault(instance_id, []).extend(of_run)
    known: dict[str, list[Span]] = {}
    for span in on:
        known.setdefault(span.instance_id, []).append(span)
    for instance_id, of_machine in known.items():
        lines += _rest(of_machine, used.get(instance_id, []))
    return sorted(lines, key=lambda line: (line.start, line.run_id or ""))


def _likely(of_run: Sequence[Line], on: Sequence[Span]) -> Span | None:
    """The machine of a run that never got hold of one, but had it turned on: its target's, at that time."""
    if not of_run:
        return None
    start, end = of_run[0].start, of_run[-1].start + of_run[-1].seconds

    def gap(span: Span) -> float:
        return max(span.started - end, start - (math.inf if span.on else span.until))

    near = [span for span in on if span.target == of_run[0].target and gap(span) <= NEAR_S]
    return min(near, key=gap, default=None)


def _rest(of_machine: Sequence[Span], used: Sequence[Line]) -> list[Line]:
    """What of a machine's spans no run used; below zero, what runs claim beyond them. The cloud's word is the bill."""
    lines, outside = [], sum(line.seconds for line in used)
    for span in of_machine:
        inside = sum(_overlap(line, span) for line in used)
        outside -= inside
        # Of a machine that is still on, its runs know more than whoever saw it last.
        rest = max(span.billed_s, inside) - inside if span.on else span.billed_s - inside
        lines.append(_correction(span, span.until - max(0.0, rest), rest))
    lines.append(_correction(of_machine[-1], of_machine[-1].until, -outside))
    return [line for line in lines if abs(line.seconds) >= 1.0]


def _overlap(line: Line, span: Span) -> float:
    """Seconds of a line that are within a span; a minute is billed for the shortest."""
    end = math.inf if span.on else max(span.until, span.started + MINIMUM_BILLED_S)
    return max(0.0, min(line.start + line.seconds, end) - max(line.start, span.started))


def _correction(span: Span, start: float, seconds: float) -> Line:
    usd = round(span.usd(seconds), 6)
    activity = IDLE if seconds > 0 else UNEXPLAINED
    sure: Sure = "unpriced" if span.usd_per_hour is None else "upper_bound" if span.bound else "known"
    why = {"unpriced": "no price is known for the machine", "upper_bound": BOUND}.get(sure, "")
    return Line(
        start, seconds, usd, activity, span.target, machine=span.machine, emulated=span.emulated, sure=sure, why=why
    )


def cut_by_day(lines: Iterable[Line], zone: tzinfo) -> Iterator[Line]:
    """The same lines, each in one day: what a machine cost past midnight is the next day's."""
    for line in lines:
        pieces = list(days(line.start, line.start + line.seconds, zone))
        if len(pieces) < 2:
            yield line
            continue
        for begun, ended in pieces:
            part = (ended - begun) / line.seconds
            yield replace(line, start=begun, seconds=line.seconds * part, usd=line.usd * part)


def totals(lines: Iterable[Line], by: Grouping, zone: tzinfo) -> list[Total]:
    """Sums by group: times in order, everything else by dollars. What nobody pays (the sandbox's) is left out."""
    groups: dict[str, list[Line]] = {}
    for line in cut_by_day(lines, zone) if by in ("day", "week", "month") else lines:
        if not line.emulated:
            groups.setdefault(_group(line, by, zone), []).append(line)
    found = [
        Total(
            name,
            sum(line.seconds for line in own if line.what is None),
            sum(line.usd for line in own),
            len({line.run_id for line in own if line.run_id}),
            sum(line.usd for line in own if line.activity == IDLE),
            sum(line.usd for line in own if line.what is not None),
            sum(line.usd for line in own if line.sure != "known"),
        )
        for name, own in groups.items()
    ]
    in_time = by in ("day", "week", "month")
    return sorted(found, key=lambda t: (t.group,) if in_time else (-t.usd, t.group))


def _group(line: Line, by: Grouping, zone: tzinfo) -> str:
    when = datetime.fromtimestamp(line.start, zone)
    match by:
        case "day":
            return f"{when:%Y-%m-%d}"
        case "week":
            year, week, _ = when.isocalendar()
            return f"{year}-W{week:02d}"
        case "month":
            return f"{when:%Y-%m}"
        case "job":
            return line.job or f"({line.activity})"
        case "run":
            return line.run_id or f"({line.activity})"
        case "machine":
            return line.machine or line.what or line.target
        case "target":
            return line.target
        case "activity":
            return line.activity


@dataclass(frozen=True)
class Remark:
    """What of the books is not simply what the cloud said, and why."""

    sure: Sure
    what: str
    why: str
    usd: float


def remarks(lines: Iterable[Line]) -> list[Remark]:
    """One for each thing or run, the dearest first; what has no price comes before all."""
    sums: dict[tuple[Sure, str, str], float] = {}
    for line in lines:
        if line.sure != "known" and not line.emulated:
            key = (line.sure, line.what or line.run_id or line.machine or line.target, line.why)
            sums[key] = sums.get(key, 0.0) + line.usd
    found = [Remark(sure, what, why, usd) for (sure, what, why), usd in sums.items()]
    return sorted(found, key=lambda r: (r.sure != "unpriced", -r.usd, r.what))


@dataclass(frozen=True)
class Spent:
    """Dollars so far, for the caps."""

    day: float
    month: float
    project: float


def spent(lines: Iterable[Line], now: float, zone: tzinfo) -> Spent:
    """What was spent today, this month and ever; days and months as ``zone`` counts them."""
    today = datetime.fromtimestamp(now, zone)
    day = month = ever = 0.0
    for line in cut_by_day(lines, zone):
        if line.emulated:
            continue
        # A clock that was set back does not give a day's money again: what is ahead of it counts as of now.
        when = datetime.fromtimestamp(min(line.start, now), zone)
        ever += line.usd
        if (when.year, when.month) == (today.year, today.month):
            month += line.usd
            if when.day == today.day:
                day += line.usd
    return Spent(day, month, ever)


def _epoch(stamp: str | None) -> float | None:
    if not stamp:
        return None
    try:
        found = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
