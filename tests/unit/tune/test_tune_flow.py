"""Whether builders and GPUs keep each other busy: the true engine, on a cluster in a time of its own."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fcctl_tune.engine import engine as engines
from fcctl_tune.engine import pace as efforts
from fcctl_tune.engine.engine import Engine
from fcctl_tune.engine.pace import Halving
from fcctl_tune.search.records import Trial, TrialRecord
from fcctl_tune.search.spec import Spec
from fcctl_tune.trial.slot import Timed, Timing
from fcctl_tune.trial.tasks import Built, TrialSpec
from fcctl_tune.workers.hosts import Device, Host

TRIALS, BUILDERS = 384, 15
SPEC = Spec.from_dict(
    {
        "tune": "t",
        "parameters": {"P": list(range(TRIALS))},
        "build": "true", "serve": "true", "metric": {"unit": "us"}, "cases": ["a"],
        "trials": TRIALS,
    }
)  # fmt: skip
DEFAULT = 0


@dataclass(frozen=True)
class Work:
    """Seconds. Of a build on average, with a lognormal spread, and the default's; of a check, of one repeat, and what a
    timing takes besides these; until a GPU is met; and the share of builds of which nothing comes."""

    build: float
    check: float
    repeat: float
    default_build: float = 0.0
    wasted: float = 0.0
    besides: float = 0.0
    meeting: float = 0.5

    def of(self, argument: Any, rng: random.Random) -> tuple[float, Any]:
        """How long it takes, and what comes of it."""
        if isinstance(argument, Timing):
            return self._timed(argument)
        seconds = self.build * math.exp(rng.gauss(0.0, 0.15))
        if int(argument.params["P"]) == DEFAULT:
            return self.default_build or seconds, Built("", "", self.default_build or seconds)
        wasted = rng.random() < self.wasted
        return seconds, Built("gate_failed" if wasted else "", "", seconds)

    def _timed(self, timing: Timing) -> tuple[float, Timed]:
        p = int(timing.trial.params["P"])
        value = 1.0 if p == DEFAULT else 1.0 + random.Random(p).random()
        check, bench = self.check * timing.check, self.besides + self.repeat * timing.repeats
        return check + bench, Timed("", "", {"a": value}, {"a": 1.0}, check, bench, "gpu-0")


@dataclass
class Workshop:
    """A cluster of one host in a time of its own: a slot takes up the next call at once, the engine hears a little
    later of the last one."""

    host: Host
    work: Work
    rng: random.Random
    now: float = 0.0
    busy: Counter[str] = field(default_factory=Counter)  # seconds, by slot

    LATENCY_S = 0.01

    def __post_init__(self) -> None:
        self.free = {"cpu": self.host.cpus, "gpu": len(self.host.devices)}
        self.waiting: dict[str, list[Any]] = {"cpu": [], "gpu": []}
        self._happens: list[Any] = []
        self._numbers = itertools.count()

    @property
    def hosts(self) -> list[Host]:
        return [self.host]

    def monotonic(self) -> float:
        return self.now

    def submit(
        self, function: Any, trial_spec: TrialSpec, argument: Any, *, slot: str, host: str, priority: int = 0
    ) -> str:
        call = f"{function.__name__}-{next(self._numbers)}"
        heapq.heappush(self.waiting[slot], (-priority, next(self._numbers), call, argument))
        self._take_up(slot)
        return call

    def _take_up(self, slot: str) -> None:
        while self.free[slot] and self.waiting[slot]:
            *_, call, argument = heapq.heappop(self.waiting[slot])
            seconds, outcome = self.work.of(argument, self.rng)
            self.free[slot] -= 1
            self.busy[slot] += seconds
            for due, what in ((seconds, slot), (seconds + self.LATENCY_S, (call, outcome))):
                heapq.heappush(self._happens, (self.now + due, next(self._numbers), what))

    def results(self, seconds: float) -> list[tuple[str, Any]]:
        while True:
            self.now, _, what = heapq.heappop(self._happens)
            if isinstance(what, tuple):
                return [what]
            self.free[what] += 1
            self._take_up(what)

    def cancel(self, call: str) -> None:
        raise AssertionError("nothing is given up here")

    wake = mend = lambda _: None


#: A search of a flagship's tilings as one was seen on an H200, and another whose timings are as much preparation as
#: repeats; one whose builds are cheap, but for the default's; one whose GPU is met late; what is cached; what is slow
#: to time; both alike.
TILINGS = Work(build=2.2, default_build=4.4, check=0.007, repeat=0.0027, wasted=0.13)
PREPARED = Work(build=1.7, default_build=3.5, check=0.007, repeat=0.0003, wasted=0.19, besides=0.02)
APART = Work(build=0.85, default_build=3.2, check=0.008, repeat=0.0005, wasted=0.17, besides=0.006)
MET_LATE = Work(build=0.7, default_build=0.8, check=0.008, repeat=0.0005, wasted=0.17, besides=0.006, meeting=2.0)
CACHED = Work(build=0.06, check=0.007, repeat=0.0027)
SLOW_TO_TIME = Work(build=1.0, check=0.3, repeat=0.02)
ALIKE = Work(build=1.5, check=0.02, repeat=0.008)
Search = Callable[..., tuple[dict[str, Any], Workshop]]


class Unkept:
    """A study of random proposals that keeps nothing: what matters here is when it is asked."""

    space, spec, learns = SPEC.space, SPEC, False

    def __init__(self) -> None:
        self._numbers = iter(range(TRIALS))
        self.told: list[TrialRecord] = []

    def records(self) -> list[TrialRecord]:
        return []

    def ask(self) -> Trial | None:
        return next((Trial(n, {"P": n}, "random") for n in self._numbers), None)

    def tell(self, record: TrialRecord) -> None:
        self.told.append(record)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    def carry_out(work: Work, gpus: int = 1, seed: int = 0, **more: Any) -> tuple[dict[str, Any], Workshop]:
        """What the search cost, in the workshop's time; ``more`` is of its trial_spec."""
        devices = tuple(Device(f"gpu-{n}", "card") for n in range(gpus))
        workshop = Workshop(Host("", BUILDERS * gpus, devices), work, random.Random(seed))
        for module in (engines, efforts):
            monkeypatch.setattr(module, "time", workshop)
        study: Any = Unkept()
        trial_spec = replace(TrialSpec.of(SPEC, "/nowhere", "/nowhere"), **more)
        engine = Engine(study, workshop, trial_spec, Halving(), on_record=lambda _: None)
        engine.effort.began = 0.0
        engine.run()
        assert sorted(record.number for record in study.told) == list(range(TRIALS))
        return engine.effort.as_dict(), workshop

    return carry_out


@pytest.mark.parametrize("work", [TILINGS, PREPARED, APART, MET_LATE])
def test_builders_do_not_wait_for_a_gpu_that_measures_longer(search: Search, work: Work) -> None:
    cost, workshop = search(work)
    assert workshop.busy["cpu"] / (BUILDERS * cost["wall_s"]) > 0.9
    assert cost["gpu_timed_share"] > 0.65


@pytest.mark.parametrize("work", [SLOW_TO_TIME, CACHED])
def test_a_gpu_that_is_slower_than_builders_never_waits(search: Search, work: Work) -> None:
    cost, _ = search(work)
    assert cost["gpu_timed_share"] > 0.9


@pytest.mark.parametrize("work", [TILINGS, PREPARED, APART, MET_LATE, CACHED, SLOW_TO_TIME, ALIKE])
def test_more_gpus_with_their_builders_end_it_sooner_in_proportion(search: Search, work: Work) -> None:
    one, two, four = (sum(search(work, gpus, seed)[0]["wall_s"] for seed in (0, 1)) for gpus in (1, 2, 4))
    assert one / two > 1.8
    assert one / four > 3.4
