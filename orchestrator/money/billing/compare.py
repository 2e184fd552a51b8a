"""Compares the ledger with Google's billing lines, by machine and day of use in UTC, before credits. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from orchestrator.base.errors import UsageError
from orchestrator.machines.cloud import MANAGED_LABEL, WORKSPACE_LABEL
from orchestrator.money.billing.export import BillingLine
from orchestrator.money.calendar import days
from orchestrator.money.ledger import Line

#: Smaller differences do not count, dollars.
SLIGHT_USD = 0.05
#: A line of a longer time is a monthly fee, and does not say which days the file covers.
_LONGEST_USE_S = 25 * 3600.0
#: Things times days; a ledger of ten machines over thirty years has fewer.
_MOST_CELLS = 200_000
_STANDING = re.compile(r"(disk|snapshot|address) (\S+)")
_MACHINE = re.compile(r"(.+) \((\d+)\)")

#: Kind, name, and the cloud's number, which is empty where one side does not say it.
Thing = tuple[str, str, str]
#: A resource and a day.
Cell = tuple[Thing, str]


@dataclass(frozen=True)
class Row:
    """One resource on one day. None: that side has no line of it."""

    thing: Thing
    day: str
    ours_usd: float | None
    google_usd: float | None
    credits_usd: float = 0.0

    @property
    def difference_usd(self) -> float:
        """Ours beyond Google's."""
        return (self.ours_usd or 0.0) - (self.google_usd or 0.0)


@dataclass(frozen=True)
class Comparison:
    #: What the file covers, epoch seconds; the ledger is cut to it.
    since: float
    until: float
    tolerance_pct: float
    rows: tuple[Row, ...]
    #: The same over all days.
    things: tuple[Row, ...]
    #: Google's lines that are no machine's of this workspace: not compared.
    other_lines: int
    other_usd: float
    #: The ledger's, of machines that are in no cloud.
    elsewhere_usd: float

    @property
    def ours_usd(self) -> float:
        return sum(row.ours_usd or 0.0 for row in self.things)

    @property
    def google_usd(self) -> float:
        return sum(row.google_usd or 0.0 for row in self.things)

    @property
    def credits_usd(self) -> float:
        return sum(row.credits_usd for row in self.things)

    @property
    def differing(self) -> list[Row]:
        """The resources whose sums differ by more than the tolerance."""
        return [row for row in self.things if self._differs(row)]

    def _differs(self, row: Row) -> bool:
        larger = max(abs(row.ours_usd or 0.0), abs(row.google_usd or 0.0))
        return abs(row.difference_usd) > max(SLIGHT_USD, larger * self.tolerance_pct / 100)


@dataclass(frozen=True)
class Ours:
    """What is this workspace's, beside what its ledger names."""

    #: Names of the targets' machines.
    machines: frozenset[str]
    #: The cloud projects that targets and ledger know; another one may have machines of the same names.
    projects: frozenset[str]
    #: The workspace as the label of its machines has it.
    label: str


def compare(export: Iterable[BillingLine], ledger: Iterable[Line], whose: Ours, tolerance_pct: float) -> Comparison:
    """Compares both over the time that the export covers. Raises UsageError if the export has no line of use."""
    ours = [line for line in ledger if not line.emulated and line.usd]
    known, cells = _Known(ours, whose), _Cells()
    since, until, count, other_lines, other_usd = float("inf"), float("-inf"), 0, 0, 0.0
    for line in export:  # there may be millions
        count += 1
        if line.end - line.start <= _LONGEST_USE_S:
            since, until = min(since, line.start), max(until, line.end)
        thing = known.thing_of(line)
        if thing is None:
            other_lines, other_usd = other_lines + 1, other_usd + line.usd
            continue
        for day, part in _parts(line.start, line.end):
            cells.add(thing, day, None, line.usd * part, line.credits_usd * part)
    if since > until:
        raise UsageError(
            f"the export covers no time: none of its {count} lines is usage of a day or less",
            hint="export days on which machines were on",
        )
    cells.join_unnumbered()
    elsewhere = 0.0
    for own in ours:
        thing = _thing(own)
        for begun, ended in days(max(own.start, since), min(own.start + own.seconds, until), UTC):
            usd = own.usd * (ended - begun) / own.seconds
            if thing is None:
                elsewhere += usd
            else:
                cells.add(thing, _day(begun), usd, None)
    rows = [cells.rows[key] for key in sorted(cells.rows)]
    things: dict[Thing, Row] = {}
    for row in rows:
        was = things.get(row.thing)
        things[row.thing] = replace(row, day="") if was is None else _plus(was, row)
    return Comparison(
        since, until, tolerance_pct, tuple(rows), tuple(things.values()), other_lines, other_usd, elsewhere
    )


class _Cells:
    """One row per resource and day. Machines of one name are one where Google's lines have no numbers."""

    def __init__(self) -> None:
        self.rows: dict[Cell, Row] = {}
        self._unnumbered: set[tuple[str, str]] = set()

    def add(
        self, thing: Thing, day: str, ours_usd: float | None, google_usd: float | None, credits_usd: float = 0.0
    ) -> None:
        thing = (*thing[:2], "") if thing[:2] in self._unnumbered else thing
        was = self.rows.get((thing, day), Row(thing, day, None, None))
        self.rows[thing, day] = _plus(was, Row(thing, day, ours_usd, google_usd, credits_usd))
        if len(self.rows) > _MOST_CELLS:
            raise UsageError(
                f"the export has more than {_MOST_CELLS} pairs of a resource and a day",
                hint="export fewer days at once",
            )

    def join_unnumbered(self) -> None:
        """Of Google's lines, which come first."""
        google, self.rows = self.rows, {}
        self._unnumbered = {thing[:2] for thing, _ in google if thing[0] == "machine" and not thing[2]}
        for row in google.values():
            self.add(row.thing, row.day, None, row.google_usd, row.credits_usd)


def _plus(one: Row, other: Row) -> Row:
    return replace(
        one,
        ours_usd=_sum(one.ours_usd, other.ours_usd),
        google_usd=_sum(one.google_usd, other.google_usd),
        credits_usd=one.credits_usd + other.credits_usd,
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


class _Known:
    """What is this workspace's: by the ledger, by the targets, by the labels that fcctl gives."""

    def __init__(self, ours: Iterable[Line], whose: Ours) -> None:
        things = [thing for line in ours if (thing := _thing(line)) is not None]
        self._ids: dict[str, set[str]] = {}
        for kind, name, number in things:
            if kind == "machine":
                self._ids.setdefault(name, set()).add(number)
        self._names = {*whose.machines, *(name for _, name, _ in things)}
        self._whose = whose

    def thing_of(self, line: BillingLine) -> Thing | None:
        """None: the line is of something else."""
        if line.kind == "other" or not line.name or not self._is_ours(line):
            return None
        if line.kind != "machine":
            return line.kind, line.name, ""
        ids = self._ids.get(line.name, set())
        return "machine", line.name, line.resource_id or (next(iter(ids)) if len(ids) == 1 else "")

    def _is_ours(self, line: BillingLine) -> bool:
        if line.project and line.project not in self._whose.projects:
            return False
        if line.name in self._names:
            return True
        return MANAGED_LABEL in line.labels and line.labels.get(WORKSPACE_LABEL) == self._whose.label


def _thing(line: Line) -> Thing | None:
    """What a line of the ledger is of; None: a machine that is in no cloud."""
    if line.what is not None and line.machine is None:
        match = _STANDING.match(line.what)
        return (match[1], match[2], "") if match else None
    match = _MACHINE.fullmatch(line.machine or "")
    return ("machine", match[1], match[2]) if match else None


def _parts(start: float, end: float) -> Iterator[tuple[str, float]]:
    """The days of a time, each with its part of it."""
    if end <= start:
        yield _day(start), 1.0
        return
    for begun, ended in days(start, end, UTC):
        yield _day(begun), (ended - begun) / (end - start)


def _day(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"
