"""What a report says, as data, and what it says of a search. Nothing that was not measured.

All text in these classes but :class:`RunPart`'s record is clean of control characters; whoever puts it into a page
escapes it for that page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean
from orchestrator.results import tuning as tune_result
from orchestrator.results.documents import Series
from orchestrator.results.levers import Finding
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord
from orchestrator.results.timings import Ratio
from orchestrator.results.tuning import Control, TimedTrial, TuneResult, Value
from orchestrator.views.blocks import Block, Cell, Facts, Grid, Line, Text
from orchestrator.views.figures import duration, microseconds

if TYPE_CHECKING:
    from orchestrator.results.compare.compare import Report as Comparison

#: The case that is the headline where it was measured.
MISSION = "mission"
#: What stands for the GPU's name of a run on a machine that has none.
NO_GPU = "no GPU"


@dataclass(frozen=True)
class Grade:
    """What the kernel's authors make of its time, as their benchmark document says it."""

    letter: str
    next_step: str


@dataclass(frozen=True)
class Row:
    """One timing, with what is known of the kernel's correctness."""

    run: str
    machine: str
    document: str  # the path of the one it is from
    name: str  # the benchmark's, as its tool says it
    label: str
    case: str
    mode: str
    unit: str
    is_reference: bool
    stats: dict[str, float]
    samples: tuple[float, ...] = ()
    shape: dict[str, int] | None = None
    against: dict[str, Ratio] = field(default_factory=dict)  # math, flash, best: our time over theirs
    roofline_pct: float | None = None
    roofline_bound: str | None = None
    tflops: float | None = None
    error: str = ""
    correctness: Correctness | None = None
    grade: Grade | None = None
    #: The case is the size that the benchmark's name says.
    sized: bool = False

    @property
    def p50(self) -> float | None:
        return self.stats.get("p50")

    @property
    def typical(self) -> float | None:
        """The median; the mean of tools that report no other."""
        return self.stats.get("p50", self.stats.get("mean"))

    @property
    def status(self) -> str:
        """In words: whether the figure may be believed."""
        if self.error:
            return f"failed: {self.error}"
        if self.is_reference:
            return "reference"
        return self.correctness.status if self.correctness else "not checked"


@dataclass(frozen=True)
class Correctness:
    passed: int
    total: int
    max_err: float | None = None
    skipped: int = 0

    def with_more(self, other: Correctness) -> Correctness:
        """The results of both together."""
        worst = max((one.max_err for one in (self, other) if one.max_err is not None), default=None)
        counts = self.passed + other.passed, self.total + other.total
        return Correctness(*counts, worst, self.skipped + other.skipped)

    @property
    def status(self) -> str:
        if self.passed == 0 and self.skipped >= self.total:
            return f"not checked, {self.skipped} skipped" if self.skipped else "not checked"
        if self.skipped and self.passed + self.skipped >= self.total:
            return f"passed {self.passed}/{self.total}, {self.skipped} skipped"
        return f"{'correct' if self.passed == self.total else 'wrong'} {self.passed}/{self.total}"


@dataclass(frozen=True)
class Profiled:
    """One kernel as Nsight Compute saw it. Its duration is not in here: a profiler's is no benchmark."""

    run: str
    label: str
    kernel: str
    shape: str
    metrics: dict[str, float]
    stalls: dict[str, float]
    findings: tuple[Finding, ...] = ()
    #: What a metric should reach at least, where the kernel's authors say that.
    targets: dict[str, float] = field(default_factory=dict)

    @property
    def top_stalls(self) -> list[tuple[str, float]]:
        """Reasons and their percent of a warp's life, the largest three."""
        total = sum(self.stalls.values())
        ordered = sorted(self.stalls.items(), key=lambda item: -item[1])
        return [(name, 100 * value / total) for name, value in ordered[:3] if value > 0] if total > 0 else []


@dataclass(frozen=True)
class Table:
    """Timings that may stand beside each other: one machine, case, mode and unit; the fastest of ours first."""

    machine: str
    case: str
    mode: str
    unit: str
    rows: tuple[Row, ...]

    @property
    def ours(self) -> tuple[Row, ...]:
        return tuple(r for r in self.rows if not r.is_reference)

    @property
    def rival(self) -> str:
        """What its references are called: ``SDPA`` if all are PyTorch's attention."""
        return "SDPA" if all(r.label.startswith("SDPA") for r in self.rows if r.is_reference) else "reference"


@dataclass(frozen=True)
class Goal:
    """What the whole job is for, as a ``metrics`` document says it: ``"goal": {"met", "text", "label"}``."""

    met: bool
    text: str
    label: str  # the kernel that it is said of


@dataclass(frozen=True)
class RunPart:
    """One run: its record, in which a host's texts are not clean yet, and what its other files say of it."""

    record: RunRecord
    machine: tuple[tuple[str, str], ...]
    gpu: str
    telemetry: Series
    ceilings: dict[str, float]
    problems: tuple[str, ...]

    @property
    def run_id(self) -> str:
        return self.record.run_id


@dataclass(frozen=True)
class Report:
    runs: tuple[RunPart, ...]
    tables: tuple[Table, ...]  # the headline first
    profiles: tuple[Profiled, ...]
    tunings: tuple[Tuned, ...] = ()
    goals: tuple[Goal, ...] = ()
    #: Of several runs the first with each other one.
    comparison: tuple[Comparison, ...] = ()

    @property
    def headline(self) -> Table | None:
        return self.tables[0] if self.tables else None

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.gpu for run in self.runs))

    def suffix(self, run_id: str) -> str:
        """What tells a run's part from the others', if there are several."""
        return f" ({run_id[-6:]})" if len(self.runs) > 1 else ""


#: Reasons and cases beyond these are a log's matter.
MAX_REASONS, MAX_CASES, MAX_ELITES = 12, 4, 40
_SHARES = (
    "Times divided by the default configuration's; below 1 is faster. Elites were measured again, with 95 % intervals, "
    "interleaved with the default, on inputs that the search did not use."
)
_CONTROLS = ("search", "trials", "best time / default's time in the search", "as good as the control after")


@dataclass(frozen=True)
class Tuned:
    """One search of a run."""

    run: str
    label: str
    machine: str
    result: TuneResult
    facts: tuple[tuple[str, str], ...]
    controls: Grid
    elites: Grid
    reasons: Grid

    @property
    def curves(self) -> tuple[Control, ...]:
        return (self.result.search, *self.result.controls)

    @property
    def verdict(self) -> str:
        """In a sentence."""
        best, leader = self.result.best, self.result.unmeasured
        if self.result.fault:
            return f"The search of {self.label} stopped: {clean(self.result.fault, 400)}."
        if leader is not None:
            return f"The search of {self.label} was {so_far(leader, self.result)}."
        if best is None:
            return f"The search of {self.label} found no configuration that the second measurement confirmed."
        ratio, where = best.held_out or best.searched, "held-out cases" if best.held_out else "the searched cases"
        trials = plural(self.result.trials, "trial")
        result = f"The best of {trials} of {self.label} takes {share(ratio)} of the default's time"
        return f"{result} on {where}: {best.verdict}."


def tuned(shown: Shown) -> Iterator[Tuned]:
    """Every search of a run."""
    for document in shown.documents.of("tuning"):
        yield read(document.content, shown.record.run_id)


def read(content: dict[str, Any], run: str = "") -> Tuned:
    result, title = tune_result.read(content), content.get("title")
    controls = tuple(_controls(result))
    return Tuned(
        run=run, label=clean(f"{result.name} ({title})" if title else result.name, 100),
        machine=clean(result.gpu or "unknown machine", 60), result=result, facts=tuple(_facts(result)),
        controls=Grid(_CONTROLS, controls, f"Search{' and control, at the same budget' * (len(controls) > 1)}"),
        elites=_elites(result),
        reasons=Grid(("state", "trials", "reason"), tuple(_reasons(result)), "Trials that failed"),
    )  # fmt: skip


def blocks(one: Tuned) -> Iterator[Block]:
    """What was tried, the elites with the evidence for them, and why trials failed."""
    yield Text(one.verdict, style="" if one.result.best else "doubt")
    yield Facts(one.facts)
    yield from (grid for grid in (one.controls, one.elites, one.reasons) if grid.rows)
    yield Text(_SHARES, note=True)


def proven(content: dict[str, Any]) -> bool:
    """Whether some elite is faster than the default beyond doubt."""
    return any(elite.proven for elite in tune_result.read(content).elites)


def _facts(result: TuneResult) -> Iterable[tuple[str, str]]:
    states = ", ".join(f"{count} {state_words(state)}" for state, count in result.states.items())
    busy, wall = result.effort.get("gpu_timed_share"), result.wall_s
    on = [clean(model, 60) for model in result.gpus]
    facts = (
        ("trials", ": ".join(filter(None, [f"{result.trials} of {result.budget}" if result.budget else "", states]))),
        ("configurations", "unlimited" if result.size is None else str(result.size)),
        ("cases", clean(", ".join(result.cases), 200)),
        ("timed on", ", ".join(on) + (" (times on different GPUs cannot be compared)" if len(on) > 1 else "")),
        ("duration", duration(wall) if wall is not None else ""),
        ("GPU time for checks and timing", f"{100 * busy:.0f} %" if busy is not None else ""),
        ("default", changed(result.default, {})),
        ("seed", str(result.seed) if result.seed is not None else ""),
        ("ended", "" if result.complete else "early"),
    )
    return [(name, value) for name, value in facts if value]


def _controls(result: TuneResult) -> Iterator[tuple[str, ...]]:
    for control in (result.search, *result.controls):
        best = "" if control.best is None else f"{control.best:.4f}"
        if control.curve:
            matched = _matched(result) if control is result.search else ""
            yield curve_name(control, control is not result.search), str(len(control.curve)), best, matched


def curve_name(control: Control, is_control: bool) -> str:
    return clean(control.strategy or "search", 20) + (" (control)" if is_control else "")


def _matched(result: TuneResult) -> str:
    """After how many trials the search was as good as each control was in the end."""
    words = []
    for best in (control.best for control in result.controls):
        curve = enumerate(result.search.curve, 1)
        at = next((n for n, v in curve if best is not None and v is not None and v <= best), None)
        words.append("never" if at is None else plural(at, "trial"))
    return ", ".join(words)


def _elites(result: TuneResult) -> Grid:
    unit, held_out = clean(result.unit, 8), any(elite.held_out for elite in result.elites)
    rows: list[Line] = []
    for elite in result.elites[:MAX_ELITES]:
        times = [
            f"{clean(c.case, 40)}{' (held out)' if c.held_out else ''} {microseconds(c.time)} {unit}"
            for c in elite.cases[:MAX_CASES] if c.time is not None
        ]  # fmt: skip
        more = ", ..." if len(elite.cases) > MAX_CASES else ""
        measured = (elite.searched, elite.held_out) if held_out else (elite.searched,)
        verdict = Cell(elite.verdict, clean(elite.reason or "", 120), "status")
        changes = changed(elite.params, result.default)
        rows.append((str(elite.trial), changes, *map(share, measured), verdict, ", ".join(times) + more))
    header = ("trial", "parameters", "searched cases", *(("held-out cases",) if held_out else ()), "verdict", "times")
    return Grid(header, tuple(rows), "Elites, measured again", optional=(len(header) - 1,))


def _reasons(result: TuneResult) -> Iterator[tuple[str, ...]]:
    for state, reason, count in result.reasons[:MAX_REASONS]:
        yield state_words(state), str(count), clean(reason, 160)
    if more := sum(count for _, _, count in result.reasons[MAX_REASONS:]):
        yield "others", str(more), "see tune_log.csv"


# ------------------------------------------------------------------------------------------------ words
def so_far(leader: TimedTrial, result: TuneResult) -> str:
    """The best of a search that was cut off, in a sentence without an end."""
    figure, params = f"{leader.value:.3f} of the default's time", changed(leader.params, result.default)
    return f"interrupted; the best so far, not measured again: trial {leader.trial}, {figure}, {clean(params, 300)}"


def state_words(state: str) -> str:
    return clean(state, 20).replace("_", " ")


def changed(params: Mapping[str, Value], default: Mapping[str, Value]) -> str:
    """The parameters that are not the default's."""
    parts = [f"{clean(k, 40)}={clean(v, 40)}" for k, v in params.items() if default.get(k) != v]
    return " ".join(parts) or "the default"


def share(ratio: Ratio | None) -> str:
    """``0.870 [0.860, 0.880]``, time over the default's with its 95 % interval; empty if not measured."""
    if ratio is None:
        return ""
    interval = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"{ratio.value:.3f}{interval}"
