"""Two sides of runs compared: their benchmarks with verdicts, and all that may explain them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from orchestrator.base.clock import epoch
from orchestrator.base.errors import NotFoundError
from orchestrator.base.json_text import Budget, pick
from orchestrator.results.compare import facts as compare_facts
from orchestrator.results.compare.effect import Spread
from orchestrator.results.compare.facts import Difference
from orchestrator.results.compare.history import SourceChanges, SourceHistory, run_to_run
from orchestrator.results.compare.rows import THROTTLED_SHARE, THROTTLES, GpuActivity, Key, Machine, Row, rows_of
from orchestrator.results.compare.verdicts import BY_DEFAULT, Comparison, FailOn, Failure, Options, compare, failures
from orchestrator.results.documents import Documents, Series, load, load_telemetry
from orchestrator.results.look import named
from orchestrator.results.records import RunRecord, StepRecord

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

#: Runs, tags or commits that are compared at once, the first of them with each other one.
MOST_SIDES = 6
#: From this utilisation on, telemetry speaks of a GPU at work, per cent.
AT_WORK = 50.0
#: Measurements of a benchmark that are looked at for how much its runs differ, the newest ones.
MAX_HISTORY = 300


@dataclass(frozen=True)
class ComparedSide:
    """Runs under the name they were asked for by."""

    name: str
    runs: tuple[RunRecord, ...]
    documents: tuple[Documents, ...]
    rows: tuple[Row, ...]

    @property
    def problems(self) -> list[str]:
        """A line for each document that could not be read."""
        pairs = zip(self.runs, self.documents, strict=True)
        return [f"{run.run_id}: {problem}" for run, documents in pairs for problem in documents.problems]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [d.content for documents in self.documents for d in documents.of(kind)]

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def endings(self) -> str:
        """The statuses of its runs other than passed, each once: ``failed, incomplete``; empty if all passed."""
        return ", ".join(dict.fromkeys(r.status.replace("_", " ") for r in self.runs if r.status != "passed"))


@dataclass(frozen=True)
class Source:
    """What became of the source between the sides; ``changes`` None where git does not know."""

    old: str | None  # commit
    new: str | None
    same_tree: bool
    dirty: tuple[str, ...]  # sides whose runs held changes that no commit has
    changes: SourceChanges | None


@dataclass(frozen=True)
class Report:
    """A comparison with everything around it."""

    old: ComparedSide
    new: ComparedSide
    comparison: Comparison
    environment: tuple[Difference, ...]
    source: Source
    resources: tuple[Difference, ...]
    profile: tuple[Difference, ...]
    metrics: tuple[Difference, ...]
    searches: tuple[Difference, ...] = ()
    conditions: tuple[FailOn, ...] = ()

    @property
    def failures(self) -> list[Failure]:
        return failures(self.comparison, self.conditions)

    def as_json(self) -> dict[str, Any]:
        """One document; ``regression`` says what exit code 9 says."""
        options = self.comparison.options
        return {
            "problems": [*self.old.problems, *self.new.problems],
            "old": _side_json(self.old),
            "new": _side_json(self.new),
            "options": {**asdict(options), "allow": sorted(options.allow)},
            "counts": self.comparison.counts(),
            "interleaved": self.comparison.interleaved,
            "benchmarks": [b.as_json() for b in self.comparison.benchmarks],
            "controls": [b.as_json() for b in self.comparison.controls],
            **{kind: list(map(asdict, getattr(self.comparison, kind))) for kind in ("only_old", "only_new")},
            "source": asdict(self.source),
            **{kind: list(map(asdict, getattr(self, kind))) for kind in ("environment", "resources", "failures")},
            **{
                kind: [{**asdict(d), "change": d.change} for d in getattr(self, kind)]
                for kind in ("profile", "metrics", "searches")
            },
            "fail_on": list(map(asdict, self.conditions)),
            "regression": bool(self.failures),
        }


def compare_all(
    store: FileStore, names: Sequence[str], *, options: Options | None = None, fail_on: tuple[FailOn, ...] = (),
    history: SourceHistory | None = None, root: Path | None = None,
) -> list[Report]:  # fmt: skip
    """Each other side with the first of ``names``: an id, a part of one, ``last``, a tag, a commit or branch of the
    repository in ``root``, or several with commas between.

    Without ``history`` and ``root`` nothing is said of the commits between them. Raises RunNotFound, RunNotFinished: as
    the store does; NotFoundError: something was asked to fail on, and there is nothing in common that could."""
    budget = Budget()
    first, *others = (side(store, name, budget, root) for name in names)
    return [_report(store, (first, other), options, fail_on, history, root) for other in others]


def _report(
    store: FileStore, sides: tuple[ComparedSide, ComparedSide], options: Options | None, fail_on: tuple[FailOn, ...],
    history: SourceHistory | None, root: Path | None,
) -> Report:  # fmt: skip
    comparison = compare(sides[0].rows, sides[1].rows, options, _history(store, *sides))
    if fail_on and fail_on != BY_DEFAULT and not comparison.benchmarks:
        raise NotFoundError(
            f"{sides[0].name} and {sides[1].name} have no benchmark in common",
            cause="nothing can be compared, so --fail-on would always pass",
            hint=f"both sides need a benchmark with the same name and mode; see them: fcctl results show "
            f"{sides[1].first.run_id}",
        )
    return Report(
        old=sides[0],
        new=sides[1],
        comparison=comparison,
        environment=tuple(compare_facts.environment(_machines(sides[0]), _machines(sides[1]))),
        source=_source(sides[0], sides[1], history, root),
        resources=tuple(compare_facts.resources(sides[0].of("build"), sides[1].of("build"))),
        profile=tuple(compare_facts.profile(sides[0].of("profile"), sides[1].of("profile"))),
        metrics=tuple(compare_facts.metrics(sides[0].of("metrics"), sides[1].of("metrics"))),
        searches=tuple(compare_facts.searches(sides[0].of("tuning"), sides[1].of("tuning"))),
        conditions=fail_on,
    )


def with_margin(options: Options, fail_on: Iterable[FailOn]) -> Options:
    """What is tolerated is also what may be called the same."""
    shares = [c.share for c in fail_on if c.share > 0]
    return replace(options, margin=min(shares)) if shares else options


def side(store: FileStore, name: str, budget: Budget | None = None, root: Path | None = None) -> ComparedSide:
    """Load the runs that ``name`` stands for, with documents that take at most ``budget`` of memory."""
    budget = budget or Budget()
    runs = [store.get(run_id) for run_id in named(store, name, root)]
    folders = [store.folder(run.run_id) for run in runs]
    documents = [load(run, folder, budget) for run, folder in zip(runs, folders, strict=True)]
    rows = [
        row
        for run, folder, found in zip(runs, folders, documents, strict=True)
        for row in rows_of_run(run, folder, found)
    ]
    return ComparedSide(name, tuple(runs), tuple(documents), tuple(rows))


def rows_of_run(record: RunRecord, folder: Path, documents: Documents) -> list[Row]:
    """The benchmarks of one run. Each document is one launch of a process."""
    found = documents.of("benchmark")
    if not found:
        return []
    seen, created = load_telemetry(folder), epoch(record.created)
    steps = {step.id: step for step in record.steps}
    return [
        row
        for document in found
        for row in rows_of(document.content, Machine(record.host, busy(seen, steps.get(document.step)), created))
    ]


def busy(seen: Series, step: StepRecord | None) -> GpuActivity:
    """What telemetry saw of the GPU while ``step`` worked it; nothing if it did not."""
    began, ended = (epoch(text) for text in (step.started, step.finished)) if step else (None, None)
    if began is None or ended is None:
        return GpuActivity()
    at_work = [s for s in seen.samples if began <= s.time <= ended and s.values.get("util_pct", 0.0) >= AT_WORK]
    clocks = [s.values["sm_mhz"] for s in at_work if "sm_mhz" in s.values]
    if not clocks:
        return GpuActivity()
    reasons = [s.throttled for s in at_work if s.throttled is not None]
    throttled = sum(bool(THROTTLES.intersection(of)) for of in reasons)
    return GpuActivity(median(clocks), throttled >= THROTTLED_SHARE * len(reasons) if reasons else None)


def _history(store: FileStore, old: ComparedSide, new: ComparedSide) -> Callable[[Key], Spread | None]:
    """How much runs of one source differed on the machine of these sides, other runs than theirs."""
    runs = (*old.runs, *new.runs)
    compared, targets = {run.run_id for run in runs}, {run.target for run in runs}

    def of(key: Key) -> Spread | None:
        if len(targets) > 1:
            return None
        known = store.measurements(
            limit=MAX_HISTORY, benchmark=key.name, variant=key.variant, mode=key.mode, target=runs[0].target
        )
        return run_to_run(m for m in known if m.run_id not in compared)

    return of


def _machines(of: ComparedSide) -> list[dict[str, Any]]:
    """Environment documents where there are any, else what the records say of the hosts; and the runs' settings."""
    machines = of.of("environment") or [run.host for run in of.runs]
    return [*machines, *({"job": run.job, "settings": dict(run.settings)} for run in of.runs)]


def _source(old: ComparedSide, new: ComparedSide, history: SourceHistory | None, root: Path | None) -> Source:
    commits = old.first.source.git_commit, new.first.source.git_commit
    changes = None
    if history is not None and root is not None and commits[0] and commits[1] and commits[0] != commits[1]:
        changes = history(root, commits[0], commits[1])
    trees = {run.source.tree_sha256 for run in (*old.runs, *new.runs)}
    dirty = tuple(s.name for s in (old, new) if any(run.source.dirty for run in s.runs))
    return Source(commits[0], commits[1], len(trees) == 1, dirty, changes)


def _side_json(of: ComparedSide) -> dict[str, Any]:
    return {
        "name": of.name,
        "runs": [{**pick(run, "run_id created status"), **run.source.model_dump()} for run in of.runs],
    }
