"""``python -m flashcore tune``: what a search asks, answered with a kernel that is right, or wrong by $BUG."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcore import cases, registry, sampling, separate, tune
from flashcore.errors import UsageError
from flashcore.tune import Service
from flashcore.variant import Constraint, Parameter, Variant

pytestmark = [pytest.mark.usefixtures("kernel_processes"), pytest.mark.group("kernel processes")]
#: Numbers of wrong.cpp.
NONE, PARTIAL, POINTER_CACHE, NO_MASK = "0", "1", "5", "7"
KERNELS = Path(registry.__file__).parents[1]
EVEN = Constraint("KEYS is not 3", lambda c: c["KEYS"] != 3)
TOY = Variant(
    name="wrong",
    device="cpu",
    source=Path(__file__).with_name("wrong.cpp"),
    summary="",
    parameters=(Parameter("KEYS", (1, 2, 3), 1, ""), Parameter("ROWS", (8, 16), 8, "")),
    constraints=(EVEN,),
)
ONE, OTHER = {"KEYS": 1, "ROWS": 8}, {"KEYS": 2, "ROWS": 8}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The kernels here are tiny, and idle threads of PyTorch take the processor from whoever needs it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def service(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("FLASHCORE_CACHE", str(cache))
    monkeypatch.setenv("BUG", NONE)
    monkeypatch.setattr(cases, "LONGEST", 65)
    monkeypatch.setattr(cases, "EDGES", (1, 17))
    monkeypatch.setattr(cases, "REPEATS", 2)
    yield Service(TOY)
    separate.end()


def ask(service: Service, op: str, **what: Any) -> dict[str, Any]:
    request = {"id": 7, "op": op, "params": ONE, "out": "/nowhere", "seed": 3, **what}
    reply = service.answer(json.loads(json.dumps(request)))
    assert reply["id"] == 7
    return json.loads(json.dumps(reply))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------ the space
def test_the_space_lists_what_is_legal_the_default_first() -> None:
    listing = tune.space(TOY, {})
    assert listing["default"] == ONE == listing["configurations"][0]
    assert len(listing["configurations"]) == 4
    assert {"KEYS": 3, "ROWS": 8} not in listing["configurations"]
    assert listing["parameters"]["KEYS"] == {"values": [1, 2, 3], "default": 1}


def test_what_is_set_does_not_vary() -> None:
    listing = tune.space(TOY, {"KEYS": 2})
    assert listing["parameters"]["KEYS"] == {"values": [2], "default": 2}
    assert listing["configurations"] == [OTHER, {"KEYS": 2, "ROWS": 16}]
    with pytest.raises(UsageError):
        tune.space(TOY, {"KEYS": 3})


def test_every_variant_has_a_space_with_its_defaults_in_it() -> None:
    for variant in registry.VARIANTS.values():
        if variant.name != "flagship":  # the same code, and tens of thousands
            listing = tune.space(variant, {})
            assert listing["default"] == variant.configure()
            assert len(listing["configurations"]) == sum(1 for _ in variant.space())


def test_parameters_come_from_the_environment() -> None:
    assert tune.from_environment(TOY, {"KEYS": "2", "OTHER": "x"}) == OTHER
    with pytest.raises(UsageError, match="KEYS=two"):
        tune.from_environment(TOY, {"KEYS": "two"})
    with pytest.raises(UsageError, match="KEYS is not 3"):
        tune.from_environment(TOY, {"KEYS": "3"})


# ------------------------------------------------------------------------------------------------ the service
def test_a_kernel_that_is_right_is_checked_and_timed(service: Service) -> None:
    assert ask(service, "ready")["ok"] is True
    assert ask(service, "warm", cases=["1,2,64,64", "1,1,20,64"])["ok"] is True
    checked = ask(service, "check", cases=["1,2,64,64", "1,1,20,64"])
    assert checked["ok"] is True, checked
    assert 0 < checked["max_err"] < 0.01
    samples = ask(service, "bench", case="1,1,20,64", repeats=12)["samples"]
    assert len(samples) == 12
    assert min(samples) > 0


def test_turns_give_a_figure_for_each_turn_of_each(service: Service) -> None:
    many = [{"params": ONE, "out": "x"}, {"params": OTHER, "out": "y"}, {"params": ONE, "out": "x"}]
    reply = ask(service, "turns", many=many, case="1,1,20,64", turns=6)
    assert reply["ok"] is True, reply
    assert [len(one) for one in reply["per"]] == [6, 6, 6]
    assert (reply["throttled"], reply["clocks"]) == (0, None)  # no GPU to ask
    assert [tune._order(turn, 3) for turn in range(4)] == [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]


@pytest.mark.parametrize("bug", [PARTIAL, NO_MASK])
def test_a_wrong_kernel_does_not_pass_the_check(service: Service, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    monkeypatch.setenv("BUG", bug)
    reply = ask(service, "check", cases=["1,2,64,64"])
    assert (reply["ok"], reply["state"]) == (False, "wrong")
    assert "shape" in reply["reason"]


def test_what_was_timed_is_looked_at_too(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(service, "bench", case="1,1,20,64", repeats=2)["ok"] is True
    monkeypatch.setenv("BUG", PARTIAL)
    service = Service(TOY)
    for op, what in (("bench", {"repeats": 2}), ("turns", {"many": [{"params": ONE}], "turns": 2})):
        reply = ask(service, op, case="1,1,20,64", **what)
        assert reply["state"] == "wrong", reply
        assert "wrong results" in reply["reason"]
    monkeypatch.setenv("BUG", POINTER_CACHE)
    assert ask(Service(TOY), "bench", case="1,1,20,64", repeats=8)["state"] == "wrong"


def test_the_last_check_is_the_whole_one(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(service, "check", cases=["1,1,20,64"], final=True)
    assert reply["ok"] is True, reply
    assert reply["cases"] == 3 + 5
    monkeypatch.setenv("BUG", "9")  # ignores strides: only the whole check sees that
    service = Service(TOY)
    assert ask(service, "check", cases=["1,1,20,64"])["ok"] is True
    assert "layout" in ask(service, "check", cases=["1,1,20,64"], final=True)["reason"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"params": {"KEYS": 3}}, "KEYS is not 3"),
        ({"params": {"KEYS": 5}}, "not a legal value"),
        ({"params": {"KEYS": "x"}}, "ValueError"),
        ({"params": None}, "AttributeError"),
        ({"cases": ["nobody"]}, "not a shape"),
        ({"cases": ["1,1,20,128"]}, "head dimension 128"),
    ],
)
def test_what_cannot_be_done_is_a_refusal_and_not_an_end(service: Service, change: dict[str, Any], reason: str) -> None:
    reply = ask(service, "check", **{"cases": ["1,1,20,64"], **change})
    assert reply["ok"] is False
    assert reply["state"] in ("failed", "wrong")
    assert reason in reply["reason"]
    assert ask(service, "check", cases=["1,1,20,64"])["ok"] is True


def test_what_is_compared_launches_as_often(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph's own start is the same share of all, whatever a call of the first seemed to take."""
    took, used = iter([60.0, 15.0, 30.0, 20.0, 100.0, 10.0, 30.0]), []
    make, timer = sampling.Source.__init__, sampling.Source.timer

    def measured(self: sampling.Source, *what: Any) -> None:
        make(self, *what)
        self.call_us = next(took)

    def noted(self: sampling.Source, *what: Any) -> sampling.Timer:
        used.append(self.call_us)
        return timer(self, *what)

    monkeypatch.setattr(sampling.Source, "__init__", measured)
    monkeypatch.setattr(sampling.Source, "timer", noted)
    assert ask(service, "turns", many=[{"params": ONE}] * 3, case="1,1,20,64", turns=2)["ok"]
    assert used == [15.0] * 3
    used.clear()
    for _ in range(4):
        assert ask(service, "bench", case="1,1,20,64", repeats=2)["ok"]
    assert used == [20.0, 100.0 / tune.LONGER_GRAPHS, 10.0, 10.0]


def test_lines_that_are_no_requests_are_answered(service: Service) -> None:
    replies = io.BytesIO()
    tune.serve(service, io.BytesIO(b'junk\n[1]\n{"id": 3}\n{"id": 4, "op": "ready"}\n'), replies)
    found = [json.loads(line) for line in replies.getvalue().splitlines()]
    assert [(r["id"], r["ok"]) for r in found] == [(None, False), (None, False), (3, False), (4, True)]
    with pytest.raises(UsageError, match="is not a timing mode"):
        Service(TOY, "hot")


def test_a_gpu_is_met_as_soon_as_it_is_to_be_and_by_no_standby() -> None:
    said, met = os.pipe(), threading.Event()
    with open(said[0], "rb") as requests, open(said[1], "wb", buffering=0) as asked:
        lines = tune.heard(requests, met.set)
        asked.write(b'{"id": 1, "op": "ready"}\n')
        assert b"ready" in next(lines)
        assert not met.is_set()
        asked.write(b'{"id": 2, "op": "warm", "cases": []}\n')
        assert met.wait()  # though nobody has taken the line yet
        assert b"warm" in next(lines)
        asked.close()
        assert list(lines) == []


def test_the_command_speaks_json_lines_and_nothing_else_on_stdout(cache: Path) -> None:
    env = {**os.environ, "FLASHCORE_CACHE": str(cache), "PYTHONPATH": str(KERNELS)}
    listing = subprocess.run(
        [sys.executable, "-m", "flashcore", "tune", "cpu", "--space", "--set", "ROWS=64"],
        capture_output=True, text=True, env=env, check=True,
    )  # fmt: skip
    assert len(json.loads(listing.stdout)["configurations"]) == 4
    code = (
        "import os, sys; from flashcore import tune; replies = tune.own_stdout(); print('a kernel prints');"
        "os.write(1, b'so does C'); replies.write(b'{}'); replies.close()"
    )
    spoken = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert spoken.stdout == "{}"
    assert spoken.stderr.split("\n")[0] in ("so does Ca kernel prints", "a kernel prints")
