"""The record of each trial, and the documents made of all records."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from fcctl_tune.search.space import Params, Value, render
from fcctl_tune.search.spec import Spec

SCHEMA_VERSION = 1
#: Trials in a document at most; ``tune_log.csv`` has them all.
MOST_TRIALS = 20_000
PHASES = ("build", "check", "bench")

#: A trial's states. Only ``complete`` was timed in full; ``pruned`` was timed briefly.
STATES = (
    "complete", "pruned", "build_failed", "gate_failed", "wrong", "crashed", "hung", "bench_failed", "lost",
)  # fmt: skip
#: States that depend on the configuration; ``lost`` depends on the machine.
TIMED = ("complete", "pruned")
INVALID = ("build_failed", "gate_failed", "wrong", "crashed", "hung", "bench_failed")


@dataclass(frozen=True)
class Trial:
    """A configuration to try; ``source`` says by which proposal."""

    number: int
    params: Params
    source: str = ""

    @property
    def environment(self) -> Dict[str, str]:
        """Parameters as environment variables: booleans are 1 and 0, as macros want them."""
        return {name: render(value) for name, value in self.params.items()}


@dataclass(frozen=True)
class TrialRecord:
    """A trial and its outcome.

    ``value``, which the search minimises, is the geometric mean over the cases of the time by the default's time.
    ``per_case`` has the medians in the metric's unit, ``base`` recent ones of the default on the same GPU, ``seconds``
    the time of build, check and bench; ``rung`` is that of successive halving.
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
    base: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises: ValueError, for an unknown state, or a timed trial without a finite value above 0."""
        if self.state not in STATES:
            raise ValueError(f"trial {self.number}: unknown state {self.state!r}")
        if self.state in TIMED and not (self.value is not None and 0 < self.value < math.inf):
            raise ValueError(f"trial {self.number} is {self.state} with value {self.value!r}")

    @property
    def is_timed(self) -> bool:
        return self.state in TIMED

    @property
    def is_invalid(self) -> bool:
        return self.state in INVALID

    def to_dict(self) -> Dict[str, Any]:
        """``dataclasses.asdict`` takes 25 times as long, and each record is written many times."""
        nested = ("params", "per_case", "seconds", "base")
        return {**vars(self), **{name: dict(getattr(self, name)) for name in nested}}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> TrialRecord:
        """Unknown keys are ignored. Raises: TypeError, ValueError, AttributeError: it is no record."""
        names = [f.name for f in dataclasses.fields(cls)]
        return cls(**{name: entry[name] for name in names if name in entry})


def objective(per_case: Mapping[str, float], default: Mapping[str, float], direction: str = "min") -> float:
    """The geometric mean over ``default``'s cases of time / the default's time; with ``direction`` max, of rates.
    Raises ValueError: a case is missing, or a figure is not finite and above 0."""
    ratios = []
    for case, reference in default.items():
        figure = per_case.get(case, math.nan)
        if not (0 < figure < math.inf and 0 < reference < math.inf):
            raise ValueError(f"case {case}: {figure}, the default has {reference}")
        ratios.append(reference / figure if direction == "max" else figure / reference)
    if not ratios:
        raise ValueError("no case was measured")
    return statistics.geometric_mean(ratios)


def ranked(records: Sequence[TrialRecord]) -> List[TrialRecord]:
    """Those timed in full, the fastest first; among equals the earlier."""
    return sorted((r for r in records if r.state == "complete"), key=lambda r: (r.value or 0.0, r.number))


#: The factor by which a pruned trial must be faster to rank before one that was timed in full.
BRIEFLY = 1.05


def standing(record: TrialRecord) -> float:
    """A trial's value for ranking: with a margin if it was timed briefly, since the luckiest of many brief timings is
    not the fastest; infinite if it was not timed."""
    margin = 1.0 if record.state == "complete" else BRIEFLY
    return record.value * margin if record.is_timed and record.value is not None else math.inf


def eligible(records: Sequence[TrialRecord]) -> List[TrialRecord]:
    """Candidates for the last measurement: timed trials but the default, the best first, whatever their rung: early
    ones were timed in full among few."""
    return sorted((r for r in records if r.is_timed and r.number != 0), key=lambda r: (standing(r), r.number))


def best_so_far(records: Sequence[TrialRecord]) -> List[Optional[float]]:
    """After each trial the least :func:`standing` so far, or None."""
    curve: List[Optional[float]] = []
    best: Optional[float] = None
    for record in records:
        if record.is_timed:
            best = min(math.inf if best is None else best, standing(record))
        curve.append(best)
    return curve


#: Columns before the parameters, and after them.
_FIRST = ("trial", "state", "value", "rung", "reason", "source")
_LAST = ("build_s", "check_s", "bench_s", "gpu", "worker")


def _figure(value: Optional[float]) -> str:
    return "" if value is None else f"{value:.6g}"


def _cell(value: Value) -> str:
    return _line(value) if isinstance(value, str) else str(value).lower()


def _line(text: str) -> str:
    """One line that a spreadsheet does not take for a formula."""
    line = " ".join(text.split())[:500]
    return "'" + line if line.startswith(("=", "+", "-", "@")) else line


@dataclass(frozen=True)
class Summary:
    """A search's records; ``ended`` is running, budget, or exhausted (every legal configuration was tried)."""

    spec: Spec
    strategy: str
    seed: int
    ended: str
    records: Tuple[TrialRecord, ...]

    @property
    def elites(self) -> List[TrialRecord]:
        """By the search's own timings; the last measurement may replace some."""
        return eligible(self.records)[: self.spec.elites]

    def refuted(self, final: Sequence[Mapping[str, Any]]) -> Dict[str, Tuple[str, str]]:
        """State and reason of the configurations that failed in the last measurement, ``final``, by key."""
        failed = {entry["trial"]: entry for entry in final if entry.get("verdict") == "failed"}
        return {
            self.spec.known_space.key(r.params): (failed[r.number]["state"], failed[r.number]["reason"])
            for r in self.records if r.number in failed
        }  # fmt: skip

    def knowing(self, refuted: Mapping[str, Tuple[str, str]]) -> Summary:
        """The summary with these failures; the journal is not changed."""
        key = self.spec.known_space.key
        records = [_refuted(r, *refuted[key(r.params)]) if key(r.params) in refuted else r for r in self.records]
        return dataclasses.replace(self, records=tuple(records)) if refuted else self

    def document(self, **more: Any) -> Dict[str, Any]:
        """The ``tuning`` document. ``more`` is of the measurement: ``machine``, ``complete``, ``wall_s``,
        ``gpu_busy_pct``, ``effort``, ``controls`` (each of :meth:`control`), ``final``, the elites measured again."""
        space, metric = self.spec.known_space, self.spec.metric
        default = next((r for r in self.records if r.number == 0), None)
        return {
            "kind": "tuning", "schema_version": SCHEMA_VERSION,
            "tune": self.spec.tune, "title": self.spec.title,
            "search": {
                **self._search(), "space": {"size": space.size, "product": space.product, **space.outline()},
            },
            "metric": {
                "unit": metric.unit, "direction": metric.direction, "cases": list(self.spec.cases),
                "held_out": list(self.spec.held_out),
            },
            "summary": {
                **self._counts(),
                "seconds": {k: math.fsum(r.seconds.get(k, 0.0) for r in self.records) for k in PHASES},
            },
            "default": default.to_dict() if default else {"number": 0, "params": space.default},
            "elites": [self._elite(rank, record) for rank, record in enumerate(self.elites, 1)],
            "curve": best_so_far(self.records),
            "trials": [r.to_dict() for r in self.records[:MOST_TRIALS]],
            "complete": self.ended != "running", "final": [], "controls": [],
            **more,
        }  # fmt: skip

    def control(self) -> Dict[str, Any]:
        """This search as a control of another: its strategy, states and curve."""
        return {**self._search(), **self._counts(), "curve": best_so_far(self.records)}

    def _search(self) -> Dict[str, Any]:
        return {"strategy": self.strategy, "seed": self.seed, "budget": self.spec.trials, "ended": self.ended}

    def _counts(self) -> Dict[str, Any]:
        counts, best = Counter(r.state for r in self.records), min(map(standing, self.records), default=math.inf)
        return {
            "trials": len(self.records), "states": {state: counts[state] for state in STATES if counts[state]},
            "best": best if best < math.inf else None,
        }  # fmt: skip

    def log_csv(self) -> str:
        """``tune_log.csv``: a line for each trial, with its times and the default's in the metric's unit."""
        names, cases = self.spec.known_space.names, self.spec.cases
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        timed = [f"{what}:{case}" for what in ("time", "default") for case in cases]
        writer.writerow([*_FIRST, *names, *timed, *_LAST])
        for r in sorted(self.records, key=lambda r: r.number):
            first = [str(r.number), r.state, _figure(r.value), str(r.rung), _line(r.reason), _line(r.source)]
            chosen = [_cell(r.params.get(name, "")) for name in names]
            times = [_figure(several.get(case)) for several in (r.per_case, r.base) for case in cases]
            took = [_figure(r.seconds.get(phase)) for phase in PHASES]
            writer.writerow([*first, *chosen, *times, *took, _line(r.gpu), _line(r.worker)])
        return text.getvalue()

    def _elite(self, rank: int, record: TrialRecord) -> Dict[str, Any]:
        return {"rank": rank, "trial": record.number, "key": self.spec.known_space.key(record.params),
                **record.to_dict()}  # fmt: skip


def _refuted(record: TrialRecord, state: str, reason: str) -> TrialRecord:
    state = state if state in INVALID else "lost"
    return dataclasses.replace(record, state=state, reason="the last measurement: " + reason, value=None)


def topk(document: Mapping[str, Any]) -> Dict[str, Any]:
    """``topk.json``: the elites of the ``tuning`` document, with the default."""
    keys = ("tune", "title", "gpu", "machine", "metric", "default", "elites", "final", "complete")
    return {key: document[key] for key in keys if key in document}
