"""The last measurement: elites are checked and timed again, in fresh processes, on new inputs.

The search picks lucky timings. Here each elite is checked in a process of its own, then timed in turns with the
default, which takes part twice: its ratio to itself is the null, and no interval is narrower. Held-out cases are timed
here alone. All of it is on one host.

Two turns, there and back, make a block, so that a drifting clock affects both equally; only blocks are independent.
The bootstrap of their ratios is pure Python, since a host may have no numpy.
"""

from __future__ import annotations

import dataclasses
import math
import random
import secrets
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from fcctl_remote.base import estimates
from fcctl_remote.base.estimates import CONFIDENCE
from fcctl_tune.errors import Failed, TuneError
from fcctl_tune.search.records import Trial, TrialRecord
from fcctl_tune.search.spec import Spec
from fcctl_tune.trial import process, tasks
from fcctl_tune.trial.slot import FEWEST_TURNS, Slot
from fcctl_tune.trial.tasks import Built, TrialSpec
from fcctl_tune.workers.cluster import Cluster
from fcctl_tune.workers.hosts import CallFailed

#: Turns of each case in one process; flashcore makes 14 places of them.
SERVED_TURNS = 28
#: Turns if each is a process, and the seconds that all of them should take.
MOST_TURNS, TURNS_S = 20, 60.0
#: Processors for each concurrent check.
PROCESSORS_EACH = 2
#: Processes for timings that load during the checks.
STANDBYS = 4
#: Seconds between two looks at the cluster.
TICK_S = 0.25
#: Candidates checked at most for each elite.
MOST_CHECKED = 4


def check(trial_spec: TrialSpec, some: Sequence[Trial], cases: Sequence[str], seed: int) -> List[Tuple[str, str]]:
    """For each trial ("", "") if it builds and is right in a process of its own, else its state and reason.

    A serve command checks several at once, while the processes for the timings load.
    """
    there = dataclasses.replace(trial_spec, cases=tuple(cases), seed=seed)
    most = max(1, process.processors() // PROCESSORS_EACH)
    Slot.here(trial_spec).stand_by(min(len(cases), most, STANDBYS))
    with ThreadPoolExecutor(min(len(some), most) if trial_spec.serve else 1) as pool:
        return list(pool.map(lambda one: _checked(there, one), some))


def _checked(trial_spec: TrialSpec, trial: Trial) -> Tuple[str, str]:
    built: Built = tasks.build(trial_spec, trial)
    if built.state:
        return built.state, built.reason
    slot = Slot(trial_spec, standbys=0)
    try:
        slot.check(trial, final=True)
    except Failed as failed:
        return failed.state, failed.reason
    finally:
        slot.close()
    return "", ""


def turns(trial_spec: TrialSpec, many: Sequence[Trial], case: str, seed: int, count: int, more: bool) -> Dict[str, Any]:
    """``per``: figures of each of ``many``, timed in turns in a fresh process; or ``state`` and ``reason``. If ``more``
    cases follow, the next one's process starts, too."""
    slot = Slot.here(dataclasses.replace(trial_spec, cases=(case,)))
    slot.renew()
    slot.stand_by(1 + more)
    try:
        return slot.turns(many, case, seed, count)
    except Failed as failed:
        return {"state": failed.state, "reason": failed.reason}


@dataclass
class Finalist:
    trial: Trial
    fault: Optional[Tuple[str, str]] = None  # state and reason
    medians: Dict[str, float] = field(default_factory=dict)  # per case, in the metric's unit
    blocks: Dict[str, List[float]] = field(default_factory=dict)  # per case, logarithms of time by the default's


class Final:
    """Measures the best ``candidates`` again, against ``default`` on the machine of the search."""

    def __init__(
        self, cluster: Cluster, trial_spec: TrialSpec, spec: Spec, default: Trial,
        candidates: Sequence[TrialRecord], *, stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """
        Args:
            candidates: the best first; ``spec.elites`` of them are measured, the next best for one that fails.
            stopped: whether to end early.
        """
        self.cluster, self.trial_spec, self.stopped = cluster, trial_spec, stopped
        self.host = cluster.hosts[0]
        self.direction, self.unit = spec.metric.direction, spec.metric.unit
        self.default, self.count = Finalist(default), min(spec.elites, len(candidates))
        trials = [Trial(r.number, r.params) for r in candidates]
        self.finalists = [Finalist(one) for one in trials[: self.count]]
        self._next = trials[self.count : MOST_CHECKED * self.count]
        self.cases, self.held_out = trial_spec.cases, spec.held_out
        self.all_cases = (*self.cases, *self.held_out)
        self.seeds = [secrets.randbits(31) for _ in range(1 + len(self.all_cases))]
        self.null: Dict[str, List[float]] = {}
        benches = [r.seconds["bench"] for r in candidates[: self.count] if r.seconds.get("bench")]
        bench_s = statistics.median(benches) / len(self.cases) if benches else 1.0
        affordable = 2 * int(TURNS_S / (max(bench_s, 0.01) * (2 + self.count) * len(self.all_cases)) / 2)
        self.turns = SERVED_TURNS if trial_spec.serve else max(FEWEST_TURNS, min(MOST_TURNS, affordable))

    def run(self) -> List[Dict[str, Any]]:
        """An entry for each elite with its :func:`verdict`, the best first, those that failed last; none if stopped.
        Raises TuneError: the default configuration itself fails."""
        self._check_all()
        for case, seed in zip(self.all_cases, self.seeds[1:]):  # noqa: B905 (Python 3.9)
            if not self.stopped():
                self._time(case, seed)
        if self.stopped():
            return []
        entries = [self._entry(one) for one in self.finalists]
        return sorted(entries, key=lambda e: e["ratio"] if e["ratio"] is not None else float("inf"))

    def _check_all(self) -> None:
        """The finalists, and the next best for those that fail."""
        if self.trial_spec.checks_by_command:  # the default's checks show first what they write on held-out cases
            self._check_some([self.default])
            self._check_some(self.finalists)
        else:
            self._check_some([self.default, *self.finalists])
        while not self.stopped():
            lacking = max(0, self.count - sum(one.fault is None for one in self.finalists))
            more = [Finalist(one) for one in self._next[:lacking]]
            if not more:
                break
            self._next = self._next[lacking:]
            self.finalists += more
            self._check_some(more)

    def _check_some(self, some: Sequence[Finalist]) -> None:
        """A serve command checks an even share on each GPU; commands check one by one, as GPUs are free."""
        count = min(len(self.host.devices), len(some)) if self.trial_spec.serve else len(some)
        self._check([list(some[n::count]) for n in range(count)])
        if self.trial_spec.serve and not self.stopped():  # a neighbour may have been at fault
            self._check([[one] for one in some if one.fault is not None])
        if self.default.fault is not None and not self.stopped():
            if self.default.fault[0] != "gate_failed":
                problem = "the default configuration fails its second check: %s: %s" % self.default.fault
                raise TuneError(
                    problem,
                    "the elites cannot be compared without it: correct the default configuration, then search again",
                )
            self.default.fault = None

    def _check(self, shares: Sequence[Sequence[Finalist]]) -> None:
        trials = [[one.trial for one in share] for share in shares]
        results = self._results([self._submit(check, some, self.all_cases, self.seeds[0]) for some in trials])
        for share, verdicts in zip(shares, results):  # noqa: B905
            faults = verdicts if isinstance(verdicts, list) else [verdicts] * len(share)
            for one, (state, reason) in zip(share, faults):  # noqa: B905
                one.fault = (state, reason) if state else None

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> str:
        return self.cluster.submit(function, self.trial_spec, *arguments, slot="gpu", host=self.host.key)

    def _results(self, calls: Sequence[str]) -> List[Any]:
        """The results of the calls. Raises: TuneError, if a result is one."""
        outcomes: Dict[str, Any] = {}
        while len(outcomes) < len(calls) and not self.stopped():
            for call, outcome in self.cluster.results(TICK_S):
                if isinstance(outcome, TuneError):
                    raise outcome
                if call in calls:
                    outcomes[call] = ("lost", str(outcome)) if isinstance(outcome, CallFailed) else outcome
            self.cluster.mend()
        return [outcomes.get(call, ("lost", "stopped")) for call in calls]

    def _time(self, case: str, seed: int) -> None:
        """Time one case, all in turns; if that fails, each with the default alone, to find the fault."""
        alive = [one for one in self.finalists if one.fault is None]
        if alive and self._turns(alive, case, seed) is not None:
            for one in alive:
                one.fault = self._turns([one], case, seed)

    def _turns(self, some: Sequence[Finalist], case: str, seed: int) -> Optional[Tuple[str, str]]:
        """Time ``some`` between two runs of the default; the fault, if there is one."""
        many = [self.default.trial, *(one.trial for one in some), self.default.trial]
        more = case != self.all_cases[-1]
        (reply,) = self._results([self._submit(turns, many, case, seed, self.turns, more)])
        if not isinstance(reply, Mapping):
            return reply[0], reply[1]
        if "per" not in reply:
            return str(reply["state"]), str(reply["reason"])
        base, *figures, again = reply["per"]
        self.default.medians[case] = statistics.median(base)
        self.null.setdefault(case, log_ratios(again, base, self.direction))
        for one, samples in zip(some, figures):  # noqa: B905
            one.medians[case] = statistics.median(samples)
            one.blocks[case] = log_ratios(samples, base, self.direction)
        return None

    def document(self, entries: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        """How it was measured, for the ``tuning`` document."""
        return {
            "seeds": self.seeds,
            "turns": self.turns,
            "null": self._ratio(self.null, self.all_cases, 0.0),
            "default": {case: {self.unit: round(figure, 4)} for case, figure in self.default.medians.items()},
            "failed": [entry["trial"] for entry in entries if entry["verdict"] == "failed"],
        }

    def _entry(self, one: Finalist) -> Dict[str, Any]:
        number, params = one.trial.number, dict(one.trial.params)
        entry: Dict[str, Any] = {"trial": number, "params": params, "ratio": None, "held_out": None, "per_case": {}}
        if one.fault is not None:
            return {**entry, "verdict": "failed", "state": one.fault[0], "reason": one.fault[1]}
        for case, blocks in one.blocks.items():
            ratio = ratio_of([blocks], self._floor([case]))
            entry["per_case"][case] = {self.unit: round(one.medians[case], 4), **ratio}
        searched = self._ratio(one.blocks, self.cases, self._floor(self.cases))
        held_out = self._ratio(one.blocks, self.held_out, self._floor(self.held_out)) if self.held_out else None
        assert searched is not None  # noqa: S101
        return {**entry, **searched, "held_out": held_out, "verdict": verdict(searched, held_out)}

    def _floor(self, cases: Sequence[str]) -> float:
        return floor_of(ratio_of([self.null[case] for case in cases]))

    @staticmethod
    def _ratio(blocks: Mapping[str, List[float]], cases: Sequence[str], floor: float) -> Optional[Dict[str, float]]:
        """None if a case was not timed."""
        return ratio_of([blocks[case] for case in cases], floor) if cases and set(cases) <= set(blocks) else None


def verdict(searched: Mapping[str, float], held_out: Optional[Mapping[str, float]]) -> str:
    """``faster`` or ``slower`` than the default if the interval on held-out cases (on the searched ones where nothing
    was held out) excludes 1, else ``undecided``; ``mixed`` if the searched cases prove the contrary."""
    conclusion = _compared(held_out or searched)
    return "mixed" if {conclusion, _compared(searched)} == {"faster", "slower"} else conclusion


def _compared(measured: Mapping[str, float]) -> str:
    if measured["ci_high"] < 1:
        return "faster"
    return "slower" if measured["ci_low"] > 1 else "undecided"


RESAMPLES = 1000
#: No comparison is finer: a configuration differs from itself by so much.
FINEST = 0.001
#: Turns of a block.
BLOCK = 2
#: Share of the blocks left out at each end of the mean.
TRIM = 0.1


def log_ratios(figures: Sequence[float], base: Sequence[float], direction: str = "min") -> List[float]:
    """For each block the logarithm of time by ``base``'s time; ``direction`` max turns rates into times."""
    sign = -1.0 if direction == "max" else 1.0
    pairs = [sign * math.log(a / b) for a, b in zip(figures, base)]  # noqa: B905 (Python 3.9)
    return [statistics.fmean(pairs[i : i + BLOCK]) for i in range(0, len(pairs), BLOCK)]


def ratio_of(cases: Sequence[Sequence[float]], floor: float = 0.0, seed: int = 0) -> Dict[str, float]:
    """The geometric mean over ``cases`` of their ratios, from the blocks' :func:`log_ratios`.

    The interval holds 95 % of a bootstrap of each case's blocks, stretched for few blocks as Student's t is wider than
    the normal distribution, and at least the share ``floor`` on either side.
    """
    rng = random.Random(seed)  # noqa: S311 - of a bootstrap
    middle = statistics.fmean(_trimmed(blocks) for blocks in cases)
    means = sorted(
        statistics.fmean(_trimmed(rng.choices(blocks, k=len(blocks))) for blocks in cases) for _ in range(RESAMPLES)
    )
    low, high = (estimates.quantile(means, (1 + side * CONFIDENCE) / 2) for side in (-1, 1))
    stretch, least = estimates.stretch(min(len(blocks) for blocks in cases), TRIM), math.log1p(floor)
    return {
        "ratio": round(math.exp(middle), 5),
        "ci_low": round(math.exp(middle - max(stretch * (middle - low), least)), 5),
        "ci_high": round(math.exp(middle + max(stretch * (high - middle), least)), 5),
    }


def floor_of(null: Dict[str, float]) -> float:
    """The larger of the null ratio's distance from 1 and half its interval, at least :data:`FINEST`."""
    return round(max(abs(null["ratio"] - 1), (null["ci_high"] - null["ci_low"]) / 2, FINEST), 5)


def _trimmed(values: Sequence[float]) -> float:
    out = int(TRIM * len(values))
    return statistics.fmean(sorted(values)[out : len(values) - out])
