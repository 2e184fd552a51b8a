"""The elites against the default, on a cluster that answers at once."""

from __future__ import annotations

import math
import random
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fcctl_tune.engine import final
from fcctl_tune.engine import final as finals
from fcctl_tune.engine.final import Final
from fcctl_tune.errors import TuneError
from fcctl_tune.search.records import Trial, TrialRecord
from fcctl_tune.search.spec import Spec
from fcctl_tune.trial import process
from fcctl_tune.trial.slot import Slot
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers.hosts import CallFailed, Device, Host
from tests.support.living import is_running

SPEC = Spec.from_dict(
    {"tune": "t", "parameters": {"P": [1, 2, 3, 4]}, "serve": "x", "cases": ["a", "b"], "held_out": ["c"]}
)


class Cluster:
    """``speed``: by P, microseconds, or by (P, case). ``faults``: of P or (P, case), what comes instead."""

    def __init__(self, noise: float = 0.003) -> None:
        self.speed: dict[Any, float] = {}
        self.faults: dict[Any, Any] = {}
        self.seeds: list[int] = []
        self.checked: list[tuple[int, bool]] = []  # and whether with others in one call
        self.noise, self.rng = noise, random.Random(3)
        self.hosts = [Host(name, 1, (Device("gpu-0", "card"),)) for name in "ab"]
        self.used: list[str] = []
        self._outcomes: dict[str, Any] = {}

    def mend(self) -> None:
        """Nobody dies here."""

    def cancel(self, call: str) -> None:
        self._outcomes.pop(call, None)

    def results(self, _seconds: float) -> list[tuple[str, Any]]:
        found, self._outcomes = list(self._outcomes.items()), {}
        return found

    def submit(self, function: Any, _trial_spec: TrialSpec, *what: Any, slot: str, host: str) -> str:
        assert slot == "gpu"
        call = str(len(self.used))
        self.used.append(host)
        self._outcomes[call] = self._outcome(function, *what)
        return call

    def _outcome(self, function: Any, what: Any, *rest: Any) -> Any:
        if function is finals.check:
            shown = [self._verdict(one.params["P"], len(what) > 1) for one in what]
            return next((fault for fault in shown if isinstance(fault, CallFailed)), shown)
        case, seed, turns, more = rest
        assert more is (case != "c")
        self.seeds.append(seed)
        for one in what:
            fault = self.faults.get((one.params["P"], case))
            if fault is not None:
                return fault
        return {"per": [self._times(one, case, turns) for one in what]}

    def _verdict(self, p: int, is_shared: bool) -> Any:
        self.checked.append((p, is_shared))
        beside = self.faults.get((p, "beside others"), ("", "")) if is_shared else ("", "")
        return self.faults.get(p, beside)

    def _times(self, one: Trial, case: str, turns: int) -> list[float]:
        p = one.params["P"]
        middle = self.speed.get((p, case), self.speed.get(p, 10.0))
        return [middle * (1 + self.rng.gauss(0, self.noise)) for _ in range(turns)]


def candidate(p: int) -> Trial:
    return Trial(p - 1, {"P": p})


TRIAL_SPEC = TrialSpec.of(SPEC, "/nowhere", "/nowhere")


def measured(
    cluster: Any, elites: Sequence[int] = (2, 3, 4), trial_spec: TrialSpec = TRIAL_SPEC, count: int = 0
) -> tuple[list[dict[str, Any]], Final]:
    records = [TrialRecord(p - 1, {"P": p}, "pruned", value=1.0, seconds={"bench": 0.2}) for p in elites]
    spec = replace(SPEC, elites=count or len(elites))
    made = Final(cluster, trial_spec, spec, candidate(1), records)
    return made.run(), made


def test_each_elite_is_faster_slower_or_there_is_no_telling() -> None:
    cluster = Cluster()
    cluster.speed = {2: 8.0, 3: 11.0, 4: 10.0}
    entries, made = measured(cluster)
    assert [(e["trial"], e["verdict"]) for e in entries] == [(1, "faster"), (3, "undecided"), (2, "slower")]
    best = entries[0]
    assert best["params"] == {"P": 2}
    assert best["ratio"] == pytest.approx(0.8, abs=0.01)
    assert best["ci_low"] < best["ratio"] < best["ci_high"] < 1
    assert set(best["per_case"]) == {"a", "b", "c"}
    assert best["per_case"]["c"]["us"] == pytest.approx(8, abs=0.1)
    assert best["held_out"]["ratio"] == pytest.approx(0.8, abs=0.01)
    about = made.document(entries)
    assert about["null"]["ci_low"] < 1 < about["null"]["ci_high"]
    assert about["failed"] == []
    assert about["default"]["a"]["us"] == pytest.approx(10, abs=0.1)
    assert len(set(cluster.seeds)) == 3  # inputs of their own for each case
    assert set(cluster.used) == {"a"}, "which searches"


@pytest.mark.parametrize(("searched", "held_out"), [(8.0, 12.0), (12.0, 8.0)])
def test_but_the_contrary_of_what_searching_proved_is_not_all_that_is_said(searched: float, held_out: float) -> None:
    cluster = Cluster()
    cluster.speed = {(2, "a"): searched, (2, "b"): searched, (2, "c"): held_out}
    entries, _ = measured(cluster, [2])
    assert entries[0]["verdict"] == "mixed"


def test_one_that_fails_is_named_and_the_others_are_measured_all_the_same() -> None:
    cluster = Cluster()
    cluster.speed = {4: 9.0}
    cluster.faults = {2: ("wrong", "max err 3"), (3, "b"): {"state": "crashed", "reason": "SIGSEGV"}}
    entries, made = measured(cluster)
    assert [(e["trial"], e["verdict"]) for e in entries] == [(3, "faster"), (1, "failed"), (2, "failed")]
    assert (entries[1]["state"], entries[1]["reason"]) == ("wrong", "max err 3")
    assert (entries[2]["state"], entries[2]["reason"]) == ("crashed", "SIGSEGV")
    assert made.document(entries)["failed"] == [1, 2]


def test_for_one_that_fails_when_it_is_checked_the_next_best_takes_part() -> None:
    cluster, wrong = Cluster(), ("wrong", "max err 3")
    cluster.speed = {6: 8.0}
    cluster.faults = {2: wrong, 4: wrong, 5: wrong}
    entries, _ = measured(cluster, [2, 3, 4, 5, 6, 7], count=2, trial_spec=replace(TRIAL_SPEC, serve=""))
    assert [p for p, _ in cluster.checked] == [1, 2, 3, 4, 5, 6]
    assert [(e["trial"], e["verdict"]) for e in entries[:2]] == [(5, "faster"), (2, "undecided")]
    assert {e["trial"]: e["verdict"] for e in entries[2:]} == {1: "failed", 3: "failed", 4: "failed"}


def test_one_whose_workers_die_has_failed() -> None:
    cluster = Cluster()
    cluster.faults = {2: CallFailed("its workers died")}
    entries, _ = measured(cluster, [2, 3])
    assert [e["verdict"] for e in entries] == ["undecided", "failed"]
    assert entries[1]["reason"] == "its workers died"


def test_what_fails_beside_others_is_checked_again_alone() -> None:
    cluster = Cluster()
    out_of_memory = ("crashed", "CUDA error: out of memory")
    cluster.faults = {(1, "beside others"): out_of_memory, (3, "beside others"): out_of_memory, 4: ("wrong", "3")}
    entries, _ = measured(cluster)
    assert {e["trial"]: e["verdict"] for e in entries} == {1: "undecided", 2: "undecided", 3: "failed"}
    assert cluster.checked == [*((p, True) for p in (1, 2, 3, 4)), *((p, False) for p in (1, 3, 4))]


def test_a_default_that_fails_now_leaves_nothing_to_compare_with() -> None:
    cluster = Cluster()
    cluster.faults = {1: ("crashed", "SIGSEGV")}
    with pytest.raises(TuneError, match="fails its second check: crashed: SIGSEGV"):
        measured(cluster)
    cluster.faults = {1: ("gate_failed", "spills")}
    assert len(measured(cluster)[0]) == 3


#: Checks only once three of its kind do, and refuses one of them.
CHECKER = """
import json, os, sys, time
def note(what):
    os.makedirs(what, exist_ok=True)
    open(os.path.join(what, str(os.getpid())), "w").close()
note("started")
for line in sys.stdin:
    asked = json.loads(line)
    reply = {"id": asked["id"], "ok": True}
    if asked["op"] == "check":
        assert asked["final"] and asked["cases"] == ["a", "b", "c"] and asked["seed"] == 5
        note("checked")
        while len(os.listdir("checked")) < 3:
            time.sleep(0.01)
        if asked["params"]["P"] == 2:
            reply = {"id": asked["id"], "ok": False, "state": "wrong", "reason": "max err 3"}
    if asked["op"] == "turns":
        note("timed")
        reply["per"] = [[1.0] * asked["turns"] for _ in asked["many"]]
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrialSpec]:
    monkeypatch.setattr(process, "processors", lambda: 3 * finals.PROCESSORS_EACH)
    (tmp_path / "checker.py").write_text(CHECKER)
    (tmp_path / "work").mkdir()
    serve = shlex.join([sys.executable, str(tmp_path / "checker.py")])
    yield TrialSpec.of(replace(SPEC, serve=serve), str(tmp_path), str(tmp_path / "work"))
    Slot.leave()


def pids(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir()}


def test_checks_are_at_once_each_in_a_process_of_its_own(served: TrialSpec, tmp_path: Path) -> None:
    found = finals.check(served, [candidate(p) for p in (1, 2, 3)], ["a", "b", "c"], 5)
    assert found == [("", ""), ("wrong", "max err 3"), ("", "")]
    checked = pids(tmp_path / "checked")
    assert len(checked) == 3
    assert not any(map(is_running, checked))


@pytest.mark.parametrize("waiting", [finals.STANDBYS, 1])
def test_each_case_is_timed_by_a_process_that_waited_and_none_is_left_over(
    served: TrialSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(finals, "STANDBYS", waiting)
    cases, everyone = ["a", "b", "c"], [candidate(p) for p in (1, 2, 3)]
    finals.check(served, everyone, cases, 5)
    for case in cases:
        assert len(finals.turns(served, everyone, case, 5, 8, case != "c")["per"]) == 3
    timed = pids(tmp_path / "timed")
    assert len(timed) == 3
    assert pids(tmp_path / "started") - pids(tmp_path / "checked") == timed


def blocks(true_ratio: float, count: int, noise: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [math.log(true_ratio) + rng.gauss(0, noise) for _ in range(count)]


def test_turns_there_and_back_make_a_block_so_that_drift_cancels() -> None:
    base = [10.0, 11.0, 12.0, 13.0]
    assert final.log_ratios([20.0, 22.0, 24.0, 26.0], base) == pytest.approx([math.log(2)] * 2)
    assert final.log_ratios([20.0, 22.0, 24.0, 26.0], base, "max") == pytest.approx([-math.log(2)] * 2)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(60):
        found = final.ratio_of([blocks(0.9, 10, 0.02, seed), blocks(0.9, 10, 0.05, 1000 + seed)], seed=seed)
        held += found["ci_low"] <= 0.9 <= found["ci_high"]
    assert 52 <= held <= 60  # 95 % of 60 is 57


def test_no_interval_is_narrower_than_what_the_null_showed() -> None:
    null = final.ratio_of([blocks(1.01, 10, 0.001, 1)])
    floor = final.floor_of(null)
    assert floor == pytest.approx(0.01, abs=0.002)
    assert final.floor_of({"ratio": 1.0, "ci_low": 0.9999, "ci_high": 1.0001}) == final.FINEST
    found = final.ratio_of([[math.log(0.995)] * 10], floor)
    assert found["ratio"] == pytest.approx(0.995)
    assert found["ci_low"] < 0.995 * (1 - 0.007) and found["ci_high"] > 1  # noqa: PT018


def test_cases_count_alike() -> None:
    found = final.ratio_of([[math.log(0.5)] * 4, [math.log(2.0)] * 40])
    assert found == {"ratio": 1.0, "ci_low": 1.0, "ci_high": 1.0}
