"""Sums of the ledger's lines by day, job, machine and the like, and what of them is not certain; days and months of one
zone. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from typing import Literal

from orchestrator.base.clock import bounded
from orchestrator.money.caps import Window
from orchestrator.money.ledger import IDLE, Line, Sure

Grouping = Literal["day", "week", "month", "job", "target", "activity", "run", "machine"]


@dataclass(frozen=True)
class Total:
    """The lines of one group."""

    group: str
    #: Of machines only.
    seconds: float
    usd: float
    runs: int
    idle_usd: float
    #: Of the dollars, those for disks, snapshots and static addresses.
    standing_usd: float
    #: Of the dollars, those that are not known for sure.
    unsure_usd: float


def totals(lines: Iterable[Line], by: Grouping, zone: tzinfo) -> list[Total]:
    """Sums by group: times in order, all else by dollars; without the sandbox's."""
    groups: dict[str, list[Line]] = {}
    for line in cut_by_day(lines, zone) if by in ("day", "week", "month") else lines:
        if not line.emulated:
            groups.setdefault(_group(line, by, zone), []).append(line)
    summed = [
        Total(
            name,
            sum(line.seconds for line in own if line.what is None),
            sum(line.usd for line in own),
            len({line.run_id for line in own if line.run_id}),
            sum(line.usd for line in own if line.activity == IDLE),
            sum(line.usd for line in own if line.stands),
            sum(line.usd for line in own if line.sure != "known"),
        )
        for name, own in groups.items()
    ]
    in_time = by in ("day", "week", "month")
    return sorted(summed, key=lambda t: (t.group,) if in_time else (-t.usd, t.group))


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


def cut_by_day(lines: Iterable[Line], zone: tzinfo) -> Iterator[Line]:
    """The same lines, each in one day: what a machine cost past midnight is the next day's."""
    begun = ended = math.inf  # of a day: the lines of a ledger are in the order of time
    for line in lines:
        if begun <= line.start and line.start + line.seconds < ended:
            yield line
            continue
        pieces = list(days(line.start, line.start + line.seconds, zone))
        begun, ended = next(days(line.start, math.inf, zone), (math.inf, math.inf))
        if len(pieces) < 2:
            yield line
            continue
        for begun, ended in pieces:
            part = (ended - begun) / line.seconds
            yield replace(line, start=begun, seconds=line.seconds * part, usd=line.usd * part)


@dataclass(frozen=True)
class Spending:
    """Dollars so far, for the caps."""

    day: float
    month: float
    project: float

    def of(self, window: Window) -> float:
        found: float = getattr(self, window)
        return found


def spent(lines: Iterable[Line], now: float, zone: tzinfo) -> Spending:
    """What was spent today, this month and ever; days and months as ``zone`` counts them."""
    today, this_month = start_of_day(now, zone), start_of_month(now, zone)
    day = month = ever = 0.0
    for line in cut_by_day(lines, zone):
        if line.emulated:
            continue
        # A clock that was set back does not give a day's money again: what is ahead of it counts as of now.
        when = min(line.start, now)
        ever += line.usd
        month += line.usd if when >= this_month else 0.0
        day += line.usd if when >= today else 0.0
    return Spending(day, month, ever)


@dataclass(frozen=True)
class LedgerNote:
    """What in the ledger is not known for sure, and why."""

    sure: Sure
    what: str
    why: str
    usd: float


def remarks(lines: Iterable[Line]) -> list[LedgerNote]:
    """One note per resource or run, the most expensive first, after those without a price."""
    sums: dict[tuple[Sure, str, str], float] = {}
    for line in lines:
        if line.sure != "known" and not line.emulated:
            key = (line.sure, line.what or line.run_id or line.machine or line.target, line.why)
            sums[key] = sums.get(key, 0.0) + line.usd
    notes = [LedgerNote(sure, what, why, usd) for (sure, what, why), usd in sums.items()]
    return sorted(notes, key=lambda r: (r.sure != "unpriced", -r.usd, r.what))


def start_of_day(moment: float, zone: tzinfo) -> float:
    """When the day of ``moment`` began."""
    return _midnight(datetime.fromtimestamp(moment, zone), zone)


def start_of_month(moment: float, zone: tzinfo) -> float:
    """When the month of ``moment`` began."""
    return _midnight(datetime.fromtimestamp(moment, zone).replace(day=1), zone)


def end_of_month(moment: float, zone: tzinfo) -> float:
    """When the month after that of ``moment`` begins."""
    first = datetime.fromtimestamp(moment, zone).replace(day=1)
    return _midnight((first + timedelta(days=32)).replace(day=1), zone)


def days(start: float, end: float, zone: tzinfo) -> Iterator[tuple[float, float]]:
    """The pieces of a time that lie in one day each; what a damaged record adds beyond :data:`LATEST` is left out."""
    start, end = bounded(start), bounded(end)
    while start < end:
        midnight = _midnight(datetime.fromtimestamp(start, zone) + timedelta(days=1), zone)
        yield start, min(end, midnight)
        # Where a zone sets its clock back at midnight, that midnight is not after ``start``.
        start = max(min(end, midnight), start + 1e-3)


def _midnight(day: datetime, zone: tzinfo) -> float:
    return datetime.combine(day.date(), datetime.min.time(), zone).timestamp()
