"""Hosts that join, lose workers, fall silent, die and come back in any order: what is said of them, and who is used."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fcctl_tune.workers.hosts import Device, Host
from fcctl_tune.workers.membership import FACTS, GONE_S, Membership, facts

GPUS = {"b": 1, "c": 2}
NAMES = st.sampled_from(sorted(GPUS))
#: Where in the scheduler's list a worker comes; how long after something has happened the list is looked at.
PLACES = st.integers(0, 9)
SECONDS = st.sampled_from([None, 0.5, 0.5, 3.0, GONE_S + 1])


@dataclass
class Machine:
    """One that may join: as its process number ``process``, for the time ``tries``."""

    name: str
    process: int = 0
    tries: int = 0
    missing: list[str] = field(default_factory=list)  # workers that are still to come, if it is there

    @property
    def host(self) -> Host:
        devices = tuple(Device(f"gpu-{n}", "NVIDIA L4", f"GPU-{self.name}-{n}") for n in range(GPUS[self.name]))
        return Host(self.name, 3, devices, 58, f"p{self.process}.{self.tries}")

    @property
    def workers(self) -> list[str]:
        return ["cpu", *(d.worker for d in self.host.devices)]


class Hosts(RuleBasedStateMachine):
    """What the scheduler lists, by address; it may go on listing what is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.addresses = 0
        self.said: list[str] = []
        self.machines = {name: Machine(name) for name in GPUS}
        self.listed: dict[str, dict[str, Any]] = {}
        self.living: dict[str, tuple[str, str]] = {}  # addresses: machine, worker
        self.there = dict.fromkeys(GPUS, 0.0)  # when something of it was listed last, at a look
        self.left_out: set[str] = set()
        own = Host("a", 3, (Device("gpu-0", "NVIDIA L4", "GPU-a-0"),))
        self.membership = Membership(self.said.append, lambda key, _: self.left_out.add(key), own)

    # ------------------------------------------------------------------------------------------------ what happens
    @rule(name=NAMES, anew=st.booleans(), noticed=st.booleans(), first=st.lists(PLACES, max_size=3), seconds=SECONDS)
    def joins(self, name: str, anew: bool, noticed: bool, first: list[int], seconds: float | None) -> None:
        """Its link broke or, ``anew``, it was killed, and it joins again, with these workers to begin with."""
        machine = self.machines[name]
        self._gone(machine, noticed)
        if anew or not machine.tries:
            machine.process, machine.tries = machine.process + 1, 0
        machine.tries += 1
        machine.missing = [*machine.workers]
        for place in first:
            self._comes(machine, place)
        self._look(seconds)

    @rule(name=NAMES, place=PLACES, seconds=SECONDS)
    def a_worker_comes(self, name: str, place: int, seconds: float | None) -> None:
        self._comes(self.machines[name], place)
        self._look(seconds)

    @rule(name=NAMES, seconds=SECONDS)
    def a_worker_dies(self, name: str, seconds: float | None) -> None:
        for address, (where, own) in list(self.living.items()):
            if where == name:
                self.machines[name].missing.append(own)
                del self.living[address], self.listed[address]
                break
        self._look(seconds)

    @rule(name=NAMES, noticed=st.booleans(), seconds=SECONDS)
    def goes(self, name: str, noticed: bool, seconds: float | None) -> None:
        self._gone(self.machines[name], noticed)
        self._look(seconds)

    @rule(name=NAMES, seconds=SECONDS)
    def does_not_fit(self, name: str, seconds: float | None) -> None:
        for one in self.membership.hosts:
            if one.name == name:
                for _ in range(2):  # calls that failed there
                    self.membership.leave_out(one.key, "its disk is full")
                assert self.words(name)[-2] != "not used", "it is told once"
        self._look(seconds)

    @rule(seconds=SECONDS)
    def what_is_silent_is_missed(self, seconds: float | None) -> None:
        self.listed = {address: one for address, one in self.listed.items() if address in self.living}
        self._look(seconds)

    def _comes(self, machine: Machine, place: int) -> None:
        if machine.missing:
            own = machine.missing.pop(0)
            self.addresses += 1
            address = f"tls://127.{place}.0.1:{self.addresses}"
            self.living[address] = machine.name, own
            said = json.loads(json.dumps(facts(machine.host)))
            self.listed[address] = {"name": f"{machine.host.key}/{own}", FACTS: said, "last_seen": self.now}

    def _gone(self, machine: Machine, noticed: bool) -> None:
        """All of it, at once; ``noticed`` by the scheduler."""
        machine.missing = []
        for address in [a for a, (where, _) in self.living.items() if where == machine.name]:
            del self.living[address]
            if noticed:
                del self.listed[address]

    def _look(self, seconds: float | None) -> None:
        """``seconds`` later; None: not before more has happened."""
        self.now += seconds if seconds is not None else 0.01
        for address in self.living:
            self.listed[address]["last_seen"] = self.now
        if seconds is not None:
            self.membership.look(dict(sorted(self.listed.items())), self.now)  # as a scheduler lists them
            for one in self.listed.values():
                self.there[one[FACTS]["host"]["name"]] = self.now
            self.who_is_used()

    # ------------------------------------------------------------------------------------------------ what must hold
    def who_is_used(self) -> None:
        """After a look: whoever is all there, as it joined last; nobody that was missed for long."""
        used = {one.name: one.key for one in self.membership.hosts}
        for name, machine in self.machines.items():
            key = machine.host.key
            up = [own for where, own in self.living.values() if where == name]
            if len(up) == len(machine.workers) and key not in self.left_out:
                assert used.get(name) == key
            if self.now - self.there[name] > GONE_S:
                assert name not in used
                assert not self.is_told(name), "it was lost without a word"

    def words(self, name: str) -> list[str]:
        lines = [line.removeprefix(f"host {name}: ") for line in self.said if line.startswith(f"host {name}: ")]
        return [line.partition(",")[0].partition(":")[0] for line in lines]

    def is_told(self, name: str) -> bool:
        """Whether who listens takes it to be there."""
        words = self.words(name)
        return bool(words) and words[-1] not in ("lost", "not used")

    @invariant()
    def what_is_said_is_in_turns(self) -> None:
        for name in GPUS:
            is_there = was_there = False
            for word in self.words(name):
                if word == "lost":
                    assert is_there
                if word in ("lost", "not used"):
                    is_there = False
                    continue
                assert not is_there, "it came twice"
                assert (word == "back") == was_there
                is_there = was_there = True

    @invariant()
    def who_is_used_was_told(self) -> None:
        names = [one.name for one in self.membership.hosts]
        assert len(set(names)) == len(names)
        assert all(self.is_told(name) for name in names)


TestHosts = Hosts.TestCase
TestHosts.settings = settings(
    max_examples=100, stateful_step_count=40, derandomize=True, suppress_health_check=list(HealthCheck)
)
