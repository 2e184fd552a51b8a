"""What a ``tuning`` document says, as far as it says it rightly: a host wrote it, and a host is not trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from orchestrator.base.sanitize import listed, number, objects, part, table
from orchestrator.results.timings import Ratio

MAX_TRIALS = 100_000
#: What no true document has more of: entries of a mapping (parameters and one more, so that this shows), states and
#: models, controls, elites. Who prints them must not drown in what a host makes up.
MAX_ENTRIES, MAX_KINDS, MAX_CONTROLS, MAX_ELITES = 129, 16, 4, 1000
MAX_WHOLE = 2**63
#: States of a trial that was not timed, and says why.
FAILED = ("build_failed", "gate_failed", "wrong", "crashed", "hung", "bench_failed", "lost")

Value = bool | int | float | str


@dataclass(frozen=True)
class CaseTime:
    """One elite on one case, in turns with the default configuration. ``time`` is in the metric's unit."""

    case: str
    time: float | None
    ratio: Ratio
    held_out: bool = False


@dataclass(frozen=True)
class Elite:
    """One of the best, measured again on inputs that the search never saw."""

    trial: int
    params: Mapping[str, Value]
    state: str
    reason: str
    cases: tuple[CaseTime, ...]
    searched: Ratio | None
    held_out: Ratio | None

    @property
    def verdict(self) -> str:
        """By the interval of what it was never searched on, by that of all if nothing was held out; ``mixed`` if the
        other one proves the contrary."""
        if self.state != "complete":
            return self.state.replace("_", " ")
        said = _compared(self.held_out or self.searched)
        return "mixed" if {said, _compared(self.searched)} == {"faster", "slower"} else said

    @property
    def proven(self) -> bool:
        return self.verdict == "faster"

    @property
    def proven_elsewhere(self) -> bool:
        """Whether it is faster on what it was not searched on, maybe on one of its cases alone."""
        return self.state == "complete" and _compared(self.held_out or self.searched) == "faster"


def _compared(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return "not measured"
    return "faster" if ratio.high < 1 else "slower" if ratio.low > 1 else "undecided"


@dataclass(frozen=True)
class TimedTrial:
    """A trial as the search itself timed it, the best of one or any: ``value`` is its time over the default's."""

    trial: int
    params: Mapping[str, Value]
    value: float


@dataclass(frozen=True)
class Control:
    """The same budget spent in another way. ``curve``: the best value after each trial, None before there is one."""

    strategy: str
    curve: tuple[float | None, ...]

    @property
    def best(self) -> float | None:
        return next((v for v in reversed(self.curve) if v is not None), None)


@dataclass(frozen=True)
class TuneResult:
    """One search. Values are times over the default configuration's: below 1 is faster."""

    name: str
    gpu: str
    sms: int | None
    #: Models that its trials were timed on: figures of different ones do not compare.
    gpus: tuple[str, ...]
    unit: str
    cases: tuple[str, ...]
    seed: int | None
    budget: int | None
    size: int | None
    ended: str
    complete: bool
    search: Control
    controls: tuple[Control, ...]
    states: Mapping[str, int]
    reasons: tuple[tuple[str, str, int], ...]  # state, reason, how many trials; the most frequent first
    elites: tuple[Elite, ...]
    leader: TimedTrial | None = None
    #: Every trial that was timed, in their order.
    timed: tuple[TimedTrial, ...] = ()
    default: Mapping[str, Value] = field(default_factory=dict)
    effort: Mapping[str, float] = field(default_factory=dict)
    #: Why it stopped; empty if nothing stopped it.
    fault: str = ""
    #: Seconds from its start to its end, the second measurement included.
    wall_s: float | None = None

    @property
    def trials(self) -> int:
        return sum(self.states.values())

    @property
    def unmeasured(self) -> TimedTrial | None:
        """The best of a search that was cut off before its elites were measured again."""
        return None if self.complete or self.elites else self.leader

    @property
    def best(self) -> Elite | None:
        """The elite with the least time on what was searched on: what was held out judges it, and did not choose it."""
        timed = [e for e in self.elites if e.state == "complete" and (e.held_out or e.searched)]
        return min(timed, key=_order, default=None)


def _order(elite: Elite) -> float:
    ratio = elite.searched or elite.held_out
    return ratio.value if ratio is not None else float("inf")


def read(content: Mapping[str, Any]) -> TuneResult:
    """The result in a document. What is missing or makes no sense is left out."""
    search, metric, gpu = (table(content.get(key)) for key in ("search", "metric", "gpu"))
    trials = objects(listed(content.get("trials"))[:MAX_TRIALS])
    models = tuple(dict.fromkeys(str(t["gpu"]) for t in trials if t.get("gpu")))[:MAX_KINDS]
    counts = dict(islice(table(part(content, "summary", "states")).items(), MAX_KINDS))
    states = {str(k): n for k, v in counts.items() if (n := _whole(v))}
    cases = tuple(str(case) for case in listed(metric.get("cases"))[:MAX_ENTRIES])
    unit = str(metric.get("unit") or "us")
    params = {n: _params(t.get("params")) for t in trials if (n := _whole(t.get("number"))) is not None}
    return TuneResult(
        name=str(content.get("tune") or ""),
        gpu=str(gpu.get("name") or "") or (models[0] if models else ""),
        sms=_whole(gpu.get("sms")),
        gpus=models,
        unit=unit,
        cases=cases,
        seed=_whole(search.get("seed")),
        budget=_whole(search.get("budget")),
        size=_whole(part(search, "space", "size")),
        ended=str(search.get("ended") or ""),
        complete=content.get("complete") is True,
        search=Control(str(search.get("strategy") or ""), _curve(content.get("curve"))),
        controls=tuple(
            Control(str(c.get("strategy") or ""), _curve(c.get("curve")))
            for c in objects(listed(content.get("controls"))[:MAX_CONTROLS])
        ),
        states=states or dict(Counter(str(t.get("state")) for t in trials).most_common(MAX_KINDS)),
        reasons=tuple(_reasons(trials)),
        elites=tuple(_elite(e, params, unit, cases) for e in objects(listed(content.get("final"))[:MAX_ELITES])),
        leader=_timed(next(iter(listed(content.get("elites"))), None), "trial"),
        timed=tuple(one for t in trials if (one := _timed(t, "number"))),
        default=_params(part(content, "default", "params")),
        fault=str(content.get("fault") or ""),
        wall_s=number(content.get("wall_s")),
        effort={str(k): f for k, v in table(content.get("effort")).items() if (f := number(v)) is not None},
    )  # fmt: skip


def _elite(
    entry: Mapping[str, Any], params: Mapping[int, Mapping[str, Value]], unit: str, cases: tuple[str, ...]
) -> Elite:
    timed = []
    for case, figures in islice(table(entry.get("per_case")).items(), MAX_ENTRIES):
        ratio = _ratio(figures)
        if ratio is not None:
            timed.append(CaseTime(str(case), number(figures.get(unit)), ratio, case not in cases))
    trial = _whole(entry.get("trial")) or 0
    return Elite(
        trial=trial,
        params=_params(entry.get("params")) or params.get(trial, {}),
        state=str(entry.get("state") or "complete"),
        reason=str(entry.get("reason") or ""),
        cases=tuple(timed),
        searched=_ratio(entry),
        held_out=_ratio(entry.get("held_out")),
    )


def _timed(entry: Any, numbered: str) -> TimedTrial | None:
    known = table(entry)
    trial, value = _whole(known.get(numbered)), number(known.get("value"))
    return TimedTrial(trial, _params(known.get("params")), value) if trial is not None and value and value > 0 else None


def _ratio(entry: Any) -> Ratio | None:
    value, low, high = (number(part(entry, key)) for key in ("ratio", "ci_low", "ci_high"))
    if value is None or value <= 0:
        return None
    measured = low is not None and high is not None and 0 < low <= value <= high
    return Ratio(value, low, high, paired=True) if measured else Ratio(value)


def _reasons(trials: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """Why trials failed: the first line of each reason, counted."""
    found: Counter[tuple[str, str]] = Counter()
    for trial in trials:
        state = str(trial.get("state"))
        if state in FAILED:
            found[state, (str(trial.get("reason") or "").strip().splitlines() or [""])[0]] += 1
    return [(state, reason, count) for (state, reason), count in found.most_common()]


def _curve(value: Any) -> tuple[float | None, ...]:
    return tuple(number(v) for v in listed(value)[:MAX_TRIALS])


def _params(value: Any) -> dict[str, Value]:
    return {str(k): v for k, v in islice(table(value).items(), MAX_ENTRIES) if isinstance(v, bool | int | float | str)}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_WHOLE else None
