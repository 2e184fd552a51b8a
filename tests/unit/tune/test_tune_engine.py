"""The engine's decisions, on a cluster that carries nothing out and answers at once."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fcctl_tune.engine import engine as engines
from fcctl_tune.engine.engine import Engine, Stopped
from fcctl_tune.engine.pace import Halving
from fcctl_tune.errors import TuneError
from fcctl_tune.search.records import Trial, TrialRecord
from fcctl_tune.search.spec import Spec
from fcctl_tune.search.study import Study
from fcctl_tune.trial.slot import Timed, Timing
from fcctl_tune.trial.tasks import Built, TrialSpec
from fcctl_tune.workers.hosts import CallFailed, Device, Host

SPEC = Spec.from_dict(
    {
        "tune": "t",
        "parameters": {"P": {"values": list(range(1, 13)), "default": 6}},
        "build": "true", "check": "true", "bench": "true",
        "metric": {"reader": "metrics", "file": "f", "value": "metrics.us"},
        "cases": ["a", "b"],
        "trials": 12,
    }
)  # fmt: skip


def host(name: str = "", cpus: int = 3, gpus: int = 1, member: str = "") -> Host:
    return Host(name, cpus, tuple(Device(f"gpu-{n}", "card") for n in range(gpus)), member=member)


class Cluster:
    """``outcomes``: of (phase, P) or (host, phase, P), instead of success with P microseconds. Each turn of the loop
    finishes one task of each kind on each host."""

    def __init__(self, *hosts: Host) -> None:
        self.hosts = list(hosts or [host()])
        self.outcomes: dict[tuple[Any, ...], Any] = {}
        self.asked: list[tuple[str, int, int]] = []  # phase, P, repeats
        self.on: list[tuple[str, str, int, bool]] = []  # host, phase, P, checked
        self.waiting: dict[tuple[str, str], deque[tuple[str, Any]]] = {}
        self.left_out: dict[str, str] = {}
        self.most_timed = 0
        self.turned: Callable[[], None] = lambda: None
        self._keys = itertools.count()

    def submit(
        self, function: Any, trial_spec: TrialSpec, argument: Any, *, slot: str, host: str, priority: int = 0
    ) -> str:
        assert host in [h.key for h in self.hosts]
        call = f"{function.__name__}-{next(self._keys)}"
        queue = self.waiting.setdefault((host, slot), deque())
        if priority:
            queue.appendleft((call, argument))
        else:
            queue.append((call, argument))
        if slot == "gpu":
            self.most_timed = max(self.most_timed, len(queue))
        return call

    def cancel(self, call: str) -> None:
        for queue in self.waiting.values():
            for entry in [entry for entry in queue if entry[0] == call]:
                queue.remove(entry)

    def wake(self) -> None:
        """It never waits."""

    def mend(self) -> None:
        self.turned()

    def leave_out(self, host: str, reason: str) -> None:
        self.left_out[host] = reason
        self.goes(host)

    def goes(self, key: str) -> None:
        self.hosts = [h for h in self.hosts if h.key != key]
        for slot in [slot for slot in self.waiting if slot[0] == key]:
            del self.waiting[slot]

    def results(self, seconds: float) -> list[tuple[str, Any]]:
        found = []
        for (where, _), queue in self.waiting.items():
            if queue:
                call, argument = queue.popleft()
                found.append((call, self.outcome(where, argument)))
        return found

    def outcome(self, where: str, argument: Any) -> Any:
        if isinstance(argument, Trial):
            p = int(argument.params["P"])
            self.asked.append(("build", p, 0))
            self.on.append((where, "build", p, False))
            return self.outcomes.get((where, "build", p), self.outcomes.get(("build", p), Built("", "", 1)))
        timing: Timing = argument
        p = int(timing.trial.params["P"])
        self.asked.append(("time", p, timing.repeats))
        self.on.append((where, "time", p, timing.check))
        success = Timed("", "", {"a": p, "b": 2 * p}, {"a": 6, "b": 12}, 0.1 * timing.check, 0.2, "gpu-0")
        return self.outcomes.get((where, "time", p), self.outcomes.get(("time", p), success))


KILLED = CallFailed("its workers died", killed=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "TICK_S", 0.0)
    monkeypatch.setattr(engines, "LAST_TIMINGS_S", 0.05)


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with Study(str(tmp_path / "journal"), SPEC, "exhaustive") as made:
        yield made


def engine(study: Study, cluster: Any, told: list[TrialRecord] | None = None, **change: Any) -> Engine:
    trial_spec = replace(TrialSpec.of(SPEC, "/nowhere", "/nowhere"), **change)
    heard = (told if told is not None else []).append
    return Engine(study, cluster, trial_spec, Halving((3, 9), 3), on_record=heard, gpu="card")


def by_p(study: Study) -> dict[Any, TrialRecord]:
    return {record.params["P"]: record for record in study.records()}


def test_every_trial_is_told_once_by_its_ratio_and_only_the_promising_are_timed_longer(study: Study) -> None:
    told: list[TrialRecord] = []
    cluster = Cluster()
    engine(study, cluster, told).run()
    assert sorted(r.number for r in told) == list(range(12))
    found = by_p(study)
    assert found[6].number == 0
    assert (found[6].state, found[6].value, found[6].rung) == ("complete", 1.0, 1)
    assert found[3].value == pytest.approx(0.5)
    assert (found[3].per_case, found[3].base) == ({"a": 3, "b": 6}, {"a": 6, "b": 12})
    assert found[6].seconds == {"build": 1.0, "check": 0.1, "bench": 0.4}  # two rungs
    assert (found[3].gpu, found[3].worker) == ("card", "gpu-0")
    assert found[12].state == "pruned"
    longer = [p for phase, p, repeats in cluster.asked if repeats == 9]
    assert 6 in longer
    assert 1 in longer
    assert 12 not in longer
    assert sorted(p for phase, p, _ in cluster.asked if phase == "build") == sorted([6, *range(1, 13)])


def test_faults_are_told_with_their_reasons_and_cost_one_trial_each(study: Study) -> None:
    cluster = Cluster()
    cluster.outcomes = {
        ("build", 1): Built("build_failed", "no such type", 2.0),
        ("build", 2): Built("gate_failed", "spills", 2.0),
        ("time", 3): Timed("wrong", "max err 3", check_s=0.5),
        ("time", 4): Timed("hung", "no answer"),
        ("time", 5): KILLED,
        ("time", 7): Timed("unavailable", "no GPU"),
        ("build", 8): CallFailed("OSError: [Errno 28] No space left on device"),
    }
    engine(study, cluster).run()
    states = {p: (r.state, r.reason) for p, r in by_p(study).items() if not r.is_timed}
    assert states == {
        1: ("build_failed", "no such type"),
        2: ("gate_failed", "spills"),
        3: ("wrong", "max err 3"),
        4: ("hung", "no answer"),
        5: ("lost", "its workers died, although no other trial ran"),
        7: ("bench_failed", "no GPU"),
        8: ("lost", "OSError: [Errno 28] No space left on device"),
    }


@pytest.mark.parametrize(
    ("phase", "outcome"),
    [("time", Timed("wrong", "max err 3")), ("time", KILLED), ("build", Built("build_failed", "registers: 250", 1))],
)
def test_without_a_default_that_works_there_is_nothing_to_compare_with(study: Study, phase: str, outcome: Any) -> None:
    cluster = Cluster()
    cluster.outcomes = {(phase, 6): outcome}
    with pytest.raises(TuneError, match=r"max err 3|workers died|does not work: build_failed: registers: 250"):
        engine(study, cluster).run()
    assert 0 in study._asked  # asked for again once it is repaired


def test_when_told_to_stop_what_failed_since_is_not_held_against_its_trial(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    cluster = Cluster()
    with Study(path, SPEC, "exhaustive") as study:
        searching = engine(study, cluster)

        def turned() -> None:
            if len(study.records()) >= 4:  # the same signal ends what runs
                cluster.outcomes = {("time", p): Timed("crashed", "SIGTERM") for p in range(1, 13)}
                searching.stop("SIGTERM")

        cluster.turned = turned
        with pytest.raises(Stopped, match="SIGTERM"):
            searching.run()
        told = [r.number for r in study.records()]
        assert all(r.is_timed for r in study.records())
        open_ones = sorted(study._asked)
        assert open_ones
    with Study(path, SPEC, "exhaustive") as study:
        again = Cluster()
        engine(study, again).run()
        assert [r.number for r in study.records()] == list(range(12))
        timed_again = {p for phase, p, _ in again.asked if phase == "time"}
        known = {r.params["P"] for r in study.records() if r.number in told}
        assert timed_again & known == {6}, "whether the default still works there is seen anew"


# ------------------------------------------------------------------------------------------------ several hosts
@pytest.mark.parametrize(
    ("phase", "outcome", "reason"),
    [
        ("time", Timed("crashed", "SIGILL"), "the default configuration does not work: crashed: SIGILL"),
        ("time", KILLED, "its workers died"),
        ("build", KILLED, "its workers died"),
    ],
)
def test_a_host_is_used_only_after_the_default_worked_there(
    study: Study, phase: str, outcome: Any, reason: str
) -> None:
    cluster = Cluster(host("a"), host("b"))
    cluster.outcomes = {("b", phase, 6): outcome}
    engine(study, cluster).run()
    assert cluster.left_out == {"b": reason}
    assert [r.number for r in study.records() if r.is_timed] == list(range(12))
    assert {p for where, what, p, _ in cluster.on if (where, what) == ("b", "time")} <= {6}


def test_a_default_that_breaks_a_gate_is_compared_with_all_the_same(study: Study) -> None:
    cluster = Cluster()
    cluster.outcomes = {("build", 6): Built("gate_failed", "registers: 250", 1)}
    engine(study, cluster).run()
    assert ("", "time", 6, True) in cluster.on
    assert (by_p(study)[6].state, by_p(study)[1].state) == ("gate_failed", "complete")


def test_what_it_cost_is_accounted_for(study: Study) -> None:
    cluster = Cluster()
    searching = engine(study, cluster)
    searching.run()
    effort = searching.effort.as_dict()
    checks = sum(checked for _, phase, _, checked in cluster.on if phase == "time")
    assert effort["built"] == 13  # the default by itself first, and as trial 0
    assert effort["compile_s"] == pytest.approx(13.0)
    assert effort["timed_s"] == pytest.approx(0.2 * (13 + len([r for r in study.records() if r.rung])) + 0.1 * checks)
    assert effort["trials_per_minute"] > 0
