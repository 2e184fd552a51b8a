"""Two sides compared, benchmark by benchmark, each with a verdict.

========================  =============================================================================================
verdict                   when
========================  =============================================================================================
incomparable              another GPU, driver, clock, throttling, shape, unit or method: the times do not mean the same
slower, faster            significant after Holm's correction over all benchmarks, and by ranks
same                      otherwise, and the equivalence test (90 % interval) says: no difference beyond the margin
inconclusive              neither: too little was measured to tell
========================  =============================================================================================

``ratio`` is the new time over the old one: 1.05 is 5 % slower.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any, Literal

from orchestrator.base.errors import UsageError, did_you_mean
from orchestrator.results.compare.effect import MIN_LAUNCHES, SPREAD, SPREAD_CALLS, Effect, Spread, effect
from orchestrator.results.compare.facts import paired
from orchestrator.results.compare.ranks import holm, midranks
from orchestrator.results.compare.rows import Key, Row, obstacles, sample_notes

Verdict = Literal["faster", "slower", "same", "inconclusive", "incomparable"]
VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "same", "inconclusive", "incomparable")

#: The chance that a comparison of equals calls anything in it faster or slower.
ALPHA = 0.05
#: A difference up to which two times may be called the same, as a share; and one that nobody minds however certain.
MARGIN, NEGLIGIBLE = 0.03, 0.005
#: Assumed between sides that were not measured in turns, where nothing shows it; of single calls from a program, too.
DRIFT, DRIFT_CALLS = Spread(0.01), Spread(0.025)
#: Sides count as measured in turns up to this difference of the mean ranks of their times: A B A B A B has a third.
IN_TURNS = 1 / 3 + 1e-9
#: Clocks further apart than this explain a difference by themselves.
CLOCK_TOLERANCE = 0.03
#: Modes that time single calls from a program: the processor takes part.
CALLS = frozenset({"eager", "wall", "cpu"})
#: How much runs of one source differ here, of a benchmark; None where too few are known.
History = Callable[[Key], Spread | None]
#: How a drift is known that is not assumed away by turns.
BASIS = {
    "controls": "unchanged code differed by this much", "history": "from the difference between runs of the same "
    "source on this machine",
    "assumed": "assumed, without a measurement",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What to compare, and how strictly. Shares: 0.01 is 1 %."""

    metric: str = "p50"
    alpha: float = ALPHA
    margin: float = MARGIN
    #: Assumed between launches where there are too few to measure it; None: by the mode, see effect.py.
    spread: float | None = None
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Compared:
    """One benchmark on both sides. ``p_adjusted`` is Holm's."""

    name: str
    variant: str
    mode: str
    unit: str
    verdict: Verdict
    shape: dict[str, int] = field(default_factory=dict)
    effect: Effect | None = None
    p_adjusted: float | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_control: bool = False

    def as_json(self) -> dict[str, Any]:
        plain = asdict(self)
        found = plain.pop("effect") or {}
        return {**plain, **{key: value for key, value in found.items() if key != "lacks"}}


@dataclass(frozen=True)
class Comparison:
    """All benchmarks of two sides, ours first, the worst first."""

    options: Options
    benchmarks: tuple[Compared, ...]
    controls: tuple[Compared, ...]  # code that is not ours, timed in the same processes
    only_old: tuple[Key, ...] = ()
    only_new: tuple[Key, ...] = ()
    #: Whether the launches of both sides were measured in turns; None if nobody knows when.
    interleaved: bool | None = None

    def counts(self) -> dict[str, int]:
        return {v: sum(b.verdict == v for b in self.benchmarks) for v in VERDICTS}


def compare(
    old: Sequence[Row], new: Sequence[Row], options: Options | None = None, history: History = lambda _: None
) -> Comparison:
    """Match the rows of two sides and judge each pair. Several rows of one benchmark are several launches.

    Needs NumPy and SciPy, which are imported when it is called.
    """
    options = options or Options()
    pairs, only_old, only_new = _matched(_grouped(old), _grouped(new))
    interleaved = _interleaved(old, new) if old and new else None
    measured = [_measured(p, options, history, 0.0) for p in pairs if p.is_control]
    ours = [
        _measured(p, options, history, _moved(measured, p.new[0].key.mode, interleaved=interleaved))
        for p in pairs
        if not p.is_control
    ]
    return Comparison(
        options=options,
        benchmarks=tuple(sorted(_judged(ours, options), key=_order)),
        controls=tuple(_judged(measured, options)),
        only_old=tuple(only_old),
        only_new=tuple(only_new),
        interleaved=interleaved,
    )


@dataclass(frozen=True)
class _Pair:
    old: list[Row]
    new: list[Row]

    @property
    def is_control(self) -> bool:
        return self.new[0].is_control and self.old[0].is_control


def _grouped(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    return found


def _matched(old: dict[Key, list[Row]], new: dict[Key, list[Row]]) -> tuple[list[_Pair], list[Key], list[Key]]:
    """Pairs in the new side's order. What is left over matches by name and mode alone, where that is unambiguous:
    one variant against another."""
    pairs, left_old, left_new = paired(old, new, lambda rows: (rows[0].key.name, rows[0].key.mode))
    return [_Pair(old[before], new[after]) for before, after in pairs], left_old, left_new


def _measured(pair: _Pair, options: Options, history: History, moved: float | None) -> Compared:
    """A pair with its effect, and the verdict as far as one benchmark alone decides it. ``moved`` is the standard
    deviation between the sides that controls show."""
    key, was = pair.new[0].key, pair.old[0].key
    reasons, notes = _obstacles(pair, options)
    spread, drift = _spread(pair, options, history), _drift(pair, history, moved)
    shown = max((moved or 0.0) / math.sqrt(2), _clock_unrest(pair))  # two launches differ by the square root of two
    found = effect(
        [r.launch for r in pair.old], [r.launch for r in pair.new], metric=options.metric,
        spread=spread.at_least(shown), drift=drift, confidence=1 - options.alpha,
    )  # fmt: skip
    reasons += obstacles(pair.old, pair.new, options.metric, found)
    notes += sample_notes(pair.old, pair.new, options.metric)
    if found and found.basis == "launches":
        notes += _drift_notes(drift, interleaved=_interleaved(pair.old, pair.new))
    elif found and shown > spread.share and moved:
        notes.append(f"unchanged code differed too: fcctl assumes that launches differ by {100 * shown:.1f} %")
    if (clocks := _clock_unrest(pair)) >= NEGLIGIBLE:
        notes.append(f"the clocks differ by {100 * clocks:.1f} %, so the times may differ as much")
    if was.variant != key.variant:
        notes.append(f"variant {was.variant or 'unnamed'} against {key.variant or 'unnamed'}")
    return Compared(
        name=key.name,
        variant=key.variant,
        mode=key.mode,
        unit=pair.new[0].unit,
        shape=dict(pair.new[0].shape),
        verdict="incomparable" if reasons else "inconclusive",
        effect=found,
        reasons=tuple(reasons) or tuple(filter(None, [found.lacks if found else ""])),
        notes=tuple(notes),
        is_control=pair.is_control,
    )


def _spread(pair: _Pair, options: Options, history: History) -> Spread:
    """Between launches, where too few are there to measure it."""
    key = pair.new[0].key
    if options.spread is not None:
        return Spread(options.spread, "stated")
    few = min(len(pair.old), len(pair.new)) < MIN_LAUNCHES
    known = history(key) if few and options.metric == "p50" else None  # which is what the index keeps
    return known or (SPREAD_CALLS if key.mode in CALLS else SPREAD)


def _drift(pair: _Pair, history: History, moved: float | None) -> Spread:
    """Between the sides, however many launches they have. What controls show counts always; what nothing shows is
    taken from history or assumed where one side was measured before the other."""
    clocks = _clock_unrest(pair)
    if moved is not None:
        return Spread(moved, "controls").at_least(clocks)
    if _interleaved(pair.old, pair.new):
        return Spread(0.0).at_least(clocks)
    key = pair.new[0].key
    return (history(key) or (DRIFT_CALLS if key.mode in CALLS else DRIFT)).at_least(clocks)


def _drift_notes(drift: Spread, *, interleaved: bool | None) -> list[str]:
    """What widens a comparison of many launches."""
    size = f"{100 * drift.share:.1f} %"
    if interleaved:
        moved = drift.source == "controls" and drift.share >= NEGLIGIBLE
        return [f"unchanged code differed too: the verdict allows for a drift of {size} between the sides"] * moved
    said = "may not have been" if interleaved is None else "were not"
    sides = f"the launches of both sides {said} interleaved"
    return [f"{sides}: the verdict allows for a drift of {size} between them ({BASIS[drift.source]})"]


def _interleaved(old: Sequence[Row], new: Sequence[Row]) -> bool | None:
    """Whether the launches of both sides were taken in turns, so that what drifts hits both alike; None if times are
    unknown. By the mean ranks of their times: 0 apart in turns A B B A, 1 if one side came first."""
    times = [row.time for row in (*old, *new)]
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    ranks, _ = midranks(known)
    apart = abs(fmean(ranks[: len(old)]) - fmean(ranks[len(old) :])) * 2 / len(ranks)
    return apart <= IN_TURNS


def _moved(controls: Sequence[Compared], mode: str, *, interleaved: bool | None) -> float | None:
    """The standard deviation between the sides that the controls of this mode show, robust against single ones; None
    without any. In turns, what a control's own interval explains is no movement."""
    found = [c.effect for c in controls if c.effect and c.mode == mode and c.verdict != "incomparable"]
    sizes = [0.0 if interleaved and e.low <= 1 <= e.high else abs(math.log(e.ratio)) for e in found]
    return median(sizes) / 0.6745 if sizes else None  # the median of |x| of a normal x is 0.6745 standard deviations


def _clock_unrest(pair: _Pair) -> float:
    """Clocks within the tolerance still move the times by as much."""
    clocks = [_middle([r.conditions.sm_mhz for r in side]) for side in (pair.old, pair.new)]
    return abs(math.log(clocks[1] / clocks[0])) if clocks[0] and clocks[1] else 0.0


def _obstacles(pair: _Pair, options: Options) -> tuple[list[str], list[str]]:
    """Why the two sides cannot be compared, and why they could not be, had ``allow`` not said so."""
    found = [(name, said) for name, said in _differences(pair) if said]
    return (
        [said for name, said in found if name not in options.allow],
        [said for name, said in found if name in options.allow],
    )


def _differences(pair: _Pair) -> Iterable[tuple[str, str]]:
    yield "unit", _unlike(pair, "unit", lambda r: r.unit or "not stated")
    yield "shape", _unlike(pair, "shape", lambda r: ",".join(f"{k}={v}" for k, v in r.shape))
    yield "method", _unlike(pair, "measurement method", lambda r: r.method)
    yield "gpu", _unlike(pair, "device", lambda r: r.conditions.device)
    yield "gpu", _unlike(pair, "partitioning (MIG)", lambda r: r.conditions.mig)
    yield "gpu", _unlike(pair, "number of threads", lambda r: r.conditions.threads)
    yield "driver", _unlike(pair, "driver", lambda r: r.conditions.driver)
    yield "clocks", _unlike(pair, "power limit", lambda r: r.conditions.power_limit_w)
    yield "clocks", _other_clocks(pair)
    yield "throttling", _other_throttling(pair)


def _unlike(pair: _Pair, what: str, of: Callable[[Row], Any]) -> str:
    """What differs within or between the sides; what one side does not know cannot."""
    old, new = ({str(of(r)) for r in side if of(r) not in (None, "")} for side in (pair.old, pair.new))
    if not old or not new or len(old | new) == 1:
        return ""
    return f"different {what}: {' and '.join(sorted(old))} before, now {' and '.join(sorted(new))}"


def _other_clocks(pair: _Pair) -> str:
    old, new = (_middle([r.conditions.sm_mhz for r in side]) for side in (pair.old, pair.new))
    if not old or not new or abs(math.log(new / old)) <= math.log1p(CLOCK_TOLERANCE):
        return ""
    return f"different clocks: {old:.0f} MHz before, now {new:.0f} MHz"


def _other_throttling(pair: _Pair) -> str:
    states = [{r.conditions.throttled for r in side} - {None} for side in (pair.old, pair.new)]
    if not states[0] or not states[1] or len(states[0] | states[1]) == 1:
        return ""
    told = ["in some launches" if len(s) > 1 else "yes" if True in s else "no" for s in states]
    return f"different throttling: {told[0]} before, now {told[1]}"


def _middle(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v]
    return median(known) if known else None


def _judged(found: list[Compared], options: Options) -> list[Compared]:
    """Verdicts over the whole family."""
    family = [i for i, c in enumerate(found) if c.effect and c.verdict != "incomparable" and not c.effect.lacks]
    p_values = [effect.p for i in family if (effect := found[i].effect)]
    adjusted = dict(zip(family, holm(p_values), strict=True))
    return [
        replace(c, verdict=_verdict(c.effect, adjusted[i], options), p_adjusted=adjusted[i])
        if i in adjusted and c.effect
        else c
        for i, c in enumerate(found)
    ]


def _verdict(found: Effect, p_adjusted: float, options: Options) -> Verdict:
    significant = p_adjusted <= options.alpha and found.rank_p <= options.alpha and not found.low <= 1 <= found.high
    if significant and abs(found.ratio - 1) >= min(NEGLIGIBLE, options.margin):
        return "slower" if found.ratio > 1 else "faster"
    within = 1 - options.margin <= found.inner_low and found.inner_high <= 1 + options.margin
    return "same" if within else "inconclusive"


def _order(compared: Compared) -> tuple[int, float]:
    size = abs(math.log(compared.effect.ratio)) if compared.effect else 0.0
    return VERDICTS.index(compared.verdict), -size


_CONDITION = re.compile(r"(slower)(?::\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?))?|(inconclusive|incomparable|missing)")
KINDS = ("slower", "slower:3%", "inconclusive", "incomparable", "missing", "none")


@dataclass(frozen=True)
class FailOn:
    """``share``: slower by at least so much, as the estimate says; the verdict says that it is slower at all."""

    kind: str
    share: float = 0.0


@dataclass(frozen=True)
class Failure:
    """One benchmark for which a condition holds, and what to say of it."""

    benchmark: str
    mode: str
    kind: str
    message: str


#: What fails a comparison of which nothing else is asked: whatever is slower, as the verdict has it.
BY_DEFAULT = (FailOn("slower"),)


def conditions(texts: Sequence[str]) -> tuple[FailOn, ...]:
    """All of ``--fail-on``; a lone ``none`` fails on nothing. Raises UsageError: one is not a valid condition."""
    if [text.strip().lower() for text in texts] == ["none"]:
        return ()
    return tuple(parse(text) for text in texts) or BY_DEFAULT


def parse(text: str) -> FailOn:
    """A condition as typed. Raises UsageError: it is none."""
    match = _CONDITION.fullmatch(text.strip().lower())
    if not match:
        hint = did_you_mean(text.partition(":")[0], KINDS)
        raise UsageError(
            f"--fail-on {text[:60]!r} is not a valid condition", hint=f"{hint}; for example --fail-on slower:3%"
        )
    if match[4]:
        return FailOn(match[4])
    share = float(match[2] or 0.0) / (100 if match[3] else 1)
    if match[2] and not match[3] and share >= 1:
        raise UsageError(
            f"--fail-on {text!r}: did you mean {share:g} times slower?",
            hint=f"write a percentage with %: slower:{match[2]}%",
        )
    return FailOn("slower", share)


def failures(comparison: Comparison, conditions: Iterable[FailOn]) -> list[Failure]:
    """What fails the comparison, the worst first."""
    failed = []
    for condition in conditions:
        if condition.kind == "missing":
            failed += [Failure(k.name, k.mode, "missing", "measured on the old side only") for k in comparison.only_old]
            continue
        for benchmark in comparison.benchmarks:
            if benchmark.verdict != condition.kind:
                continue
            ratio = benchmark.effect.ratio if benchmark.effect else 1.0
            if condition.kind == "slower" and ratio - 1 < condition.share:
                continue
            said = f"{100 * (ratio - 1):.1f} % slower" if condition.kind == "slower" else "; ".join(benchmark.reasons)
            failed.append(Failure(benchmark.name, benchmark.mode, condition.kind, said or condition.kind))
    return list(dict.fromkeys(failed))
