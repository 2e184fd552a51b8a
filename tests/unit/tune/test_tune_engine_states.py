"""A search on machines that come, go, come back and break in any order: what becomes of its trials."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcctl_tune.engine import engine as engines
from fcctl_tune.engine.engine import MOST_LOSSES, Engine, Stopped
from fcctl_tune.engine.pace import Halving
from fcctl_tune.errors import TuneError
from fcctl_tune.search.records import Trial, TrialRecord
from fcctl_tune.search.spec import Spec, Stage
from fcctl_tune.trial.slot import Timed, Timing
from fcctl_tune.trial.tasks import Built, TrialSpec
from fcctl_tune.workers.hosts import CallFailed, Device, Host

TRIALS = 16
SPEC = Spec.from_dict(
    {
        "tune": "t",
        "parameters": {"P": {"values": list(range(TRIALS)), "default": 0}},
        "serve": "serves",
        "trials": TRIALS,
    }
)
#: Steps of a search after which nothing more happens to the hosts, at most, and of one that comes to its end.
MOST_TROUBLE, MOST_STEPS = 60, 1000
#: Trials of which workers die: fewer than end a search.
MOST_KILLED = 2


class Study:
    """As :class:`fcctl_tune.search.study.Study`, in memory."""

    learns = True

    def __init__(self) -> None:
        self.spec, self.space = SPEC, SPEC.known_space
        self.told: dict[int, TrialRecord] = {}
        self.asked: dict[int, Trial] = {}
        self.again: list[Trial] = []

    def ask(self) -> Trial | None:
        if self.again:
            return self.again.pop(0)
        number = len(self.told) + len(self.asked)
        if number == TRIALS:
            return None
        self.asked[number] = Trial(number, {"P": number}, "default" if number == 0 else "order")
        return self.asked[number]

    def tell(self, record: TrialRecord) -> None:
        assert record.number not in self.told, "told twice"
        del self.asked[record.number]
        self.told[record.number] = record

    def records(self) -> list[TrialRecord]:
        return [self.told[number] for number in sorted(self.told)]

    def reopened(self) -> None:
        """Another process has it now."""
        self.again = [self.asked[number] for number in sorted(self.asked)]


@dataclass
class Call:
    host: str
    slot: str
    p: int
    number: int


class World:
    """Machine a, which searches, and b and c. What happens next is drawn."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.known: dict[str, Host] = {}  # as the engine sees them, by name
        self.gone: set[str] = set()  # keys of those that do nothing more
        self.left_out: set[str] = set()
        self.calls: dict[str, Call] = {}
        self.built: set[tuple[str, int]] = set()  # on the host with this key
        self.works: set[str] = set()  # where the default does
        self.checked: set[tuple[str, int]] = set()  # trials, by the keys of hosts
        self.processes = Counter[str]()
        self.joined = Counter[str]()
        self.at: dict[int, str] = {}  # trials, and the keys of the hosts that they were begun on last
        self.losses = Counter[int]()  # by trial
        self.killed: set[int] = set()  # trials that took workers with them
        self.troubled: set[str] = set()  # keys of hosts on which something could not be carried out
        self.now = 0.0
        self.steps, self.trouble = 0, draw.randrange(MOST_TROUBLE)
        self._names = itertools.count()
        self.known["a"] = self._host("a", "")

    def _host(self, name: str, member: str) -> Host:
        gpus = 2 if name == "c" else 1
        return Host(
            name, 5 if name == "c" else 3, tuple(Device(f"gpu-{n}", "card") for n in range(gpus)), member=member
        )

    # ------------------------------------------------------------------------------------------------ the cluster
    @property
    def hosts(self) -> list[Host]:
        return list(self.known.values())

    def submit(
        self, function: Any, trial_spec: TrialSpec, argument: Any, *, slot: str, host: str, priority: int = 0
    ) -> str:
        name = f"{function.__name__}-{next(self._names)}"
        trial: Trial = argument.trial if isinstance(argument, Timing) else argument
        p, number = int(trial.params["P"]), trial.number
        if isinstance(argument, Timing):
            assert (host, p) in self.built, "it is timed where it was not built"
            assert p == 0 or host in self.works, "the default does not work there"
            assert argument.check or (host, number) in self.checked, "it is timed unchecked"
            self.checked.add((host, number))
        self.calls[name] = Call(host, slot, p, number)
        self.at[number] = host
        return name

    def cancel(self, call: str) -> None:
        self.calls.pop(call, None)

    def wake(self) -> None: ...

    def leave_out(self, host: str, reason: str) -> None:
        assert host != "a"
        self.left_out.add(host)
        self._forgotten(host)

    def results(self, seconds: float) -> list[tuple[str, Any]]:
        self.steps += 1
        self.now += 1.0
        assert self.steps < MOST_STEPS, "it does not come to its end"
        slots: dict[tuple[str, str], list[str]] = {}
        for name, call in self.calls.items():
            if call.host not in self.gone:
                slots.setdefault((call.host, call.slot), []).append(name)
        done = [name for names in slots.values() for name in names[:2] if self.draw.random() < 0.6]
        self.draw.shuffle(done)
        return [(name, self._outcome(self.calls.pop(name))) for name in done]

    def _outcome(self, call: Call) -> Any:
        if self.steps < self.trouble and self.draw.random() < 0.06:
            if call.number > 0 and len(self.killed) < MOST_KILLED:
                self.killed.add(call.number)
                return CallFailed("its workers died", killed=True)
            if call.host != "a":
                self.troubled.add(call.host)
                self.losses[call.number] += 1
                kinds: list[Any] = [CallFailed("no space"), CallFailed("its workers died", killed=call.number == 0)]
                return self.draw.choice([*kinds, TuneError("serve does not come up")])
        if call.slot == "cpu":
            self.built.add((call.host, call.p))
            return Built("", "", 1.0)
        if call.p == 0:
            self.works.add(call.host)
        return Timed("", "", {"default": 100.0 - call.p}, {"default": 100.0}, 0.1, 0.2, "gpu-0")

    # ------------------------------------------------------------------------------------------------ what happens
    def mend(self) -> None:
        """The roster is looked at: who came, who went, who is there anew."""
        name = self.draw.choice("bc")
        is_over = self.steps > self.trouble and all(host.key not in self.gone for host in self.known.values())
        if (is_over and self.known) or self.draw.random() > 0.3:
            return
        host = self.known.get(name)
        if host is None:
            self.processes[name] += 1
            self._joins(name)
        elif host.key in self.gone:  # it is missed for long now, or is back in time
            self._missed(host)
            if self.draw.random() < 0.5:
                self._joins(name)
        elif self.draw.random() < 0.5:
            self.gone.add(host.key)  # and that is not known yet
            self.processes[name] += self.draw.random() < 0.5  # or its link broke, and it will join anew
        else:  # its link broke, and it is back already
            self._missed(host)
            self._joins(name)

    def _joins(self, name: str) -> None:
        self.joined[name] += 1
        self.known[name] = self._host(name, f"p{self.processes[name]}.{self.joined[name]}")

    def _missed(self, host: Host) -> None:
        self._forgotten(host.key)

    def _forgotten(self, key: str) -> None:
        for number, where in self.at.items():
            if where == key:
                self.losses[number] += 1
        self.gone.add(key)
        self.known = {name: host for name, host in self.known.items() if host.key != key}


def searching(study: Any, world: Any, serves: bool) -> Engine:
    trial_spec = TrialSpec.of(SPEC, "/nowhere", "/nowhere")
    trial_spec = trial_spec if serves else replace(trial_spec, serve="", check=Stage("true"))
    return Engine(study, world, trial_spec, Halving((3, 9), 3), on_record=lambda _: None, gpu="card")


def check(study: Study, world: World) -> None:
    assert world.calls == {}, "each call was heard or cancelled"
    for number, record in study.told.items():
        if record.state == "lost":
            by_hosts = world.losses[number] >= MOST_LOSSES
            assert number in world.killed or by_hosts
        else:
            assert record.state in ("complete", "pruned")
            assert record.value == (100.0 - number) / 100.0
    assert world.left_out <= world.troubled, "a host that works is used"


@pytest.mark.full
@given(seed=st.integers(0, 10**9), stops=st.booleans(), serves=st.booleans())
@settings(max_examples=300, derandomize=True)
def test_no_trial_is_lost_or_told_twice_whatever_happens_to_the_hosts(seed: int, stops: bool, serves: bool) -> None:
    draw = random.Random(seed)
    study, world = Study(), World(draw)
    with (
        mock.patch.object(engines, "time", SimpleNamespace(monotonic=lambda: world.now)),
        mock.patch.object(engines, "LAST_TIMINGS_S", 2.0),
    ):
        made = searching(study, world, serves)
        if stops:
            at, mend = draw.randrange(1, 40), world.mend

            def stopping() -> None:
                mend()
                if world.steps >= at:
                    made.stop("SIGTERM")

            with mock.patch.object(world, "mend", stopping):
                try:
                    made.run()
                except Stopped:
                    check(study, world)
            study.reopened()
            made = searching(study, world, serves)
        made.run()
    check(study, world)
    assert list(study.asked) == [trial.number for trial in study.again], "what was begun comes to its end"
    assert sorted(study.told) == list(range(TRIALS))
