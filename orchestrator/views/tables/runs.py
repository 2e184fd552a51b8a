"""Runs as blocks: the list, each job's best and last figure, what needs a look."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from orchestrator.base.errors import RunNotFound, plural
from orchestrator.base.sanitize import clean
from orchestrator.results.compare.effect import SPREAD, SPREAD_CALLS
from orchestrator.results.compare.verdicts import CALLS, MARGIN
from orchestrator.results.look import COMPARED, MEASURED, Headline, headlines
from orchestrator.results.records import RunRow
from orchestrator.views.blocks import Block, Cell, Facts, Grid, Line, Text
from orchestrator.views.figures import against as than
from orchestrator.views.figures import (
    age,
    difference,
    duration,
    kind,
    microseconds,
    speed,
    unit_name,
    usd,
)

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

#: Points of a job's line and of a run's, and runs that need a look.
POINTS, RUN_POINTS, FAILURES = 24, 10, 5


def time_text(value: float, unit: str) -> str:
    return f"{microseconds(value)} {clean(unit_name(unit), 8)}".rstrip()


def against(headline: Headline) -> str:
    """``2.27x faster than PyTorch``, as measured in pairs where it was; empty without a reference."""
    return than(_reference_ratio(headline), "PyTorch")


def _reference_ratio(headline: Headline) -> float | None:
    return headline.ratio or (headline.p50 / headline.reference if headline.reference else None)


def change(this: Headline, other: Headline, name: str) -> str:
    """``13.4 % slower than the previous run``, ``about the same as the previous run (0.7 % faster)``; and
    whether the times of either run, or single runs of one source, vary by more. Only a comparison gives a verdict."""
    role, share = _role(this, other), difference(this.p50 / other.p50)
    if role == "doubt":
        return f"{share} than {name}, but the times vary by more"
    if role == "unsure":
        return f"{share} than {name}, not certain from single runs"
    if not role and share != "equal":
        return f"about the same as {name} ({share})"
    return f"{share} than {name}" if role else f"equal to {name}"


def result(head: Headline | None) -> str | Cell:
    """A run's main figure, with PyTorch's beside it."""
    return Cell(time_text(head.p50, head.unit), against(head)) if head else ""


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
    header = ("run", "status", "result", "change", "duration", "age", *(("cost",) if money else ()), "commit", "GPU")
    trends = dict(_trends(known, heads))
    lines = []
    for row in rows:
        head, commit = heads.get(row.run_id), row.git_commit or ""
        cost = (usd(row.usd) if row.usd else "",) if money else ()
        lines.append((
            run_link(row), Cell(row.status, kind="status"), result(head), trends.get(row.run_id, ""),
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
                note, role = difference(this.p50 / before[0].p50), _role(this, before[0])
                note += ", but times vary by more" if role == "doubt" else ""
                yield row.run_id, trend([this, *before], RUN_POINTS, note, role)


def _role(this: Headline, other: Headline) -> str:
    """``good`` or ``bad`` where it is more than runs of one kernel usually differ; ``doubt`` if their times do, too;
    ``unsure`` if one launch of each does not decide it."""
    ratio = this.p50 / other.p50
    if abs(ratio - 1) <= MARGIN:
        return ""
    if max(ratio, 1 / ratio) <= (this.spread or 1.0) * (other.spread or 1.0):
        return "doubt"
    assumed = SPREAD_CALLS if this.mode in CALLS else SPREAD  # as a comparison has it
    if abs(math.log(ratio)) <= 1.96 * math.sqrt(2) * assumed.share:
        return "unsure"
    return "bad" if ratio > 1 else "good"


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


def earlier(store: FileStore, run_id: str, job: str, limit: int) -> tuple[RunRow, list[RunRow], dict[str, Headline]]:
    """The run, those before it of the same job on the same GPU among ``limit``, and the figures of all. Raises
    RunNotFound: it is in no list, as one that was deleted meanwhile."""
    rows = store.rows(limit=limit, job=job)
    place = next((i for i, row in enumerate(rows) if row.run_id == run_id), None)
    listed = store.rows(run_id=run_id) if place is None else rows[place:]
    if not listed:
        raise RunNotFound(f"no run {run_id}", hint="see the runs: fcctl results ls")
    this, *others = listed
    before = [row for row in others if (row.gpu or row.target) == (this.gpu or this.target)]
    return this, before, headlines(store, [this, *before])


def jobs_grid(rows: Sequence[RunRow], heads: Mapping[str, Headline], gates: Mapping[str, Cell], now: float) -> Grid:
    """Per job and GPU whether the last figure is better than the best one before it, and PyTorch's. ``rows`` newest
    first; ``gates`` by run id."""
    groups, lines = by_job(rows, heads), []
    for (job, gpu), runs in groups.items():
        last, best, before = last_and_best(runs, heads)
        lines.append((
            Cell(f"{clean(job, 40)} on {clean(gpu, 30)}", kernel(last), href=f"/runs/{last.run_id}"),
            _verdict(last, best) if best else "first result",
            Cell(time_text(last.p50, last.unit), f"{age(runs[0].created, now)} ago"),
            Cell(time_text(best.p50, best.unit), _other(best, last), href=f"/runs/{best.run_id}") if best else "",
            speed(ratio) if (ratio := _reference_ratio(last)) else "",
            gates.get(last.run_id, ""),
            trend([last, *before], POINTS, plural(len(before) + 1, "run"),
                  href=f"/trends?{urlencode({'benchmark': last.benchmark})}"),
        ))  # fmt: skip
    header = ("job and GPU", "last result", "time", "previous best", "PyTorch", "gates and target", "trend")
    return Grid(header, tuple(lines), "Main benchmark of each job; in a trend, lower is faster", numbers=(2, 3, 4))


def last_and_best(
    runs: Sequence[RunRow], heads: Mapping[str, Headline]
) -> tuple[Headline, Headline | None, list[Headline]]:
    """The figure of the newest run, the best one before it, and all before it that may be compared with."""
    before = compared(runs[1:], heads)
    return heads[runs[0].run_id], min(before, key=lambda head: head.p50, default=None), before


def sentence(this: Headline, *others: tuple[str, Headline | None]) -> str:
    """The answer: the time, against each of the other figures that there is, and against PyTorch."""
    known = [change(this, other, name) for name, other in others if other]
    known = [*dict.fromkeys(known or ["no earlier result of this job to compare with"]), against(this)]
    return f"{', '.join([time_text(this.p50, this.unit), *filter(None, known)])}."


def kernel(head: Headline) -> str:
    """What was timed: benchmark, mode and variant."""
    return " ".join(filter(None, (clean(head.benchmark, 40), clean(head.mode, 12), clean(head.variant, 24))))


def _other(head: Headline, last: Headline) -> str:
    """The variant, where it is another than the last one's."""
    return clean(head.variant, 24) if head.variant != last.variant else ""


def _verdict(last: Headline, best: Headline) -> Cell:
    """Which of the two is faster, with a link to the comparison, which says whether that is more than chance."""
    role, words = _role(last, best), change(last, best, "the previous best")
    link = urlencode([("first", best.run_id), ("run", best.run_id), ("run", last.run_id)])
    return Cell(("new best, " if role == "good" else "") + words, kind=role, href=f"/compare?{link}")


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
            if kind(row.status) in ("bad", "open") and len(seen) <= 100:
                yield row


def answer(run_id: str, before: Sequence[RunRow], heads: Mapping[str, Headline]) -> Iterator[Block]:
    """Whether the run is better than the last one before it and the best one, of the same job on the same GPU."""
    this, earlier = heads.get(run_id), compared(before, heads)
    if this is None:
        return
    fastest = min(earlier, key=lambda head: head.p50, default=None)
    others = [("the previous run", next(iter(earlier), None)), ("the previous best", fastest)]
    if earlier and fastest is earlier[0]:
        others = [("the previous run, the best so far", fastest)]
    yield Text(sentence(this, *others), style="answer")
    pairs: list[tuple[str, str | Cell]] = [("this run", Cell(time_text(this.p50, this.unit), kernel(this), "bold"))]
    for name, other in others:
        if other is not None:
            text = Cell(time_text(other.p50, other.unit), _other(other, this), href=f"/runs/{other.run_id}")
            pairs.append((name.removeprefix("the "), text))
    if this.reference:
        pairs.append(("PyTorch in this run", time_text(this.reference, this.unit)))
    yield Facts(tuple(pairs))


def lineage_grid(
    row: RunRow, before: Sequence[str], after: Sequence[str], known: Mapping[str, RunRow], heads: Mapping[str, Headline]
) -> Iterator[Grid]:
    """The runs before this one, itself, and those after it; nothing for a run that stands alone. ``known``: by id,
    those that are still here."""
    words = {**dict.fromkeys(before, ("continued by this run", "source of its parameters")),
             row.run_id: ("this run",) * 2,
             **dict.fromkeys(after, ("continues this run", "uses its parameters"))}  # fmt: skip
    lines: list[Line] = []
    for run_id, (same, other) in words.items():
        run, head = known.get(run_id), heads.get(run_id)
        if run is None:
            lines.append((Cell("deleted", run_id), "", "", ""))
        else:
            link, relation = run_link(run), same if run.job == row.job else other
            lines.append((link, relation, Cell(run.status, kind="status"), result(head)))
    if len(lines) > 1:
        yield Grid(("run", "relation", "status", "result"), tuple(lines), "Related runs", (3,))
