"""The engine's state of each host, with its trials in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional

from fcctl_tune.engine.pace import AHEAD, Throughput
from fcctl_tune.search.records import Trial
from fcctl_tune.workers.hosts import Host

#: Why a configuration is in flight: a trial, the default's build on a host, or whether the default works on a host.
TRIAL, DEFAULT, PROBE = "trial", "default", "probe"


@dataclass
class InFlightTrial:
    """A configuration in flight."""

    trial: Trial
    purpose: str = TRIAL
    rung: int = 0
    repeats: int = 0  # of the present timing
    worker: str = ""
    is_timing: bool = False  # it is on a GPU, or waits for one
    is_checked: bool = False  # on this host
    is_suspect: bool = False  # workers died while they had it and others: it runs alone
    is_early: bool = False  # it was built before the host's GPUs timed anything
    losses: int = 0  # of its host
    seconds: Dict[str, float] = field(default_factory=dict)

    @property
    def is_trial(self) -> bool:
        return self.purpose == TRIAL

    def add_seconds(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + seconds, 4)


@dataclass
class HostState:
    """A host at work."""

    host: Host
    is_ready: bool = False  # the default works there
    has_timed: bool = False
    held: List[InFlightTrial] = field(default_factory=list)  # built before the host was ready
    suspects: List[InFlightTrial] = field(default_factory=list)  # to run alone, one by one
    calls: Dict[str, InFlightTrial] = field(default_factory=dict)  # by the call's name
    faults: int = 0  # failed calls in a row

    @property
    def trials(self) -> List[InFlightTrial]:
        return [one for one in (*self.held, *self.suspects, *self.calls.values()) if one.is_trial]

    @property
    def is_early(self) -> bool:
        """Whether a build now also waits for the default or for a GPU that starts."""
        return not (self.is_ready and self.has_timed)

    @property
    def timing_calls(self) -> List[str]:
        """In progress, or waiting for a GPU."""
        return [name for name, one in self.calls.items() if one.is_timing]

    @property
    def is_behind(self) -> bool:
        """Whether more is built than its GPUs will time soon."""
        return len(self.timing_calls) >= AHEAD * len(self.host.devices)

    def next_suspect(self) -> Optional[InFlightTrial]:
        """A suspect that may run now, the default's trial first, for which others may wait."""
        if not self.suspects or self.calls:
            return None
        self.suspects.sort(key=lambda one: one.trial.number)
        return self.suspects.pop(0)

    def idle_share(self, pace: Throughput, *, learns: bool) -> float:
        """The share of the trials due here that is not in flight; none while a trial that kills workers is looked for.

        So that builders do not wait, as many again may be built early, and any number if the search does not learn.
        """
        due = pace.under_way(len(self.host.devices), self.host.cpus)
        under_way = self.calls.values()
        if self.suspects or any(one.is_suspect for one in under_way):
            return 0.0
        busy = sum(not one.is_early for one in under_way)
        early = len(self.held) + len(under_way) - busy
        return (due - busy - (max(0, early - due) if learns else 0)) / due


def idlest(hosts: Iterable[HostState], pace: Throughput, *, learns: bool) -> Optional[HostState]:
    """The host for the next trial: the emptiest for its size; None if all have enough."""
    shares = [(host.idle_share(pace, learns=learns), host) for host in hosts]
    share, host = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    return host if share > 0 else None
