"""How many trials are in flight and how often each is timed, so that neither builders nor GPUs wait.

A GPU that would wait for a build times the present configuration longer: its share of the builders' rate leaves it some
time for each trial, for the check and for repeats. The rate is what builders could do, not what came lately: else long
timings, for which builders wait, would look like slow builders and become longer still.

Successive halving is asynchronous: a trial is timed briefly first, and longer only if it is among the best so far.
Each decision is made on what is known when it is due (Li et al., "A System for Massively Parallel Hyperparameter
Tuning", 2020). Trial 0, with which all others are compared, is always timed in full.

Each host has its state here, with its trials in flight.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Tuple

from fcctl_tune.search.records import Trial
from fcctl_tune.workers.hosts import Host

#: Factors of the repeats; few, since the default is timed as often as what is compared with it.
FACTORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 56, 64)
#: Seconds that a trial takes of a GPU at least: in less, clocks and the place of inputs count as much.
LEAST_S = 0.05
#: Seconds of its timings at most, however slow builders are: the search should learn soon.
LONGEST_S = 1.0
#: Trials built and not yet timed, for each GPU: they keep it busy, and proposals still know most results.
AHEAD = 3
#: Weight of the newest figure in running means: of steady figures, and of others.
NEW, SLOWLY = 0.2, 0.05
#: The least share of builds that is assumed to be usable.
LEAST = 0.01


@dataclass
class Throughput:
    """Running means of this search: seconds of a trial unless said."""

    halving: Halving
    _build: Optional[float] = None
    _usable: float = 1.0  # share of the builds that are timed
    _check: Optional[float] = None
    _bench: Optional[float] = None  # seconds of one timing, and its repeats
    _bench_repeats: Optional[float] = None
    _repeats: Optional[float] = None  # of all timings of a trial, by halving

    def built(self, seconds: float, usable: bool) -> None:
        """A build took so long."""
        self._build = _mean(self._build, seconds, NEW)
        self._usable = max(LEAST, _mean(self._usable, float(usable), SLOWLY))

    def timed(self, repeats: int, bench_s: float, check_s: Optional[float]) -> None:
        """``repeats`` of each case took ``bench_s``; ``check_s`` is None if nothing was checked."""
        self._bench = _mean(self._bench, bench_s, SLOWLY)
        self._bench_repeats = _mean(self._bench_repeats, float(repeats), SLOWLY)
        if check_s is not None:
            self._check = _mean(self._check, check_s, NEW)

    def ended(self, rung: int) -> None:
        """A trial ended at ``rung``."""
        self._repeats = _mean(self._repeats, float(sum(self.halving.repeats[: rung + 1])), SLOWLY)

    def factor(self, gpus: int, builders: int, *, is_behind: bool = False) -> int:
        """The factor of the repeats, of :data:`FACTORS`; a host ``is_behind`` its builders takes no more for them."""
        if not (self._build and self._timing):
            return 1
        check, repeats = self._timing
        for_each = gpus * self._build / (builders * self._usable)  # seconds of a GPU, if no builder ever waits
        fits = 0.0 if is_behind else (min(for_each, LONGEST_S) - check) / repeats
        fewest = next((n for n in FACTORS if check + n * repeats >= LEAST_S), FACTORS[-1])
        return max(1, fewest if for_each < LEAST_S else 1, *(n for n in FACTORS if n <= fits))

    def under_way(self, gpus: int, builders: int) -> int:
        """How many trials keep so many GPUs and builders busy."""
        ahead = AHEAD * gpus
        if not (self._build and self._timing):
            return builders + ahead
        trial_s = max(LEAST_S, sum(self._timing))
        return ahead + min(builders, math.ceil(gpus * self._build / (self._usable * trial_s)))

    @property
    def _timing(self) -> Optional[Tuple[float, float]]:
        """Seconds of a GPU for a trial's check, and for its repeats by halving, with their share of the overhead."""
        if not (self._bench and self._bench_repeats and self._repeats):
            return None
        return self._check or 0.0, self._bench / self._bench_repeats * self._repeats


def _mean(mean: Optional[float], new: float, weight: float) -> float:
    return new if mean is None else mean + weight * (new - mean)


@dataclass
class Halving:
    """``repeats`` are the timings of a case at each rung; the best of every ``keep`` at a rung rise."""

    repeats: Tuple[int, ...] = (3, 9, 27)
    keep: int = 3
    _seen: List[List[float]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._seen = [[] for _ in self.repeats]

    @property
    def top(self) -> int:
        return len(self.repeats) - 1

    def rises(self, number: int, rung: int, value: float) -> bool:
        """Whether trial ``number`` with ``value`` at ``rung`` is timed at the next; never at the top, where it is
        complete."""
        others = self._seen[rung]
        better = sum(other < value for other in others)
        others.append(value)
        if rung == self.top:
            return False
        return number == 0 or better < max(1, len(others) // self.keep)


@dataclass
class Effort:
    """What a search cost: seconds of processors and GPUs together, and trials recorded."""

    gpus: int = 0
    began: float = field(default_factory=time.monotonic)
    build_s: float = 0.0
    built: int = 0
    cached: int = 0
    timed_s: float = 0.0
    trials: int = 0
    ended: Optional[float] = None
    _there_s: float = 0.0  # of all GPUs, from the first build to the last timing
    _idle_s: float = 0.0  # of all GPUs, from then until _since
    _since: Optional[float] = None

    def set_gpus(self, gpus: int) -> None:
        """The number of GPUs changes."""
        if gpus != self.gpus:
            self._until(time.monotonic())
            self.gpus = gpus

    def build_ended(self) -> None:
        """The first build ended."""
        if self._since is None:
            self._since = time.monotonic()

    def timing_ended(self, seconds: float) -> None:
        self.timed_s += seconds
        self._until(time.monotonic())
        self._there_s, self._idle_s = self._there_s + self._idle_s, 0.0

    def _until(self, now: float) -> None:
        if self._since is not None:
            self._idle_s += self.gpus * (now - self._since)
            self._since = now

    def as_dict(self) -> Dict[str, Any]:
        """``gpu_timed_share``: the share of the GPUs' time, from the first build to the last timing, for checks and
        timings."""
        wall = (self.ended or time.monotonic()) - self.began
        return {
            "wall_s": round(wall, 3),
            "gpu_timed_share": round(self.timed_s / self._there_s, 4) if self._there_s > 0 else None,
            "trials_per_minute": round(60.0 * self.trials / wall, 2) if wall > 0 else None,
            "compile_s": round(self.build_s, 3),
            "timed_s": round(self.timed_s, 3),
            "built": self.built,
            "from_cache": self.cached,
        }


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
