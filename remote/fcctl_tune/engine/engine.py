"""The search's loop: builders compile ahead, GPUs check and time, and each finished trial is saved at once.

    ask -> build (cpu) -> check and time, briefly (gpu) -> time longer (gpu), while it is among the best -> tell

A trial stays on one host. If that is lost, the trial begins again on another. Each trial is recorded once; the next
process asks again for those in flight.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Optional

from fcctl_tune.engine.pace import DEFAULT, PROBE, Effort, Halving, HostState, InFlightTrial, Throughput, idlest
from fcctl_tune.errors import TuneError
from fcctl_tune.search.records import Trial, TrialRecord, objective
from fcctl_tune.search.study import Study
from fcctl_tune.trial import slot, tasks
from fcctl_tune.trial.slot import Timed, Timing
from fcctl_tune.trial.tasks import Built, TrialSpec
from fcctl_tune.workers.cluster import Cluster
from fcctl_tune.workers.hosts import Host

#: Times that a trial may lose its host, and calls that may fail in a row on a host that does not lead.
MOST_LOSSES, MOST_FAULTS = 5, 3
#: Trials in a row that no worker could run, before the search ends.
MAX_LOST = 5
#: Seconds that a timing may still take after SIGTERM.
LAST_TIMINGS_S = 3.0
#: Seconds between two looks at the workers.
TICK_S = 0.25
DEFAULT_FIRST, RISING, FRESH = 20, 10, 0


class Stopped(Exception):
    """The search was stopped; its argument says by what."""


class Engine:
    """One study on one cluster; the same cluster may serve another study afterwards."""

    def __init__(
        self, study: Study, cluster: Cluster, trial_spec: TrialSpec, halving: Halving, *,
        on_record: Callable[[TrialRecord], None], gpu: str = "",
    ) -> None:  # fmt: skip
        """``on_record`` is called with each finished trial."""
        self.study, self.cluster, self.trial_spec, self.halving = study, cluster, trial_spec, halving
        self.on_record, self.gpu = on_record, gpu
        self.effort = Effort()
        self.pace = Throughput(halving)
        self.default = Trial(0, study.space.default, "default")
        self.lead = cluster.hosts[0].key  # of this machine, which is always there
        self.seen: Dict[str, Host] = {}  # all hosts so far, by name
        self._hosts: Dict[str, HostState] = {}
        self._host_of: Dict[str, HostState] = {}  # by call in flight
        self._waiting: List[InFlightTrial] = []  # for a host
        self._lost = 0
        self._stop: Optional[str] = None
        for record in study.records():  # of an earlier process
            if record.value is not None:
                for rung in range(min(record.rung, halving.top) + 1):
                    halving.rises(record.number, rung, record.value)

    def stop(self, reason: str) -> None:
        """End soon; called from a signal handler or another thread."""
        self._stop = reason
        self.cluster.wake()

    def run(self) -> None:
        """Search until the study has no more trials. Raises Stopped: :meth:`stop` was called; finished trials are
        recorded; TuneError: the default configuration does not work, or no trial can."""
        try:
            while self._stop is None:
                self._update_hosts()
                for state in self._hosts.values():
                    self._try_suspect(state)
                self._ask()
                if self._is_done():
                    return
                self._receive(TICK_S)
                self.cluster.mend()
            self._finish_timings()
            raise Stopped(self._stop)
        finally:
            self.effort.ended = time.monotonic()
            for call in self._host_of:  # of a host that came late
                self.cluster.cancel(call)

    def _is_done(self) -> bool:
        """Whether no trial is in flight, and the default is built on the host that compares the elites."""
        busy = self._waiting or any(state.trials for state in self._hosts.values())
        return not busy and self._hosts[self.lead].is_ready

    def _update_hosts(self) -> None:
        """Add new hosts, remove lost ones."""
        here = {host.key: host for host in self.cluster.hosts}
        for key in [key for key in self._hosts if key not in here]:
            self._host_lost(self._hosts.pop(key))
        for key, host in here.items():
            if key not in self._hosts:
                self._host_came(HostState(host))
        self.effort.set_gpus(sum(len(host.devices) for host in here.values()))

    def _host_came(self, state: HostState) -> None:
        """Build the default first, then time it: every value is a ratio to its time."""
        self._hosts[state.host.key] = state
        self.seen[state.host.name] = state.host
        self._build(state, InFlightTrial(self.default, DEFAULT), DEFAULT_FIRST)

    def _host_lost(self, state: HostState) -> None:
        """Begin its trials again elsewhere."""
        for call in state.calls:
            self.cluster.cancel(call)
            self._host_of.pop(call)
        for one in state.trials:
            self._begin_again(one, "its host was lost")

    def _begin_again(self, one: InFlightTrial, reason: str) -> None:
        """On any host. Within limits a broken link is no trial's fault."""
        one.losses += 1
        one.is_checked = one.is_suspect = False
        if one.losses >= MOST_LOSSES:
            self._tell(one, "lost", reason)
        else:
            self._waiting.append(one)
            self._waiting.sort(key=lambda other: other.trial.number)

    def _ask(self) -> None:
        """Give idle hosts trials: those of a lost host, and new ones."""
        while state := idlest(self._hosts.values(), self.pace, learns=self.study.learns):
            one = self._next()
            if one is None:
                return
            self._build(state, one)

    def _next(self) -> Optional[InFlightTrial]:
        if self._waiting:
            return self._waiting.pop(0)
        trial = self.study.ask()
        return InFlightTrial(trial) if trial is not None else None

    def _build(self, state: HostState, one: InFlightTrial, priority: int = FRESH) -> None:
        one.is_early = False
        self._submit(state, one, tasks.build, one.trial, "cpu", priority)

    def _submit(
        self, state: HostState, one: InFlightTrial, function: Callable[..., object], argument: object, kind: str,
        priority: int,
    ) -> None:  # fmt: skip
        name = self.cluster.submit(
            function, self.trial_spec, argument, slot=kind, host=state.host.key, priority=priority
        )
        one.is_timing = kind == "gpu"
        state.calls[name], self._host_of[name] = one, state

    def _receive(self, seconds: float) -> None:
        """Wait for results, and handle them."""
        for name, outcome in self.cluster.results(seconds):
            state = self._host_of.pop(name, None)
            if state is None:
                continue
            one = state.calls.pop(name)
            if isinstance(outcome, Exception):
                self._call_failed(state, one, outcome)
                continue
            self._lost = state.faults = 0
            if isinstance(outcome, Built):
                self._built(state, one, outcome)
            else:
                self._timed(state, one, outcome)

    def _call_failed(self, state: HostState, one: InFlightTrial, error: Exception) -> None:
        """No worker could run it: each died, or the machine has a fault."""
        killed = getattr(error, "killed", False)
        if self._stop is not None:
            return
        if killed and not one.is_suspect:  # by it, or by another trial that its workers had
            one.is_suspect = True
            state.suspects.append(one)
        else:
            self._trial_failed(state, one, error, killed)

    def _trial_failed(self, state: HostState, one: InFlightTrial, error: Exception, killed: bool) -> None:
        by_trial = one.is_trial and killed  # else perhaps by the machine
        if state.host.key != self.lead and not by_trial:
            state.faults += 1
            if one.is_trial:
                self._begin_again(one, str(error))
            if isinstance(error, TuneError) or state.faults >= MOST_FAULTS or not one.is_trial:
                self.cluster.leave_out(state.host.key, str(error))
            return
        if isinstance(error, TuneError):
            raise error
        self._lost += 1
        if self._lost >= MAX_LOST or one.trial.number <= 0:
            problem = f"trial {max(0, one.trial.number)} could not run: {error}"
            raise TuneError(
                problem,
                "check the machine: whether its memory or disk is full, or another program kills processes (dmesg)",
            )
        self._tell(one, "lost", f"{error}, although no other trial ran" if by_trial else str(error))

    def _try_suspect(self, state: HostState) -> None:
        """Run one trial of which workers may have died, alone: if they die again, it alone is lost."""
        if self._stop is not None or (one := state.next_suspect()) is None:
            return
        if one.purpose == PROBE:
            self._time(state, one)
        else:
            self._build(state, one)

    def _built(self, state: HostState, one: InFlightTrial, built: Built) -> None:
        self.effort.build_s += built.seconds
        self.effort.built += not built.cached
        self.effort.cached += built.cached
        if one.purpose == DEFAULT:
            self._default_built(state, built)
            return
        one.add_seconds("build", built.seconds)
        self.pace.built(built.seconds, usable=not built.state)
        if built.state:
            self._tell(one, built.state, built.reason)
            return
        one.is_early = state.is_early
        if state.is_ready:
            self._time(state, one)
        else:
            state.held.append(one)

    def _default_built(self, state: HostState, built: Built) -> None:
        if built.state in ("", "gate_failed"):  # a default that breaks a gate is compared with all the same
            if state.host.key == self.lead:
                self.effort.build_ended()
            self._time(state, InFlightTrial(self.default, PROBE))
        else:
            self._default_failed(state, built.state, built.reason)

    def _probed(self, state: HostState, timed: Timed) -> None:
        """The default was timed on a host, whose trials follow if it works there."""
        if not timed.state:
            held, state.held, state.is_ready = state.held, [], True
            for one in held:
                self._time(state, one)
        else:
            self._default_failed(state, timed.state, timed.reason)

    def _default_failed(self, host: Optional[HostState], state: str, reason: str) -> None:
        """Leave the ``host`` out. Raises TuneError, if it leads or the default failed as a trial."""
        problem = f"the default configuration does not work: {state}: {reason}"
        if host is None or host.host.key == self.lead:
            hint = "correct the default configuration first: " + self.study.space.key(self.study.space.default)
            raise TuneError(problem, hint)
        self.cluster.leave_out(host.host.key, problem)

    def _time(self, state: HostState, one: InFlightTrial) -> None:
        if self._stop is not None:
            return  # the next process does it
        priority = DEFAULT_FIRST if one.trial.number == 0 else RISING if one.rung else FRESH
        one.repeats = self.halving.repeats[one.rung] * self._factor(state)
        timing = Timing(one.trial, self.default, one.repeats, not one.is_checked)
        self._submit(state, one, slot.measure, timing, "gpu", priority)

    def _factor(self, state: HostState) -> int:
        """Of the repeats, by all hosts together, so that their times are equally precise."""
        hosts = [other.host for other in self._hosts.values()]
        gpus, builders = sum(len(host.devices) for host in hosts), sum(host.cpus for host in hosts)
        factor = self.pace.factor(gpus, builders, is_behind=state.is_behind)
        # Commands time the default anew for each count of repeats: so there are few.
        return factor if self.trial_spec.serve else 1 << (factor.bit_length() - 1)

    def _timed(self, state: HostState, one: InFlightTrial, timed: Timed) -> None:
        self.effort.timing_ended(timed.check_s + timed.bench_s)
        state.has_timed = True
        if one.purpose == PROBE:
            self._probed(state, timed)
            return
        one.add_seconds("check", timed.check_s)
        one.add_seconds("bench", timed.bench_s)
        one.worker, one.is_checked = timed.worker, True
        if timed.state:
            if one.trial.number == 0 and self._stop is None:
                self._default_failed(None, timed.state, timed.reason)
            self._tell(one, "bench_failed" if timed.state == "unavailable" else timed.state, timed.reason)
            return
        if one.trial.number != 0:  # the first one is slower
            self.pace.timed(one.repeats, timed.bench_s, timed.check_s or None)
        value = objective(timed.per_case, timed.base, self.study.spec.metric.direction)
        if self.halving.rises(one.trial.number, one.rung, value):
            one.rung += 1
            self._time(state, one)
            return
        self.pace.ended(one.rung)
        state_name = "complete" if one.rung == self.halving.top else "pruned"
        self._tell(one, state_name, value=value, timed=timed)

    def _tell(
        self, one: InFlightTrial, state: str, reason: str = "", value: Optional[float] = None,
        timed: Optional[Timed] = None,
    ) -> None:  # fmt: skip
        if self._stop is not None and value is None:
            return  # the signal may have ended its processes: the next process asks for it again
        per_case, base = (dict(timed.per_case), dict(timed.base)) if timed else ({}, {})
        record = TrialRecord(
            one.trial.number, one.trial.params, state, reason, value, one.rung, per_case, dict(one.seconds),
            self.gpu if one.worker else "", one.worker, one.trial.source, base,
        )  # fmt: skip
        self.study.tell(record)
        self.effort.trials += 1
        self.on_record(record)

    def _finish_timings(self) -> None:
        """Let the present timings end; the next process does the rest."""
        kept = [call for state in self._hosts.values() for call in state.timing_calls[: len(state.host.devices)]]
        for call in [call for call in self._host_of if call not in kept]:
            self.cluster.cancel(call)
            self._host_of.pop(call).calls.pop(call)
        deadline = time.monotonic() + LAST_TIMINGS_S
        while self._host_of and time.monotonic() < deadline:
            self._receive(max(0.0, deadline - time.monotonic()))
