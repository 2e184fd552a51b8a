"""The process that serves: what it may do wrong costs the trial it was about, and the next finds another process."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fcctl_tune.errors import Failed, TuneError
from fcctl_tune.search.spec import Spec
from fcctl_tune.trial import process, serve
from fcctl_tune.trial.serve import Server, ServerLost
from fcctl_tune.trial.slot import Slot
from fcctl_tune.trial.tasks import TrialSpec
from tests.support.living import is_running

SCRIPT = r"""
import json, os, signal, sys, time
for line in sys.stdin:
    r = json.loads(line)
    p = (r.get("params") or {}).get("P")
    if p == "die": os.kill(os.getpid(), signal.SIGSEGV)
    if p == "hang": signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)
    if p == "junk": print("a kernel's own words", flush=True); continue
    if p == "flood": sys.stdout.write("x" * 6000000); sys.stdout.flush()
    if p == "errors":
        while True: sys.stderr.write("x" * 100000)
    if p == "memory": b = bytearray(96 << 20); time.sleep(600)
    if p == "close": os.close(1); time.sleep(600)
    if p == "child":
        if os.fork() == 0:
            os.setsid(); open(os.environ["PIDS"], "w").write(str(os.getpid())); time.sleep(600)
        while not (os.path.exists(os.environ["PIDS"]) and os.path.getsize(os.environ["PIDS"])): time.sleep(0.01)
        print("no libcuda", file=sys.stderr, flush=True); os._exit(3)
    if p == "other": r["id"] += 1
    answer = {"id": r["id"], "ok": True, "samples": [1.0], "pid": os.getpid()}
    if p == "wrong": answer = {"id": r["id"], "ok": False, "state": "wrong", "reason": "max err 3"}
    if p == "odd": answer = {"id": r["id"], "ok": "perhaps"}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    script = tmp_path / "server.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "PIDS": str(tmp_path / "pid")}
    command = f"exec {shlex.quote(sys.executable)} -S -E {shlex.quote(str(script))}"
    made = Server(command, env, str(tmp_path), str(tmp_path))
    yield made
    made.close()


def ask(server: Server, what: str, timeout_s: float = 60.0) -> int:
    return int(server.ask("bench", timeout_s, params={"P": what})["pid"])


def test_one_process_serves_trial_after_trial(server: Server) -> None:
    assert ask(server, "fine") == ask(server, "fine")


@pytest.mark.parametrize(
    ("what", "state", "reason"),
    [
        ("die", "crashed", "SIGSEGV"),
        ("junk", "crashed", "not a reply: a kernel's own words"),
        ("flood", "crashed", "printed too much"),
        ("close", "crashed", "closed its output"),
        ("child", "crashed", "exit code 3: no libcuda"),
        ("other", "crashed", "not a reply"),
    ],
)
def test_a_process_that_fails_is_replaced(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, state: str, reason: str
) -> None:
    if what == "close":
        monkeypatch.setattr(serve, "EXIT_S", 0.2)  # it does not end
    first = ask(server, "fine")
    with pytest.raises(ServerLost, match=reason) as lost:
        ask(server, what)
    assert lost.value.state == state
    assert not is_running(first)
    if what == "child":
        assert not is_running(int((tmp_path / "pid").read_text()))
    assert ask(server, "fine") != first


def test_one_that_hangs_and_ignores_sigterm_is_killed(server: Server) -> None:
    first = ask(server, "fine")
    with pytest.raises(ServerLost, match=r"no answer within 0\.2 s") as lost:
        ask(server, "hang", timeout_s=0.2)
    assert lost.value.state == "hung"
    assert not is_running(first)
    assert ask(server, "fine") != first


@pytest.mark.parametrize(("what", "reason"), [("errors", "too much"), ("memory", "memory")])
def test_what_it_takes_has_limits(server: Server, monkeypatch: pytest.MonkeyPatch, what: str, reason: str) -> None:
    monkeypatch.setattr(process, "OUTPUT_BYTES", 2**21)
    monkeypatch.setattr(process, "memory_bytes", lambda: 2**27)
    with pytest.raises(ServerLost, match=reason):
        ask(server, what)


def test_a_refusal_is_passed_on_and_the_process_replaced_all_the_same(server: Server) -> None:
    first = ask(server, "fine")
    with pytest.raises(Failed, match="max err 3") as refused:
        ask(server, "wrong")
    assert refused.value.state == "wrong"
    with pytest.raises(Failed, match="the server replied") as odd:
        ask(server, "odd")
    assert odd.value.state == "bench_failed"
    assert ask(server, "fine") != first


@pytest.mark.parametrize(("what", "survives"), [("fine", True), ("wrong", True), ("die", False), ("junk", False)])
def test_the_first_may_warm_up_before_its_first_trial_or_not_know_what_that_is(
    server: Server, what: str, survives: bool
) -> None:
    server.warm = {"params": {"P": what}}, 60.0
    server.stand_by(1)
    (waiting,) = server._waiting
    assert len(waiting._pending) == 2  # it is told to warm up before anybody waits for it
    assert (ask(server, "fine") == waiting._running.pid) is survives
    assert [len(standby._pending) for standby in server._waiting] == [1], "which leaves the GPU alone"


def serving(tmp_path: Path, **change: Any) -> TrialSpec:
    spec = Spec.from_dict({"tune": "t", "parameters": {"P": [1]}, "serve": "exec cat", "env": {"A": "1"}})
    made = TrialSpec.of(spec, str(tmp_path), str(tmp_path))
    (tmp_path / "logs").mkdir(exist_ok=True)
    return replace(made, **change)


@pytest.mark.parametrize(
    ("change", "stays"), [({}, True), ({"cases": ("b",)}, True), ({"env": {"A": "2"}}, False), ({"hidden": "x"}, True)]
)
def test_a_slot_takes_what_was_started_for_its_search(tmp_path: Path, change: dict[str, Any], stays: bool) -> None:
    first = Slot.here(serving(tmp_path))
    try:
        first.begin()
        (waiting,) = first._server._waiting
        assert (Slot.here(serving(tmp_path, **change)) is first) is stays
        assert is_running(waiting._running.pid) is stays
    finally:
        Slot.leave()


def test_that_it_cannot_be_started_is_heard_by_whoever_asks(tmp_path: Path) -> None:
    made = Slot(serving(tmp_path, cwd=str(tmp_path / "nowhere")))
    made.begin()
    assert made._server is not None
    with pytest.raises(OSError, match="nowhere"):
        ask(made._server, "fine")


def test_the_standby_is_warm_when_it_takes_over(server: Server, tmp_path: Path) -> None:
    ask(server, "fine")
    (waiting,) = server._waiting
    waiting.ready()
    server.drop()
    assert ask(server, "fine") == waiting._running.pid


def test_at_the_end_nothing_is_left(server: Server) -> None:
    pid = ask(server, "fine")
    waiting = [process._running.pid for process in server._waiting]
    server.close()
    assert not any(map(is_running, [pid, *waiting]))


def test_a_command_that_never_comes_up_is_no_trials_fault(tmp_path: Path) -> None:
    broken = Server("echo no such variant >&2; exit 2", os.environ, str(tmp_path), str(tmp_path))
    with pytest.raises(TuneError, match="does not start: exit code 2: no such variant"):
        ask(broken, "fine")
    broken.close()
