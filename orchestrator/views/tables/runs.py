"""Runs as blocks: the list, each job's best and last figure, what needs a look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlencode

from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean
from orchestrator.results.compare.verdicts import MARGIN
from orchestrator.results.headlines import COMPARED, MEASURED, Headline
from orchestrator.results.records import RunRow
from orchestrator.views.blocks import Cell, Facts, Grid, Line
from orchestrator.views.figures import (
    age,
    duration,
    kind,
    microseconds,
    percent,
    significant,
    speed,
    unit_name,
    usd,
)

#: Points of a job's line and of a run's, and runs that need a look.
POINTS, RUN_POINTS, FAILURES = 24, 10, 5


def time_text(value: float, unit: str) -> str:
    return f"{microseconds(value)} {clean(unit_name(unit), 8)}".rstrip()


def against(headline: Headline) -> str:
    """``2.27x PyTorch``: the reference's time over ours, as the run's page says it; empty without one."""
    return f"{significant(1 / headline.ratio)}x PyTorch" if headline.ratio else ""


def run_link(row: RunRow) -> Cell:
    return Cell(f"{clean(row.job, 40)} on {clean(row.target, 24)}", row.run_id, href=f"/runs/{row.run_id}")


def runs_grid(
    rows: Sequence[RunRow],
    heads: Mapping[str, Headline],
    subjects: Mapping[str, str],
    now: float,
    caption: str,
    chosen: frozenset[str] = frozenset(),
    known: Sequence[RunRow] = (),
) -> Grid:
    """One line a run, with the figure that stands for it, and a box to choose it by. ``known``: runs, newest first,
    among which the earlier ones of each job and GPU are found."""
    money = any(row.usd for row in rows)
    header = ("run", "status", "result", "trend", "took", "age", *(("cost",) if money else ()), "commit", "GPU")
    trends = dict(_trends(known, heads))
    lines = []
    for row in rows:
        head, commit = heads.get(row.run_id), row.git_commit or ""
        result = Cell(time_text(head.p50, head.unit), against(head)) if head else ""
        cost = (usd(row.usd) if row.usd else "",) if money else ()
        lines.append((
            run_link(row), Cell(row.status, kind="status"), result, trends.get(row.run_id, ""),
            duration(row.duration_s), age(row.created, now), *cost,
            _commit(row, subjects) if commit else "",
            clean(row.gpu or "", 40),
        ))  # fmt: skip
    numbers, keys = tuple(range(2, 7 if money else 6)), tuple(row.run_id for row in rows)
    return Grid(header, tuple(lines), caption, numbers=numbers, keys=keys, chosen=chosen)


def _trends(known: Sequence[RunRow], heads: Mapping[str, Headline]) -> Iterator[tuple[str, Cell]]:
    """Per run the figures up to it, with its change against the last one before that it may be compared with."""
    for runs in by_job(known, heads).values():
        for i, row in enumerate(runs):
            this, before = heads[row.run_id], compared(runs[i + 1 : i + RUN_POINTS], heads)
            if before:
                ratio = this.p50 / before[0].p50
                yield row.run_id, trend([this, *before], RUN_POINTS, percent(ratio), _role(ratio))


def _role(ratio: float) -> str:
    """``good`` or ``bad`` where it is more than runs of one kernel usually differ."""
    return "" if abs(ratio - 1) <= MARGIN else "bad" if ratio > 1 else "good"


def _commit(row: RunRow, subjects: Mapping[str, str]) -> Cell:
    """Its short id, whether the source had changes besides, and its subject."""
    commit = row.git_commit or ""
    parts = ("with changes" if row.dirty else "", clean(subjects.get(commit, ""), 60))
    return Cell(clean(commit[:9], 9), ", ".join(filter(None, parts)), "code")


def by_job(rows: Sequence[RunRow], heads: Mapping[str, Headline]) -> dict[tuple[str, str], list[RunRow]]:
    """The runs that measured their job's figure, by job and GPU, in the order given."""
    groups: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        if row.run_id in heads and row.status in MEASURED:
            groups.setdefault((row.job, row.gpu or row.target), []).append(row)
    return groups


def compared(rows: Iterable[RunRow], heads: Mapping[str, Headline]) -> list[Headline]:
    """The figures of those that may be compared with, in the order given."""
    return [heads[row.run_id] for row in rows if row.run_id in heads and row.status in COMPARED]


def jobs_grid(rows: Sequence[RunRow], heads: Mapping[str, Headline], gates: Mapping[str, str], now: float) -> Grid:
    """Per job and GPU the last figure beside the best one before it and PyTorch's. ``rows`` newest first; ``gates`` by
    run id."""
    groups, lines = by_job(rows, heads), []
    compared_with = ("speedup",) if any(against(heads[runs[0].run_id]) for runs in groups.values()) else ()
    for (job, gpu), runs in groups.items():
        last, before = heads[runs[0].run_id], compared(runs[1:], heads)
        best = min(before, key=lambda head: head.p50, default=None)
        lines.append((
            Cell(f"{clean(job, 40)} on {clean(gpu, 30)}", kernel(last), href=f"/runs/{last.run_id}"),
            Cell(time_text(last.p50, last.unit), f"{age(runs[0].created, now)} ago"),
            Cell(time_text(best.p50, best.unit), _other(best, last), href=f"/runs/{best.run_id}") if best else "",
            _verdict(last, best) if best else "first run", *((against(last),) if compared_with else ()),
            Cell(gates.get(last.run_id, ""), kind="status"),
            trend([last, *before], POINTS, plural(len(before) + 1, "run"),
                  href=f"/history/trend?{urlencode({'benchmark': last.benchmark})}"),
        ))  # fmt: skip
    header = ("job and GPU", "last", "best before", "last against best", *compared_with, "gates", "trend")
    caption = "Headline figure of each job; in a trend, lower is faster"
    return Grid(header, tuple(lines), caption, numbers=tuple(range(1, len(header) - 2)))


def kernel(head: Headline) -> str:
    """What was timed: benchmark, mode and variant."""
    return " ".join(filter(None, (clean(head.benchmark, 40), clean(head.mode, 12), clean(head.variant, 24))))


def _other(head: Headline, last: Headline) -> str:
    """The variant, where it is another than the last one's."""
    return clean(head.variant, 24) if head.variant != last.variant else ""


def _verdict(last: Headline, best: Headline) -> Cell:
    """Which of the two is faster, with a link to the comparison, which says whether that is more than chance."""
    ratio = last.p50 / best.p50
    text = f"{100 * abs(ratio - 1):.1f} % {'slower' if ratio > 1 else 'faster'}"
    same = f"about the same ({text})" if abs(ratio - 1) >= 0.0005 else "equal"
    link = urlencode([("first", best.run_id), ("run", best.run_id), ("run", last.run_id)])
    words = {"": same, "bad": text, "good": f"new best, {text}"}[_role(ratio)]
    return Cell(words, kind=_role(ratio), href=f"/compare?{link}")


def trend(newest_first: Sequence[Headline], limit: int, note: str, role: str = "", href: str = "") -> Cell:
    """The figures of the newest ``limit`` runs as a small line; of a single one, only the note."""
    heads = newest_first[:limit][::-1]
    if len(heads) < 2:
        return Cell(note, href=href)
    first, last = (time_text(head.p50, head.unit) for head in (heads[0], heads[-1]))
    return Cell(f"{first} to {last} over {len(heads)} runs", note, role, href, tuple(head.p50 for head in heads))


def failures(rows: Sequence[RunRow]) -> Iterator[RunRow]:
    """The newest run of each job and target where it did not pass, newest first."""
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if (row.job, row.target) not in seen:
            seen.add((row.job, row.target))
            if kind(row.status) == "bad" and len(seen) <= 100:
                yield row


def answer(run_id: str, before: Sequence[RunRow], heads: Mapping[str, Headline]) -> Iterator[Facts]:
    """The run's figure beside the last one before it and the best one, of the same job on the same GPU."""
    this, earlier = heads.get(run_id), compared(before, heads)
    if this is None:
        return
    pairs: list[tuple[str, str | Cell]] = [("this run", Cell(time_text(this.p50, this.unit), kernel(this), "bold"))]
    if this.reference:
        faster = f"this run is {speed(this.ratio or this.p50 / this.reference)}"
        pairs.append(("PyTorch in this run", Cell(time_text(this.reference, this.unit), faster)))
    fastest = min(earlier, key=lambda head: head.p50, default=None)
    for name, other in (("run before", next(iter(earlier), None)), ("best before", fastest)):
        if other is not None:
            ratio = this.p50 / other.p50
            change = f"this run takes {_share(ratio)}" if _role(ratio) else f"about the same: {_share(ratio)}"
            note = f"{_other(other, this)} {change}".lstrip()
            pairs.append((name, Cell(time_text(other.p50, other.unit), note, href=f"/runs/{other.run_id}")))
    yield Facts(tuple(pairs))


def lineage_grid(
    row: RunRow, before: Sequence[str], after: Sequence[str], known: Mapping[str, RunRow], heads: Mapping[str, Headline]
) -> Iterator[Grid]:
    """The runs before this one, itself, and those after it; nothing for a run that stands alone. ``known``: by id,
    those that are still here."""
    words = {**dict.fromkeys(before, ("continued", "gave the parameters")), row.run_id: ("this run",) * 2,
             **dict.fromkeys(after, ("continues", "uses the parameters"))}  # fmt: skip
    lines: list[Line] = []
    for run_id, (same, other) in words.items():
        run, head = known.get(run_id), heads.get(run_id)
        result = Cell(time_text(head.p50, head.unit), against(head)) if head else ""
        if run is None:
            lines.append((Cell("deleted", run_id), "", "", ""))
        else:
            link, relation = run_link(run), same if run.job == row.job else other
            lines.append((link, relation, Cell(run.status, kind="status"), result))
    if len(lines) > 1:
        yield Grid(("run", "relation", "status", "result"), tuple(lines), "Runs that follow from each other", (3,))


def _share(ratio: float) -> str:
    """``1.8 % less time``, ``equal``."""
    percent = abs(100 * (ratio - 1))
    return "equal" if percent < 0.05 else f"{percent:.1f} % {'less' if ratio < 1 else 'more'} time"
