"""What came of each trial: the record, and the files that are made of all of them."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from fcctl_tune.space import Params, Space, Value

SCHEMA_VERSION = 1

#: What a trial can come to. Only ``complete`` was timed in full; ``pruned`` was timed briefly and left behind.
STATES = (
    "complete", "pruned", "duplicate", "build_failed", "gate_failed", "wrong", "crashed", "hung", "bench_failed",
    "lost",
)  # fmt: skip
#: States that say something about the configuration. A lost trial says something about its machine, and a duplicate
#: (another configuration that built to the same binary) repeats what is known.
TIMED = ("complete", "pruned")
INVALID = ("build_failed", "gate_failed", "wrong", "crashed", "hung", "bench_failed")


@dataclass(frozen=True)
class Trial:
    """A configuration to try. ``source`` says how the search came to it."""

    number: int
    params: Params
    source: str = ""


@dataclass(frozen=True)
class TrialRecord:
    """A trial and its outcome.

    ``value`` is what the search minimises: the geometric mean over the cases of the time by the default
    configuration's time, so the default has 1. ``per_case`` has the medians themselves, in the metric's unit;
    ``seconds`` what build, check and bench took; ``rung`` how far it got in successive halving.
    """

    number: int
    params: Params
    state: str
    reason: str = ""
    value: Optional[float] = None
    rung: int = 0
    per_case: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    gpu: str = ""
    worker: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Raises: ValueError, for a state there is not, or a timed trial without a finite value above 0."""
        if self.state not in STATES:
            raise ValueError(f"trial {self.number}: there is no state {self.state!r}")
        if self.state in TIMED and not (self.value is not None and 0 < self.value < math.inf):
            raise ValueError(f"trial {self.number} is {self.state} with value {self.value!r}")

    @property
    def is_timed(self) -> bool:
        return self.state in TIMED

    @property
    def is_invalid(self) -> bool:
        return self.state in INVALID

    def to_dict(self) -> Dict[str, Any]:
        entry = dataclasses.asdict(self)
        return {**entry, "per_case": dict(self.per_case), "seconds": dict(self.seconds)}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> TrialRecord:
        """Unknown keys are ignored, so that a newer version may add some. Raises: TypeError, ValueError."""
        names = [f.name for f in dataclasses.fields(cls)]
        return cls(**{name: entry[name] for name in names if name in entry})


def objective(per_case: Mapping[str, float], default: Mapping[str, float], direction: str = "min") -> float:
    """The value to minimise: the geometric mean over ``default``'s cases of time / the default's time.

    With ``direction`` max the figures are rates, and their ratio is turned around.

    Raises:
        ValueError: a case is missing, or a figure is not finite and above 0.
    """
    logs = []
    for case, reference in default.items():
        figure = per_case.get(case, math.nan)
        if not (0 < figure < math.inf and 0 < reference < math.inf):
            raise ValueError(f"case {case}: {figure} against the default's {reference}")
        logs.append(math.log(figure / reference))
    if not logs:
        raise ValueError("no case was timed")
    mean = math.fsum(logs) / len(logs)
    return math.exp(-mean if direction == "max" else mean)


def ranked(records: Sequence[TrialRecord]) -> List[TrialRecord]:
    """Those timed in full, the fastest first; among equals the earlier."""
    return sorted((r for r in records if r.state == "complete"), key=lambda r: (r.value or 0.0, r.number))


def best_so_far(records: Sequence[TrialRecord], budget: Optional[int] = None) -> List[Optional[float]]:
    """After each trial, in their order, the least value of a complete one yet; None before there is one.

    A search that ended before ``budget`` keeps its last.
    """
    curve: List[Optional[float]] = []
    best: Optional[float] = None
    for record in records:
        if record.state == "complete" and record.value is not None and (best is None or record.value < best):
            best = record.value
        curve.append(best)
    return curve + [best] * max(0, (budget or 0) - len(curve))


#: Columns before the parameters, and after them.
_FIRST = ("trial", "state", "value", "rung", "reason", "source")
_LAST = ("build_s", "check_s", "bench_s", "gpu", "worker")


def log_csv(space: Space, records: Sequence[TrialRecord], cases: Sequence[str] = ()) -> str:
    """``tune_log.csv``: a line per trial; a time per case in the metric's unit, empty where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIRST, *space.names, *(f"time:{case}" for case in cases), *_LAST])
    for r in sorted(records, key=lambda r: r.number):
        first = [str(r.number), r.state, _figure(r.value), str(r.rung), _line(r.reason), _line(r.source)]
        chosen = [_cell(r.params.get(name, "")) for name in space.names]
        times = [_figure(r.per_case.get(case)) for case in cases]
        took = [_figure(r.seconds.get(phase)) for phase in ("build", "check", "bench")]
        writer.writerow([*first, *chosen, *times, *took, _line(r.gpu), _line(r.worker)])
    return text.getvalue()


def _figure(value: Optional[float]) -> str:
    return "" if value is None else f"{value:.6g}"


def _cell(value: Value) -> str:
    return _line(value) if isinstance(value, str) else str(value).lower()


def _line(text: str) -> str:
    """One line that a spreadsheet does not take for a formula."""
    line = " ".join(text.split())[:500]
    return "'" + line if line[:1] in "=+-@" else line


@dataclass(frozen=True)
class Summary:
    """A finished or running search, as the ``tuning`` document and the report show it.

    ``ended`` is running, budget or exhausted (every legal configuration was tried).
    """

    name: str
    title: str
    strategy: str
    seed: int
    budget: int
    ended: str
    space: Space
    records: Tuple[TrialRecord, ...]
    cases: Tuple[str, ...] = ()
    unit: str = "us"
    direction: str = "min"
    gpu: str = ""

    def elites(self, count: int) -> List[TrialRecord]:
        return ranked(self.records)[:count]

    def document(self, elites: int, final: Sequence[Mapping[str, Any]] = (), **more: Any) -> Dict[str, Any]:
        """The ``tuning`` document. ``final`` are the elites re-measured; ``more`` is added at the top (machine,
        engine's shares of time, controls)."""
        default = next((r for r in self.records if r.number == 0), None)
        return {
            "kind": "tuning",
            "schema_version": SCHEMA_VERSION,
            "tune": self.name,
            "title": self.title,
            "gpu": self.gpu,
            "search": {
                "strategy": self.strategy, "seed": self.seed, "budget": self.budget, "ended": self.ended,
                "space": {"size": self.space.size, "product": self.space.product, **self.space.to_dict()},
            },
            "metric": {"unit": self.unit, "direction": self.direction, "cases": list(self.cases)},
            "summary": {
                "trials": len(self.records),
                "states": dict(Counter(r.state for r in self.records)),
                "seconds": {k: sum(r.seconds.get(k, 0.0) for r in self.records) for k in ("build", "check", "bench")},
                "best": (best_so_far(self.records) or [None])[-1],
            },
            "default": default.to_dict() if default else None,
            "elites": [r.to_dict() for r in self.elites(elites)],
            "final": [dict(one) for one in final],
            "curve": best_so_far(self.records, None),
            "trials": [r.to_dict() for r in self.records],
            **more,
        }  # fmt: skip

    def topk(self, elites: int, final: Sequence[Mapping[str, Any]] = ()) -> Dict[str, Any]:
        """``topk.json``: the elites alone, with the default they are compared with."""
        document = self.document(elites, final)
        return {key: document[key] for key in ("tune", "gpu", "metric", "default", "elites", "final")}
