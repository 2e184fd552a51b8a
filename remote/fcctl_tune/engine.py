"""The search at work: every builder compiles ahead, every GPU times, and what is known goes to disk as it comes.

    ask -> build (cpu) -> check and time, briefly (gpu) -> time longer (gpu), while it is among the best -> tell

A trial is told once, at its end. One that was under way when this process died is asked for again by the next.
"""

from __future__ import annotations

import contextlib
import queue
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional

from fcctl_tune import slot, tasks
from fcctl_tune.cluster import OVER, Cluster
from fcctl_tune.errors import TuneError
from fcctl_tune.halving import Halving
from fcctl_tune.records import Trial, TrialRecord, objective
from fcctl_tune.slot import Timed, Timing
from fcctl_tune.study import Study
from fcctl_tune.tasks import Built, Candidate, Recipe

#: Built and not yet timed, for each GPU: as many as keep it busy, few enough that proposals know what was found.
AHEAD = 3
#: Trials in a row that no worker could carry out, before the search is given up.
MAX_LOST = 5
#: After SIGTERM, how long a timing under way may still take, seconds.
LAST_WORD_S = 3.0
#: How long a result may take from its worker to here, seconds.
FETCH_S = 2.0
#: Before a lost result is asked for again, seconds.
AGAIN_S = 0.1
#: How often the loop looks after its workers, seconds.
TICK_S = 0.25
DEFAULT_FIRST, RISING, FRESH = 20, 10, 0


class Stopped(Exception):
    """Somebody asked for the end; ``reason`` is for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Flight:
    """A trial under way."""

    trial: Trial
    candidate: Candidate
    rung: int = 0
    worker: str = ""
    seconds: Dict[str, float] = field(default_factory=dict)

    def took(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + seconds, 4)


@dataclass
class Effort:
    """What the search cost, in seconds."""

    gpus: int
    began: float = field(default_factory=time.monotonic)
    first_build: Optional[float] = None  # when there was something to time
    last_timed: Optional[float] = None
    build_s: float = 0.0
    built: int = 0
    cached: int = 0
    timed_s: float = 0.0
    trials: int = 0
    ended: Optional[float] = None

    def as_dict(self) -> Dict[str, Any]:
        """``gpu_timed_share``: of the time from the first build to the last timing, in which a GPU checked or timed."""
        now = self.ended or time.monotonic()
        span = (self.last_timed or now) - self.first_build if self.first_build is not None else 0.0
        wall = now - self.began
        return {
            "wall_s": round(wall, 3),
            "gpu_timed_share": round(self.timed_s / (span * self.gpus), 4) if span > 0 else None,
            "trials_per_minute": round(60.0 * self.trials / wall, 2) if wall > 0 else None,
            "compile_s": round(self.build_s, 3),
            "timed_s": round(self.timed_s, 3),
            "built": self.built,
            "from_cache": self.cached,
        }


class Engine:
    """One study on one cluster; the same cluster may serve another study afterwards."""

    def __init__(
        self,
        study: Study,
        cluster: Cluster,
        recipe: Recipe,
        halving: Halving,
        *,
        seed: int,
        told: Callable[[TrialRecord], None],
        gpu: str = "",
    ) -> None:
        """``seed`` draws the inputs that trials are checked and timed on; ``told`` hears each finished trial."""
        self.study, self.cluster, self.recipe, self.halving = study, cluster, recipe, halving
        self.seed, self.told, self.gpu = seed, told, gpu
        self.effort = Effort(len(cluster.devices))
        self.default = self.candidate(Trial(0, study.space.default, "default"))
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._flights: Dict[str, Flight] = {}  # by the key of the future that is under way
        self._futures: Dict[str, Any] = {}
        self._again: List[Any] = []  # futures whose results were lost
        self._held: Optional[List[Flight]] = []  # built before the default was; None once it is
        self._lost = 0
        self._stop: Optional[str] = None
        for record in study.records():  # what was seen before this process counts in its decisions
            if record.value is not None:
                for rung in range(min(record.rung, halving.top) + 1):
                    halving.rises(record.number, rung, record.value)

    def candidate(self, trial: Trial) -> Candidate:
        params = self.study.space.environment(trial.params)
        return Candidate(trial.number, params, dict(trial.params), self.recipe.out(params))

    def stop(self, reason: str) -> None:
        """From a signal handler or another thread: end soon."""
        self._stop = reason
        self._events.put(None)

    # -------------------------------------------------------------------------------------------- the loop
    def run(self, until: Optional[float] = None) -> None:
        """Search until the study has no more trials, or ask for none after ``until`` (of ``time.monotonic``).

        Raises:
            Stopped: :meth:`stop` was called; what had been found is told.
            TuneError: the default configuration does not work, or no trial can.
        """
        try:
            self._build_default()
            while self._stop is None:
                if until is None or time.monotonic() < until:
                    self._ask()
                if not self._futures:
                    return
                self._hear(TICK_S)
                self.cluster.mend()
                if self._again:
                    time.sleep(AGAIN_S)
            self._last_words()
            raise Stopped(self._stop)
        finally:
            self.effort.ended = time.monotonic()

    def _build_default(self) -> None:
        """First of all, since every value is a ratio to its time; trial 0, if it is still to come, is this build."""
        flight = Flight(Trial(-1, self.study.space.default), self.default)
        self._submit(flight, tasks.build, self.default, "cpu", DEFAULT_FIRST)

    def _ask(self) -> None:
        ahead = AHEAD * len(self.cluster.devices)
        most = self.cluster.cpus + ahead
        while len(self._futures) + len(self._held or ()) < most and len(self._in_timing()) < ahead:
            trial = self.study.ask()
            if trial is None:
                return
            flight = Flight(trial, self.candidate(trial))
            if trial.number == 0 and self._held is not None:
                self._held.insert(0, flight)  # its build is under way
                continue
            self._submit(flight, tasks.build, flight.candidate, "cpu")

    def _in_timing(self) -> List[str]:
        return [key for key in self._futures if key.startswith(slot.measure.__name__)]

    def _submit(
        self, flight: Flight, function: Callable[..., Any], argument: Any, slot: str, priority: int = FRESH
    ) -> None:
        self._await(self.cluster.submit(function, self.recipe, argument, slot=slot, priority=priority), flight)

    def _await(self, future: Any, flight: Flight) -> None:
        self._futures[future.key], self._flights[future.key] = future, flight
        future.add_done_callback(self._fetch)

    def _fetch(self, future: Any) -> None:
        """In Dask's own thread, so that the loop never waits for a worker. A result that died with its worker is None:
        Dask has the task carried out again, and calls its future lost until then."""
        result = None
        if future.status not in OVER:
            with contextlib.suppress(Exception):
                result = future.result(timeout=FETCH_S)
        self._events.put((future, result))

    def _hear(self, seconds: float) -> None:
        """Wait for what happens next, and take all of it that has."""
        again, self._again = self._again, []
        for future in again:
            future.add_done_callback(self._fetch)
        try:
            event = self._events.get(timeout=seconds)
            while True:
                if event is not None and event[0].key in self._futures:
                    self._done(*event)
                event = self._events.get_nowait()
        except queue.Empty:
            return

    def _done(self, future: Any, result: Any) -> None:
        if result is None and future.status not in OVER:
            self._again.append(future)  # after a look at the workers: it may be one of them that is missing
            return
        flight = self._flights.pop(future.key)
        del self._futures[future.key]
        if result is None:
            self._vanished(flight, future)
            return
        self._lost = 0
        if isinstance(result, Built):
            self._built(flight, result)
        else:
            self._timed(flight, result)

    def _vanished(self, flight: Flight, future: Any) -> None:
        """No worker could carry it out: each died over it, or something is wrong with the machine."""
        error = future.exception() if future.status == "error" else None
        if isinstance(error, TuneError):
            raise error
        if self._stop is not None:
            return
        self._lost += 1
        reason = "its workers died" if type(error).__name__ == "KilledWorker" else f"{type(error).__name__}: {error}"
        if self._lost >= MAX_LOST or flight.trial.number <= 0:
            raise TuneError(
                f"trial {max(0, flight.trial.number)} could not be carried out: {reason}",
                "look at the machine: is its memory or disk full, does something kill processes there?",
            )
        self._tell(flight, "lost", reason)

    # -------------------------------------------------------------------------------------------- a trial's way
    def _built(self, flight: Flight, built: Built) -> None:
        self.effort.build_s += built.seconds
        self.effort.built += not built.cached
        self.effort.cached += built.cached
        if flight.trial.number < 0:
            self._default_built(built)
            return
        flight.took("build", built.seconds)
        if built.state:
            self._tell(flight, built.state, built.reason)
        elif self._held is not None:
            self._held.append(flight)
        else:
            self._time(flight)

    def _default_built(self, built: Built) -> None:
        if built.state not in ("", "gate_failed"):  # one that breaks a gate still is what others are compared with
            self._give_up(built.state, built.reason)
        held, self._held = self._held or [], None
        if self.effort.first_build is None:
            self.effort.first_build = time.monotonic()
        for flight in held:
            if flight.trial.number == 0:
                self._built(flight, Built(built.state, built.reason, built.seconds, cached=True))
                self.effort.build_s -= built.seconds
                self.effort.cached -= 1
            else:
                self._time(flight)

    def _give_up(self, state: str, reason: str) -> None:
        raise TuneError(
            f"the default configuration does not work: {state}: {reason}",
            "make this one work first: " + self.study.space.key(self.study.space.default),
        )

    def _time(self, flight: Flight) -> None:
        if self._stop is not None:
            return  # left to the next search
        timing = Timing(
            flight.candidate, self.default, self.halving.repeats[flight.rung], self.seed, check=flight.rung == 0
        )
        priority = DEFAULT_FIRST if flight.trial.number == 0 else RISING if flight.rung else FRESH
        self._submit(flight, slot.measure, timing, "gpu", priority)

    def _timed(self, flight: Flight, timed: Timed) -> None:
        self.effort.timed_s += timed.check_s + timed.bench_s
        self.effort.last_timed = time.monotonic()
        flight.took("check", timed.check_s)
        flight.took("bench", timed.bench_s)
        flight.worker = timed.worker
        if timed.state:
            self._failed(flight, timed)
            return
        value = objective(timed.per_case, timed.base, self.study.spec.metric.direction)
        if self.halving.rises(flight.trial.number, flight.rung, value):
            flight.rung += 1
            self._time(flight)
            return
        state = "complete" if flight.rung == self.halving.top else "pruned"
        self._tell(flight, state, value=value, per_case=timed.per_case)

    def _failed(self, flight: Flight, timed: Timed) -> None:
        if flight.trial.number == 0 and self._stop is None:
            self._give_up(timed.state, timed.reason)
        state = "bench_failed" if timed.state == "unavailable" else timed.state
        self._tell(flight, state, timed.reason)

    def _tell(
        self,
        flight: Flight,
        state: str,
        reason: str = "",
        value: Optional[float] = None,
        per_case: Optional[Mapping[str, float]] = None,
    ) -> None:
        if self._stop is not None and value is None:
            return  # the same signal may have ended its processes: the next search asks for it again
        trial = flight.trial
        record = TrialRecord(
            trial.number,
            trial.params,
            state,
            reason,
            value,
            flight.rung,
            dict(per_case or {}),
            dict(flight.seconds),
            self.gpu if flight.worker else "",
            flight.worker,
            trial.source,
        )
        self.study.tell(record)
        self.effort.trials += 1
        self.told(record)

    def _last_words(self) -> None:
        """What is being timed at this moment may come to its end; the rest is left to the next search."""
        kept = self._in_timing()[: len(self.cluster.devices)]
        for key in [key for key in self._futures if key not in kept]:
            self._futures.pop(key).cancel(force=True)
            self._flights.pop(key, None)
        deadline = time.monotonic() + LAST_WORD_S
        while self._futures and time.monotonic() < deadline:
            self._hear(max(0.0, deadline - time.monotonic()))
