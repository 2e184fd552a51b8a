"""A GPU worker's slot: it checks and times configurations, by a process for each or by one that serves.

A trial's fault is a result (:class:`Timed`); only a ``serve`` command that does not start at all is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from fcctl_remote.base.text import one_line
from fcctl_remote.gates import evaluate as gates
from fcctl_tune.errors import Failed
from fcctl_tune.search.records import Trial
from fcctl_tune.trial import folder, process, serve, tasks
from fcctl_tune.trial.tasks import TrialSpec

#: Seconds after which the default is timed again: clocks and neighbours change.
BASE_AGE_S = 20.0
#: Factor of the time of an elite's last check.
FINAL_PATIENCE = 10
#: Timings of one process in a turn.
TURN_REPEATS = 9
#: Fewer turns prove nothing.
FEWEST_TURNS = 6
#: Limits of a time or a rate, in any unit: ratios of figures beyond them are no numbers.
LEAST_FIGURE, MOST_FIGURE = 1e-30, 1e30


@dataclass(frozen=True)
class Timing:
    """A request to a GPU worker: ``check`` the trial first, then time each case ``repeats`` times."""

    trial: Trial
    default: Trial
    repeats: int
    check: bool


@dataclass(frozen=True)
class Timed:
    """Medians per case of the configuration and, in ``base``, of the default on the same GPU not long before."""

    state: str = ""  # "", wrong, crashed, hung, bench_failed or unavailable
    reason: str = ""
    per_case: Mapping[str, float] = field(default_factory=dict)
    base: Mapping[str, float] = field(default_factory=dict)
    check_s: float = 0.0
    bench_s: float = 0.0
    worker: str = ""


@dataclass(frozen=True)
class Base:
    """The default's medians of so many repeats, at a time of ``time.monotonic``."""

    per_case: Mapping[str, float]
    repeats: int
    at: float


def measure(trial_spec: TrialSpec, timing: Timing) -> Timed:
    """Check and time a trial in this worker's slot. Raises: TuneError, if the serve command does not start."""
    return Slot.here(trial_spec).measure(timing)


class Slot:
    """A GPU worker's state: the process that serves, and how long the default takes here."""

    _mine: Optional[Slot] = None

    def __init__(self, trial_spec: TrialSpec, standbys: int = 1) -> None:
        self.trial_spec = trial_spec
        self.name = os.environ.get("FCCTL_TUNE_WORKER", "")
        self._bases: Dict[int, Base] = {}
        self._server: Optional[serve.Server] = None
        if trial_spec.serve:
            env = {**process.clean_environment(os.environ), **trial_spec.env}
            warm = {"cases": list(trial_spec.cases), "seed": trial_spec.seed}, trial_spec.timeouts.check
            logs = os.path.join(trial_spec.folder, "logs")
            self._server = serve.Server(
                trial_spec.serve, env, trial_spec.cwd, logs, warm if standbys else None, standbys
            )

    @classmethod
    def here(cls, trial_spec: TrialSpec) -> Slot:
        """This process's slot. If only the cases differ, its serve processes stay."""
        mine = cls._mine
        if mine is None or dataclasses.replace(mine.trial_spec, cases=trial_spec.cases) != trial_spec:
            cls.leave()
            mine = cls._mine = cls(trial_spec)
        elif mine.trial_spec.cases != trial_spec.cases:
            mine.trial_spec, mine._bases = trial_spec, {}
        return mine

    def begin(self) -> None:
        """Start the serve command early; a failure is reported by the first request."""
        with contextlib.suppress(OSError):
            self.stand_by(1)

    def stand_by(self, count: int) -> None:
        """Have so many standbys."""
        if self._server is not None:
            self._server.stand_by(count)

    def renew(self) -> None:
        """Replace the process that serves by a fresh one."""
        if self._server is not None:
            self._server.drop()

    def measure(self, timing: Timing) -> Timed:
        started = checked = time.monotonic()
        state, reason, per_case, base = "", "", {}, {}
        try:
            if timing.check:
                try:
                    self.check(timing.trial)
                finally:
                    checked = time.monotonic()
            base = self.base(timing)
            is_default = timing.trial.params == timing.default.params
            per_case = base if is_default else self._medians(timing.trial, timing.repeats)
        except Failed as failed:
            state, reason = failed.state, failed.reason
        return Timed(state, reason, per_case, base, checked - started, time.monotonic() - checked, self.name)

    @classmethod
    def leave(cls) -> None:
        """End the serve processes of this process's slot."""
        if cls._mine is not None:
            cls._mine.close()
        cls._mine = None

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def check(self, trial: Trial, final: bool = False) -> None:
        """Check each case; ``final``: thoroughly, for :data:`FINAL_PATIENCE` times as long. Raises: Failed."""
        timeout = self.trial_spec.timeouts.check * (FINAL_PATIENCE if final else 1)
        if self._server is not None:
            what = {**self._named(trial), "seed": self.trial_spec.seed, "cases": list(self.trial_spec.cases)}
            self._server.ask("check", timeout, **what, **({"final": True} if final else {}))
        elif self.trial_spec.check is not None:
            check(self.trial_spec, trial, timeout)

    def base(self, timing: Timing) -> Dict[str, float]:
        """Recent medians of the default, by commands of equal repeats: among fewer, a process's slow first launches
        weigh more. Raises: Failed."""
        key = timing.repeats if self._server is None else 0
        known = self._bases.get(key)
        if known is None or time.monotonic() - known.at >= BASE_AGE_S or known.repeats < timing.repeats:
            try:
                known = Base(self._medians(timing.default, timing.repeats), timing.repeats, time.monotonic())
            except Failed as failed:
                if timing.trial.params == timing.default.params:
                    raise
                raise Failed(
                    failed.state, "the default configuration, measured together with it, failed: %s" % failed.reason
                ) from None
            self._bases[key] = known
        return dict(known.per_case)

    def _medians(self, trial: Trial, repeats: int) -> Dict[str, float]:
        """By case, in the metric's unit. Raises: Failed."""
        return {case: statistics.median(self._samples(trial, case, repeats)) for case in self.trial_spec.cases}

    def _samples(self, trial: Trial, case: str, repeats: int) -> List[float]:
        seed = self.trial_spec.seed
        if self._server is None:
            return self._bench(trial, case, seed, repeats)
        what = {**self._named(trial), "case": case, "seed": seed, "repeats": repeats}
        return _positive(self._server.ask("bench", self.trial_spec.timeouts.bench, **what).get("samples"))

    def _named(self, trial: Trial) -> Dict[str, Any]:
        return {"params": dict(trial.params), "out": self.trial_spec.out(trial.environment)}

    def turns(self, many: Sequence[Trial], case: str, seed: int, turns: int) -> Dict[str, Any]:
        """The reply to ``turns``: ``per``, figures of each trial, measured in turns. Raises: Failed."""
        if self._server is not None:
            timeout = self.trial_spec.timeouts.bench * (1 + len(many))
            named = [self._named(one) for one in many]
            reply = self._server.ask("turns", timeout, many=named, case=case, seed=seed, turns=turns)
            per = reply.get("per")
            if not isinstance(per, list) or len(per) != len(many):
                raise Failed(
                    "bench_failed", "turns: the reply must have one list for each of the %d configurations" % len(many)
                )
            figures = [_positive(one) for one in per]
            counts = sorted({len(one) for one in figures})
            if len(counts) > 1 or counts[0] < min(turns, FEWEST_TURNS):
                problem = "turns: the reply has %s values for each configuration; %d were requested"
                raise Failed("bench_failed", problem % (" or ".join(map(str, counts)), turns))
            return {**reply, "per": figures}
        per_candidate: List[List[float]] = [[] for _ in many]
        for turn in range(turns):
            for n in order(turn, len(many)):
                per_candidate[n].append(statistics.median(self._bench(many[n], case, seed + turn, TURN_REPEATS)))
        return {"per": per_candidate}

    def _bench(self, trial: Trial, case: str, seed: int, repeats: int) -> List[float]:
        more = {"TUNE_CASE": case, "TUNE_SEED": seed, "TUNE_REPEATS": repeats}
        try:
            with self.trial_spec.directory(trial, "bench", [self.trial_spec.metric.file]) as directory:
                return self._benched(trial, self.trial_spec.environment(trial, **more), directory.path)
        except Failed as failed:
            where = "benchmark of %s" % case if len(self.trial_spec.cases) > 1 else "bench"
            raise Failed(failed.state, "%s: %s" % (where, failed.reason)) from None

    def _benched(self, trial: Trial, env: Mapping[str, str], directory: str) -> List[float]:
        metric = self.trial_spec.metric
        log = self.trial_spec.log(trial, "bench")
        for path in folder.present(metric.file, env, directory):
            os.unlink(path)  # an older figure
        outcome = process.run(self.trial_spec.bench, env, directory, log, self.trial_spec.timeouts.bench)
        if outcome.reason is not None:
            raise Failed(tasks.state_of("bench", outcome), tasks.explained(outcome, log, env["TUNE_OUT"]))
        (path, *_) = folder.matching(metric.file, env, directory, log)
        document = folder.read_document(metric.reader, path, env)
        if document["kind"] == "metrics":  # also by their own names: metrics.us
            document = {**_lists(document["metrics"]), **document["metrics"], **document}
        context = {document["kind"]: document, "params": dict(trial.params), "env": env}
        try:
            figure = gates.value(gates.parse(metric.value), context)
        except (gates.NoValue, gates.GateError) as error:
            raise Failed("bench_failed", "metric %s: %s" % (metric.value, error)) from None
        process.drop_log(log)
        return _positive(figure if isinstance(figure, list) else [figure])


def _lists(metrics: Mapping[str, float]) -> Dict[str, List[float]]:
    """The lists that the file had: ``us`` of ``us.0``, ``us.1``, .."""
    lists: Dict[str, List[float]] = {}
    for name, value in metrics.items():
        of, _, place = name.rpartition(".")
        if of and place == str(len(lists.get(of, ()))):
            lists.setdefault(of, []).append(value)
    return lists


def _positive(samples: Any) -> List[float]:
    """Raises: Failed, unless they are one or more numbers within the limits."""
    numbers = samples if isinstance(samples, list) else []
    good = [isinstance(n, (int, float)) and not isinstance(n, bool) and LEAST_FIGURE < n < MOST_FIGURE for n in numbers]
    if not good or not all(good):
        raise Failed("bench_failed", "no value in %s" % one_line(json.dumps(samples, default=str), 120))
    return [float(n) for n in numbers]


def order(turn: int, count: int) -> List[int]:
    """A B C, C B A, B C A, A C B, ..: over turns each comes as often early as late."""
    forward = [(turn // 2 + n) % count for n in range(count)]
    return forward[::-1] if turn % 2 else forward


def check(trial_spec: TrialSpec, trial: Trial, timeout_s: float) -> None:
    """Check each case by the spec's command. Raises: Failed."""
    stage = trial_spec.check
    assert stage is not None  # noqa: S101
    for case in trial_spec.cases:
        try:
            more = {"TUNE_CASE": case, "TUNE_SEED": trial_spec.seed}
            rewritten = tasks.carry_out(trial_spec, trial, "check", stage, timeout_s, **more)
            trial_spec.judge_outputs(trial, case, rewritten)
        except Failed as failed:
            where = "%s: " % case if len(trial_spec.cases) > 1 else ""
            raise Failed(failed.state, where + failed.reason) from None
