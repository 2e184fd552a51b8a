"""What a report says, as data. No layout here, and nothing that was not measured.

All text in these classes but :class:`RunPart`'s record is clean of control characters; whoever puts it into a page
escapes it for that page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.results.levers import Finding
from orchestrator.results.records import RunRecord
from orchestrator.results.telemetry import Series
from orchestrator.results.timings import Ratio
from orchestrator.views.report.tuning import Tuned

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

    @property
    def status(self) -> str:
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
