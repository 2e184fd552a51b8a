"""The search at work: every builder compiles ahead, every GPU times, and what is known goes to disk as it comes.

    ask -> build (cpu) -> check and time, briefly (gpu) -> time longer (gpu), while it is among the best -> tell

All of a trial happens on one host. If that is lost, the trial begins again on another. A trial is told once, at its
end. One that was under way when this process died is asked for again by the next.

Long, because these stages share one state, which changes only here.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Callable, Dict, List, Optional

from fcctl_tune.engine.hosts import DEFAULT, PROBE, WARM, HostState, InFlightTrial, idlest
from fcctl_tune.engine.pace import Throughput
from fcctl_tune.engine.together import ParallelChecks
from fcctl_tune.errors import TuneError
from fcctl_tune.search.effort import Effort
from fcctl_tune.search.halving import Halving
from fcctl_tune.search.records import Trial, TrialRecord, objective
from fcctl_tune.search.study import Study
from fcctl_tune.trial import slot, tasks
from fcctl_tune.trial.slot import Checked, Timed, Timing
from fcctl_tune.trial.tasks import Built, Candidate, TrialSpec
from fcctl_tune.workers.interfaces import Cluster, Host

#: Hosts that a trial is tried on, one after the other lost under it; and losses in all, of those that come back, too.
TRIES, MOST_LOSSES = 3, 9
#: Trials in a row that no worker could carry out, before the search is given up.
MAX_LOST = 5
#: After SIGTERM, how long a timing under way may still take, seconds.
LAST_WORD_S = 3.0
#: How often the loop looks after its workers, seconds.
TICK_S = 0.25
DEFAULT_FIRST, RISING, FRESH = 20, 10, 0


class Stopped(Exception):
    """Somebody asked for the end; ``reason`` is for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Engine:
    """One study on one cluster; the same cluster may serve another study afterwards."""

    def __init__(
        self,
        study: Study,
        cluster: Cluster,
        recipe: TrialSpec,
        halving: Halving,
        *,
        seed: int,
        told: Callable[[TrialRecord], None],
        gpu: str = "",
    ) -> None:
        """``seed`` draws the inputs that trials are checked and timed on; ``told`` hears each finished trial."""
        self.study, self.cluster, self.recipe, self.halving = study, cluster, recipe, halving
        self.seed, self.told, self.gpu = seed, told, gpu
        self.effort = Effort()
        self.pace = Throughput(halving)
        self.default = self.candidate(Trial(0, study.space.default, "default"))
        self.lead = ""  # key of the host where the default is tried first, and the elites last
        self.seen: Dict[str, Host] = {}  # all that took part, by name
        self._stations: Dict[str, HostState] = {}
        self._where: Dict[str, HostState] = {}  # by the call that is under way
        self._waiting: List[InFlightTrial] = []  # for a host
        self._lost = 0
        self._together = ParallelChecks(recipe, seed)
        self._stop: Optional[str] = None
        self._is_told = False  # what came of the default
        for record in study.records():  # what was seen before this process counts in its decisions
            self._is_told = self._is_told or record.number == 0
            if record.value is not None:
                for rung in range(min(record.rung, halving.top) + 1):
                    halving.rises(record.number, rung, record.value)

    def candidate(self, trial: Trial) -> Candidate:
        return Candidate.of(trial, self.study.space)

    def stop(self, reason: str) -> None:
        """From a signal handler or another thread: end soon."""
        self._stop = reason
        self.cluster.wake()

    # -------------------------------------------------------------------------------------------- the loop
    def run(self, until: Optional[float] = None) -> None:
        """Search until the study has no more trials, or ask for none after ``until`` (of ``time.monotonic``).

        Raises:
            Stopped: :meth:`stop` was called; what had been found is told.
            TuneError: the default configuration does not work, or no trial can.
        """
        try:
            while self._stop is None:
                self._look_round()
                for station in self._stations.values():
                    self._check(station)
                    self._try_alone(station)
                self._ask(fresh=until is None or time.monotonic() < until)
                if self._is_done():
                    return
                self._hear(TICK_S)
                self.cluster.mend()
            self._last_words()
            raise Stopped(self._stop)
        finally:
            self.effort.ended = time.monotonic()
            for call in self._where:  # what a host that came late prepared
                self.cluster.cancel(call)

    def _is_done(self) -> bool:
        """No trial is under way, none was asked for, and the default is built where the elites will be compared."""
        busy = self._waiting or any(station.has_trials for station in self._stations.values())
        return not busy and self.lead in self._stations and self._stations[self.lead].is_ready

    def _look_round(self) -> None:
        """Hosts that went, and hosts that came."""
        here = {host.key: host for host in self.cluster.hosts}
        for key in [key for key in self._stations if key not in here]:
            self._gone(self._stations.pop(key))
        for key, host in here.items():
            if key in self._stations:
                self._stations[key].host = self.seen[host.name] = host
            else:
                self._arrived(HostState(host))
        self.effort.have(sum(len(host.devices) for host in here.values()))
        if any(station.is_ready and station.gpus for station in self._stations.values()):
            self.effort.timing_begins()

    def _arrived(self, station: HostState) -> None:
        """The default is built first of all, since every value is a ratio to its time; trial 0, if it is still to come,
        is this build."""
        self._stations[station.host.key] = station
        self.seen[station.host.name] = station.host
        if self.lead not in self._stations:
            self.lead = station.host.key
        self._submit(station, InFlightTrial(Trial(-1, self.study.space.default), self.default, DEFAULT), DEFAULT_FIRST)
        if self.recipe.serve:
            for _ in station.host.devices:
                self._measure(
                    station, InFlightTrial(Trial(-1, {}), self.default, WARM), slot.warm, self.seed, DEFAULT_FIRST
                )

    def _gone(self, station: HostState) -> None:
        """What was under way there begins again elsewhere."""
        for call in station.flights:
            self.cluster.cancel(call)
            self._where.pop(call)
        for flight in station.trials:
            self._begin_again(flight, station.host, "its hosts were lost")
        if station.host.key == self.lead:
            self.lead = next((key for key, one in self._stations.items() if one.is_ready), "")
            self.lead = self.lead or next(iter(self._stations), "")

    def _begin_again(self, flight: InFlightTrial, host: Host, reason: str) -> None:
        """Elsewhere, or on ``host`` when it is back. A link that breaks is no trial's fault, within limits."""
        flight.lost_under.append((host.name, host.process))
        flight.is_checked, flight.is_doubted, flight.beside = False, False, []
        flight.is_suspect = flight.is_alone = False
        if len(set(flight.lost_under)) >= TRIES or len(flight.lost_under) >= MOST_LOSSES:
            self._tell(flight, "lost", reason)
        else:
            self._waiting.append(flight)
            self._waiting.sort(key=lambda f: f.trial.number)

    def _ask(self, *, fresh: bool) -> None:
        """Begin what there is room for: what a lost host left, and if ``fresh`` new trials."""
        while True:
            station = idlest(self._stations.values(), self.pace, learns=self.study.learns)
            if station is None:
                return
            flight = self._next(fresh)
            if flight is None:
                return
            if flight.trial.number == 0:
                station = self._stations[self.lead]
                if not station.is_ready:
                    station.held.insert(0, flight)  # its build is under way
                    continue
            self._submit(station, flight)

    def _next(self, fresh: bool) -> Optional[InFlightTrial]:
        if self._waiting:
            return self._waiting.pop(0)
        trial = self.study.ask() if fresh else None
        return InFlightTrial(trial, self.candidate(trial)) if trial is not None else None

    def _submit(self, station: HostState, flight: InFlightTrial, priority: int = FRESH) -> None:
        """Build it there."""
        flight.is_timed = flight.is_early = False
        call = self.cluster.submit(
            tasks.build, self.recipe, flight.candidate, slot="cpu", host=station.host.key, priority=priority
        )
        station.flights[call], self._where[call] = flight, station

    def _hear(self, seconds: float) -> None:
        """Wait for what happens next, and take all of it that has."""
        for call, outcome in self.cluster.heard(seconds):
            station = self._where.pop(call, None)
            if station is None:
                continue
            flight = station.flights.pop(call)
            if isinstance(outcome, Exception):
                self._vanished(station, flight, outcome)
                continue
            self._lost = station.faults = 0
            if isinstance(outcome, Built):
                self._built(station, flight, outcome)
            elif isinstance(outcome, Checked):
                self._checked(station, flight, outcome)
            else:
                self._timed(station, flight, outcome)

    def _vanished(self, station: HostState, flight: InFlightTrial, error: Exception) -> None:
        """No worker could carry it out: each died over it, or something is wrong with the machine."""
        if self._stop is not None or (flight.purpose == WARM and not isinstance(error, TuneError)):
            return
        if flight.beside:  # one of them may have done it
            self._checked(station, flight, Checked([False] * (1 + len(flight.beside)), 0.0))
            return
        killed = getattr(error, "killed", False)
        if killed and not flight.is_suspect:  # by it, or by any other that its workers had, too
            flight.is_suspect = flight.is_alone = True
            station.suspects.append(flight)
            return
        by_trial = flight.is_trial and killed  # else it may be the machine
        if station.host.key != self.lead and not by_trial:
            station.faults += 1
            if flight.is_trial:
                self._begin_again(flight, station.host, str(error))
            if isinstance(error, TuneError) or station.faults >= TRIES or not flight.is_trial:
                self._leave_out(station, str(error))
            return
        if isinstance(error, TuneError):
            raise error
        self._lost += 1
        if self._lost >= MAX_LOST or flight.trial.number <= 0:
            raise TuneError(
                f"trial {max(0, flight.trial.number)} could not be carried out: {error}",
                "look at the machine: is its memory or disk full, does something kill processes there?",
            )
        self._tell(flight, "lost", f"{error}, with nothing beside it" if by_trial else str(error))

    def _try_alone(self, station: HostState) -> None:
        """Carry out one of those that workers died over, beside which nothing is: one that they die over again is lost,
        and costs no other."""
        if self._stop is not None or (flight := station.next_suspect()) is None:
            return
        if flight.purpose == PROBE:
            self._time(station, flight, DEFAULT_FIRST)
        else:
            self._submit(station, flight)

    def _leave_out(self, station: HostState, reason: str) -> None:
        """Its trials go elsewhere with the next look round."""
        self.cluster.leave_out(station.host.key, reason)

    # -------------------------------------------------------------------------------------------- a trial's way
    def _built(self, station: HostState, flight: InFlightTrial, built: Built) -> None:
        self.effort.build_s += built.seconds
        self.effort.built += not built.cached
        self.effort.cached += built.cached
        if flight.purpose == DEFAULT:
            self._default_built(station, built)
            return
        flight.took("build", built.seconds)
        self.pace.built(built.seconds, usable=not built.state)
        if built.state:
            self._tell(flight, built.state, built.reason)
            return
        flight.is_early = station.is_early
        if station.is_ready:
            self._time(station, flight)
        else:
            station.held.append(flight)

    def _default_built(self, station: HostState, built: Built) -> None:
        works = built.state in ("", "gate_failed")  # one that breaks a gate still is what others are compared with
        is_lead = station.host.key == self.lead
        if not works and is_lead:
            self._give_up(built.state, built.reason)
        elif not works:
            self._leave_out(station, f"the default configuration does not build: {built.state}: {built.reason}")
        else:
            station.default = built
            if is_lead:
                self.effort.build_ended()
            is_seen = is_lead and not self._is_told and not built.state  # as trial 0, which is still to come
            if is_seen or (is_lead and not self.recipe.checks_by_command):
                self._release(station)
            else:
                probe = InFlightTrial(Trial(-1, self.study.space.default), self.default, PROBE)
                self._time(station, probe, DEFAULT_FIRST)

    def _probed(self, station: HostState, timed: Timed) -> None:
        """The default on a host that came after the first, where what fails may be the host's fault; or on the first,
        of a search that goes on, or if it breaks a gate."""
        if not timed.state:
            self._proved(station, timed.check_s)
            self._release(station)
        elif station.host.key == self.lead:
            self._give_up(timed.state, timed.reason)
        else:
            self._leave_out(station, f"the default configuration fails: {timed.state}: {timed.reason}")

    def _release(self, station: HostState) -> None:
        """What was built before."""
        held, station.held, station.is_ready = station.held, [], True
        for flight in held:
            if flight.trial.number == 0:
                self._built(station, flight, dataclasses.replace(station.default, cached=True))
                self.effort.build_s -= station.default.seconds
                self.effort.cached -= 1
            else:
                self._time(station, flight)

    def _proved(self, station: HostState, seconds: float) -> None:
        """The default is right there, and what its check writes is known: others are checked from now on."""
        station.is_proved = True
        self._together.passed(seconds)

    def _give_up(self, state: str, reason: str) -> None:
        raise TuneError(
            f"the default configuration does not work: {state}: {reason}",
            "make this one work first: " + self.study.space.key(self.study.space.default),
        )

    # -------------------------------------------------------------------------------------------- on a GPU
    def _check(self, station: HostState) -> None:
        """Let its idle GPUs check what was built, several at once if it is known how long that takes."""
        while self._stop is None and (some := station.next_to_check(self._together.most(station))):
            flight, *flight.beside = some
            if flight.beside:
                flight.is_timed = True
                self._measure(station, flight, slot.check_together, self._together.asked(some), FRESH)
            else:
                flight.is_alone = True
                self._time(station, flight)

    def _checked(self, station: HostState, flight: InFlightTrial, checked: Checked) -> None:
        """What failed beside others is checked again alone."""
        some, flight.beside = [flight, *flight.beside], []
        if checked.seconds:
            self.effort.timing_ended(checked.seconds)
        for one, passed in zip(some, checked.passed):  # noqa: B905 (Python 3.9)
            one.is_checked, one.is_alone, one.is_doubted = passed, not passed, not passed
            one.took("check", checked.seconds / len(some))
            self.pace.checked(checked.seconds / len(some))
            self._time(station, one)

    def _time(self, station: HostState, flight: InFlightTrial, priority: Optional[int] = None) -> None:
        if self._stop is not None:
            return  # left to the next search
        if self._together.takes(flight, station):
            flight.is_timed = False
            station.unchecked.append(flight)
            return
        flight.repeats = self.halving.repeats[flight.rung] * self._factor(station)
        timing = Timing(flight.candidate, self.default, flight.repeats, self.seed, check=not flight.is_checked)
        if priority is None:
            priority = DEFAULT_FIRST if flight.trial.number == 0 else RISING if flight.rung else FRESH
        flight.is_timed = True
        self._measure(station, flight, slot.measure, timing, priority)

    def _factor(self, station: HostState) -> int:
        """Reckoned of all hosts together, so that times of one are as good as another's."""
        hosts = [station.host for station in self._stations.values()]
        gpus, builders = sum(len(host.devices) for host in hosts), sum(host.cpus for host in hosts)
        factor = self.pace.factor(gpus, builders, is_behind=station.is_behind)
        # Of each count of repeats by commands the default is timed, too: so they are few.
        return factor if self.recipe.serve else 1 << (factor.bit_length() - 1)

    def _measure(
        self,
        station: HostState,
        flight: InFlightTrial,
        function: Callable[..., object],
        argument: object,
        priority: int,
    ) -> None:
        call = self.cluster.submit(
            function, self.recipe, argument, slot="gpu", host=station.host.key, priority=priority
        )
        station.flights[call], self._where[call] = flight, station

    def _timed(self, station: HostState, flight: InFlightTrial, timed: Timed) -> None:
        if flight.purpose == WARM:
            return
        self.effort.timing_ended(timed.check_s + timed.bench_s)
        if flight.purpose == PROBE:
            self._probed(station, timed)
            return
        flight.took("check", timed.check_s)
        flight.took("bench", timed.bench_s)
        if not flight.is_checked and not timed.state:
            if flight.trial.number == 0:
                self._proved(station, timed.check_s)
            else:
                self._together.passed(timed.check_s, flight.is_doubted)
        flight.worker, flight.is_checked = timed.worker, True
        if timed.state:
            self._failed(flight, timed)
            return
        if flight.trial.number != 0:  # the first meets what is not ready yet
            self.pace.timed(flight.repeats, timed.bench_s, timed.check_s or None)
        value = objective(timed.per_case, timed.base, self.study.spec.metric.direction)
        if self.halving.rises(flight.trial.number, flight.rung, value):
            flight.rung += 1
            self._time(station, flight)
            return
        self.pace.ended(flight.rung)
        state = "complete" if flight.rung == self.halving.top else "pruned"
        self._tell(flight, state, value=value, timed=timed)

    def _failed(self, flight: InFlightTrial, timed: Timed) -> None:
        if flight.trial.number == 0 and self._stop is None:
            self._give_up(timed.state, timed.reason)
        state = "bench_failed" if timed.state == "unavailable" else timed.state
        self._tell(flight, state, timed.reason)

    def _tell(
        self,
        flight: InFlightTrial,
        state: str,
        reason: str = "",
        value: Optional[float] = None,
        timed: Optional[Timed] = None,
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
            dict(timed.per_case if timed else {}),
            dict(flight.seconds),
            self.gpu if flight.worker else "",
            flight.worker,
            trial.source,
            dict(timed.base if timed else {}),
        )
        self._is_told = self._is_told or trial.number == 0
        self.study.tell(record)
        self.effort.trials += 1
        self.told(record)

    def _last_words(self) -> None:
        """What is being timed at this moment may come to its end; the rest is left to the next search."""
        kept: List[str] = []
        for station in self._stations.values():
            kept += station.in_timing[: len(station.host.devices)]
        for call in [call for call in self._where if call not in kept]:
            self.cluster.cancel(call)
            self._where.pop(call).flights.pop(call)
        deadline = time.monotonic() + LAST_WORD_S
        while self._where and time.monotonic() < deadline:
            self._hear(max(0.0, deadline - time.monotonic()))
