"""The figure that stands for a run: its fastest kernel on the main benchmark of its job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.results.records import RunRow

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

#: The benchmark that is the main one wherever it was measured.
MISSION = "mission"
#: Endings whose figure is the job's: of one that somebody ended it is that of the kernels timed until then. And those
#: that others are compared with: every step went well.
MEASURED, COMPARED = ("passed", "incomplete", "failed"), ("passed", "incomplete")
_QUERY = """
    SELECT run_id, job, benchmark, mode, unit, variant, min(p50), ratio, spread FROM benchmarks
    WHERE run_id IN ({}) AND reference = {} GROUP BY run_id, benchmark, mode, unit ORDER BY run_id
"""


@dataclass(frozen=True)
class Headline:
    """``p50`` and ``reference``, the fastest code beside it that is not ours, in ``unit``."""

    run_id: str
    benchmark: str
    mode: str
    unit: str
    variant: str
    p50: float
    reference: float | None = None
    #: The time over the reference's, as measured in pairs where it was.
    ratio: float | None = None
    #: The 90th percentile over the median.
    spread: float | None = None


_IN_COMMON = """
    SELECT benchmark, variant, mode FROM benchmarks WHERE run_id IN (?, ?) AND reference = 0
    GROUP BY benchmark, variant, mode HAVING count(DISTINCT run_id) = 2
"""


def in_common(store: FileStore, run_id: str, other: str) -> list[str]:
    """Names of the benchmarks that both runs measured."""
    return [" ".join(filter(None, names)) for names in store.query(_IN_COMMON, (run_id, other))]


def headlines(store: FileStore, rows: Iterable[RunRow]) -> dict[str, Headline]:
    """By run id; a run that measured nothing has none."""
    run_ids = [row.run_id for row in rows]
    if not run_ids:
        return {}
    ours, theirs = (store.query(_QUERY.format(", ".join("?" * len(run_ids)), flag), run_ids) for flag in (0, 1))
    beside = {(run_id, mode, name.partition("/")[0]): p50 for run_id, _, name, mode, _, _, p50, *_ in reversed(theirs)}
    for run_id, _, name, mode, _, _, p50, *_ in theirs:  # the fastest, by the case that names begin with
        key = (run_id, mode, name.partition("/")[0])
        beside[key] = min(p50, beside[key])
    jobs: dict[str, list[tuple[str, str]]] = {}
    for _, job, name, mode, *_ in ours:
        jobs.setdefault(job, []).append((name, mode))
    main = {job: _main(names_of) for job, names_of in jobs.items()}
    return {
        run_id: Headline(
            run_id, name, mode, unit, variant, p50, beside.get((run_id, mode, name.partition("/")[0])), ratio, spread
        )
        for run_id, job, name, mode, unit, variant, p50, ratio, spread in ours
        if (name, mode) == main[job]
    }


def _main(names: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """``mission``, else what most runs of the job measured; of equals the first."""
    counts = {one: names.count(one) for one in dict.fromkeys(names)}
    return max(counts, key=lambda one: (one[0] == MISSION, counts[one]))
