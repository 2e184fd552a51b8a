"""Hosts as the engine sees them, with the trials that are under way on each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Tuple

from fcctl_tune.engine.pace import AHEAD, Throughput
from fcctl_tune.search.records import Trial
from fcctl_tune.trial.tasks import Built, Candidate
from fcctl_tune.workers.interfaces import Host

#: What a flight is for: a trial, the default's build on a host, whether the default works on one that came later, or
#: that a GPU is met before there is something to time.
TRIAL, DEFAULT, PROBE, WARM = "trial", "default", "probe", "warm"
#: Trials that one GPU checks at once, where each check is a process.
TOGETHER = 4


@dataclass
class InFlightTrial:
    """A configuration under way."""

    trial: Trial
    candidate: Candidate
    purpose: str = TRIAL
    rung: int = 0
    repeats: int = 0  # of the timing under way
    worker: str = ""
    is_timed: bool = False  # it is built, and checked or timed now
    is_checked: bool = False  # on this host
    is_alone: bool = False  # to be checked so
    is_doubted: bool = False  # it failed beside others
    is_suspect: bool = False  # workers died while they had it and others; now it is there alone
    is_early: bool = False  # it was built before all of the host's GPUs could time it
    beside: List[InFlightTrial] = field(
        default_factory=list
    )  # those that are checked at the same time, by the same call
    lost_under: List[Tuple[str, str]] = field(default_factory=list)  # hosts and members' processes, each time one was
    seconds: Dict[str, float] = field(default_factory=dict)

    @property
    def is_trial(self) -> bool:
        return self.purpose == TRIAL

    def took(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + seconds, 4)


@dataclass
class HostState:
    """A host at work."""

    host: Host
    default: Built = field(default_factory=lambda: Built(""))
    is_ready: bool = False  # the default is built and, unless it is the first host, works there
    is_proved: bool = False  # it was found right there
    held: List[InFlightTrial] = field(default_factory=list)  # built before that
    unchecked: List[InFlightTrial] = field(
        default_factory=list
    )  # built, and checked when the default was and a GPU is idle
    suspects: List[InFlightTrial] = field(default_factory=list)  # to be carried out one by one, beside which nothing is
    flights: Dict[str, InFlightTrial] = field(default_factory=dict)  # by their calls
    faults: int = 0  # calls in a row that gave nothing

    @property
    def under_way(self) -> List[InFlightTrial]:
        """All but those held."""
        calls = self.flights.values()
        return [*self.unchecked, *calls, *(one for flight in calls for one in flight.beside)]

    @property
    def trials(self) -> List[InFlightTrial]:
        return [f for f in (*self.held, *self.suspects, *self.under_way) if f.is_trial]

    @property
    def has_trials(self) -> bool:
        return bool(self.held or self.suspects or self.unchecked) or any(f.is_trial for f in self.flights.values())

    @property
    def gpus(self) -> int:
        """Those that were met."""
        return len(self.host.devices) - sum(flight.purpose == WARM for flight in self.flights.values())

    @property
    def is_early(self) -> bool:
        """Whether what is built now waits for more than its turn: for the default, or for a GPU that is still met."""
        return not self.is_ready or self.gpus < len(self.host.devices)

    @property
    def in_timing(self) -> List[str]:
        """Calls that a GPU has, or waits for."""
        return [call for call, flight in self.flights.items() if flight.is_timed]

    @property
    def is_behind(self) -> bool:
        """Whether more is built than its GPUs come to time soon."""
        beside = sum(len(flight.beside) for flight in self.flights.values())
        return len(self.in_timing) + len(self.unchecked) + beside >= AHEAD * len(self.host.devices)

    @property
    def together(self) -> int:
        """How many may be checked at once: on its processors builds go on."""
        return min(TOGETHER, (self.host.cpus + 1) // 2)

    def next_to_check(self, most: int) -> List[InFlightTrial]:
        """Those that an idle GPU is to check now."""
        if not self.is_proved or len(self.in_timing) >= len(self.host.devices):
            return []
        some, self.unchecked = self.unchecked[:most], self.unchecked[most:]
        return some

    def next_suspect(self) -> Optional[InFlightTrial]:
        """One that may be carried out now, the default's trial first: others may wait for that to be checked."""
        if not self.suspects or self.flights or (self.unchecked and self.is_proved):
            return None
        self.suspects.sort(key=lambda flight: flight.trial.number)
        return self.suspects.pop(0)

    def idle_share(self, pace: Throughput, *, learns: bool) -> float:
        """Which share of the trials that should be under way here is not.

        As many again may be built early, and any number for a search that ``learns`` nothing from what is timed, so
        that builders do not wait. While one that kills workers is looked for, none is begun.
        """
        due = pace.under_way(len(self.host.devices), self.host.cpus)
        under_way = self.under_way
        if self.suspects or any(flight.is_suspect for flight in under_way):
            return 0.0
        busy = sum(not flight.is_early for flight in under_way)
        early = len(self.held) + len(under_way) - busy
        return (due - busy - (max(0, early - due) if learns else 0)) / due


def idlest(hosts: Iterable[HostState], pace: Throughput, *, learns: bool) -> Optional[HostState]:
    """Where the next trial is begun: the emptiest host, for its size; None if all have enough."""
    shares = [(host.idle_share(pace, learns=learns), host) for host in hosts]
    share, host = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    return host if share > 0 else None
