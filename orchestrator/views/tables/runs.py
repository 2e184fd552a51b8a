"""Runs as blocks: the list, each job's best and last figure, what needs a look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlencode

from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean
from orchestrator.results.headlines import Headline
from orchestrator.results.records import RunRow
from orchestrator.views.blocks import Cell, Facts, Grid
from orchestrator.views.figures import (
    age,
    duration,
    kind,
    microseconds,
    significant,
    sparkline,
    unit_name,
    usd,
)

#: Points of a job's line, and runs that need a look.
POINTS, FAILURES = 24, 5


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
) -> Grid:
    """One line a run, with the figure that stands for it, and a box to choose it by."""
    money = any(row.usd for row in rows)
    header = ("run", "status", "result", "took", "age", *(("cost",) if money else ()), "commit", "GPU")
    lines = []
    for row in rows:
        head, commit = heads.get(row.run_id), row.git_commit or ""
        result = Cell(time_text(head.p50, head.unit), against(head)) if head else ""
        cost = (usd(row.usd) if row.usd else "",) if money else ()
        lines.append((
            run_link(row), Cell(row.status, kind="status"), result, duration(row.duration_s),
            age(row.created, now), *cost,
            _commit(row, subjects) if commit else "",
            clean(row.gpu or "", 40),
        ))  # fmt: skip
    numbers, keys = tuple(range(2, 6 if money else 5)), tuple(row.run_id for row in rows)
    return Grid(header, tuple(lines), caption, numbers=numbers, keys=keys, chosen=chosen)


def _commit(row: RunRow, subjects: Mapping[str, str]) -> Cell:
    """Its short id, whether the source had changes besides, and its subject."""
    commit = row.git_commit or ""
    parts = ("with changes" if row.dirty else "", clean(subjects.get(commit, ""), 60))
    return Cell(clean(commit[:9], 9), ", ".join(filter(None, parts)), "code")


def jobs_grid(rows: Sequence[RunRow], heads: Mapping[str, Headline], gates: Mapping[str, str], now: float) -> Grid:
    """Per job and GPU the last figure beside the best one and PyTorch's. ``rows`` newest first; ``gates`` by run id."""
    groups: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        if row.run_id in heads:
            groups.setdefault((row.job, row.gpu or row.target), []).append(row)
    lines = []
    for (job, gpu), runs in groups.items():
        last, *_ = of_job = [heads[row.run_id] for row in runs]
        best, others = min(of_job, key=lambda head: head.p50), [head.p50 for head in of_job[1:]]
        gap = f"{100 * abs(last.p50 / min(others) - 1):.1f} %" if others else ""
        verdict = f"new best, {gap} faster" if best is last and others else f"{gap} slower" if others else "first run"
        what = " ".join(filter(None, (clean(last.benchmark, 40), clean(last.mode, 12), clean(last.variant, 24))))
        lines.append((
            Cell(f"{clean(job, 40)} on {clean(gpu, 30)}", what, href=f"/runs/{last.run_id}"),
            Cell(time_text(last.p50, last.unit), f"{age(runs[0].created, now)} ago"),
            Cell(time_text(best.p50, best.unit), href=f"/runs/{best.run_id}"), verdict, against(last),
            Cell(gates.get(last.run_id, ""), kind="status"),
            Cell(sparkline([head.p50 for head in of_job[::-1]][-POINTS:], POINTS), plural(len(of_job), "run"),
                 href=f"/history/trend?{urlencode({'benchmark': last.benchmark})}"),
        ))  # fmt: skip
    header = ("job and GPU", "last", "best", "last against best", "against", "gates", "trend, lower is faster")
    return Grid(header, tuple(lines), "Headline figure of each job", numbers=(1, 2, 3, 4))


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
    this, earlier = heads.get(run_id), [heads[row.run_id] for row in before if row.run_id in heads]
    if this is None:
        return
    what = " ".join(filter(None, (clean(this.benchmark, 40), clean(this.mode, 12), clean(this.variant, 24))))
    pairs: list[tuple[str, str | Cell]] = [("this run", Cell(time_text(this.p50, this.unit), what, "bold"))]
    if this.reference:
        beside = Cell(
            time_text(this.reference, this.unit), f"this run takes {_share(this.ratio or this.p50 / this.reference)}"
        )
        pairs.append(("PyTorch in this run", beside))
    fastest = min(earlier, key=lambda head: head.p50, default=None)
    for name, other in (("run before", next(iter(earlier), None)), ("best before", fastest)):
        if other is not None:
            note = f"this run takes {_share(this.p50 / other.p50)}"
            pairs.append((name, Cell(time_text(other.p50, other.unit), note, href=f"/runs/{other.run_id}")))
    yield Facts(tuple(pairs))


def _share(ratio: float) -> str:
    """``1.8 % less time``, ``as long``."""
    percent = abs(100 * (ratio - 1))
    return "as long" if percent < 0.05 else f"{percent:.1f} % {'less' if ratio < 1 else 'more'} time"
