"""The process that serves: what it may do wrong costs the trial it was about, and the next finds another process."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fcctl_tune.errors import TuneError
from fcctl_tune.trial import serve
from fcctl_tune.trial.serve import Refused, Server, ServerLost
from fcctl_tune.trial.slot import Serving, Slot
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
    assert server.replaced == 0


@pytest.mark.parametrize(
    ("what", "state", "reason"),
    [
        ("die", "crashed", "SIGSEGV"),
        ("junk", "crashed", "no reply: a kernel's own words"),
        ("flood", "crashed", "printed without end"),
        ("close", "crashed", "closed its output"),
        ("child", "crashed", "exit code 3: no libcuda"),
        ("other", "crashed", "no reply"),
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
    assert server.replaced == 1


def test_one_that_hangs_and_ignores_sigterm_is_killed(server: Server) -> None:
    first = ask(server, "fine")
    with pytest.raises(ServerLost, match=r"no answer within 0\.2 s") as lost:
        ask(server, "hang", timeout_s=0.2)
    assert lost.value.state == "hung"
    assert not is_running(first)
    assert ask(server, "fine") != first


@pytest.mark.parametrize(("what", "reason"), [("errors", "without end"), ("memory", "memory")])
def test_what_it_takes_has_limits(server: Server, monkeypatch: pytest.MonkeyPatch, what: str, reason: str) -> None:
    small = serve.Limits(0.0, output_bytes=2**21, memory_bytes=2**26)
    monkeypatch.setattr(serve, "Limits", lambda timeout_s: small)
    with pytest.raises(ServerLost, match=reason):
        ask(server, what)


def test_a_refusal_is_passed_on_and_the_process_replaced_all_the_same(server: Server) -> None:
    first = ask(server, "fine")
    with pytest.raises(Refused, match="max err 3") as refused:
        ask(server, "wrong")
    assert refused.value.state == "wrong"
    with pytest.raises(Refused) as odd:
        ask(server, "odd")
    assert odd.value.state == "failed"
    assert ask(server, "fine") != first


@pytest.mark.parametrize(("what", "survives"), [("fine", True), ("wrong", True), ("die", False), ("junk", False)])
def test_one_may_warm_up_before_its_first_trial_or_not_know_what_that_is(
    server: Server, what: str, survives: bool
) -> None:
    first = server._come_up()._running.pid
    server.warm(60.0, params={"P": what})
    assert server._waiting == []  # a standby's start would take processors from it
    assert (ask(server, "fine") == first) is survives


def test_it_may_be_started_before_anybody_asks(server: Server) -> None:
    server.begin(60.0, params={"P": "fine"})
    (waiting,) = server._waiting
    assert len(waiting._pending) == 2  # it is told to warm up before anybody waits for it
    server.warm(60.0, params={"P": "fine"})
    assert waiting._pending == []
    assert server._come_up() is waiting
    assert ask(server, "fine") == waiting._running.pid


def test_what_warms_up_otherwise_than_it_was_told_at_first_does_so_again(server: Server) -> None:
    server.begin(60.0, params={"P": "fine"})
    (waiting,) = server._waiting
    server.warm(60.0, params={"P": "die"})
    assert waiting.ended
    assert ask(server, "fine") != waiting._running.pid


@pytest.mark.parametrize("what", ["die", "junk"])
def test_one_that_dies_of_warming_up_early_is_replaced(server: Server, what: str) -> None:
    server.begin(60.0, params={"P": what})
    (waiting,) = server._waiting
    server.warm(60.0, params={"P": what})
    assert ask(server, "fine") != waiting._running.pid


SERVING = Serving("exec cat", {"A": "1"}, "/", "")


@pytest.fixture
def ahead(tmp_path: Path) -> Iterator[Server]:
    """What a worker started before its first task came."""
    Slot.begin(replace(SERVING, folder=str(tmp_path)))
    assert Slot._ahead is not None
    server = Slot._ahead[1]
    yield server
    server.close()
    Slot._ahead = None


def test_a_slot_takes_what_was_started_for_it(ahead: Server, tmp_path: Path) -> None:
    assert ahead.env["A"] == "1"
    assert len(ahead._waiting) == 1
    assert Slot._begun(replace(SERVING, folder=str(tmp_path))) is ahead
    other = Slot._begun(replace(SERVING, folder=str(tmp_path)))
    assert other is not ahead
    assert other._waiting == []


def test_what_was_started_for_something_else_is_ended(ahead: Server, tmp_path: Path) -> None:
    pid = ahead._waiting[0]._running.pid
    other = Slot._begun(replace(SERVING, env={"A": "2"}, folder=str(tmp_path)))
    assert other is not ahead
    assert other.env["A"] == "2"
    assert not is_running(pid)


def test_that_it_cannot_be_started_is_heard_by_whoever_asks(tmp_path: Path) -> None:
    Slot.begin(replace(SERVING, cwd=str(tmp_path / "nowhere"), folder=str(tmp_path)))
    server = Slot._begun(replace(SERVING, cwd=str(tmp_path / "nowhere"), folder=str(tmp_path)))
    with pytest.raises(OSError, match="nowhere"):
        ask(server, "fine")


def test_the_standby_is_warm_when_it_takes_over(server: Server, tmp_path: Path) -> None:
    ask(server, "fine")
    (waiting,) = server._waiting
    waiting.ready()
    server.drop()
    assert ask(server, "fine") == waiting._running.pid


def test_at_the_end_nothing_is_left(server: Server) -> None:
    pid = ask(server, "fine")
    waiting = [process._running.pid for process in server._waiting]
    began = time.monotonic()
    server.close()
    assert not any(map(is_running, [pid, *waiting]))
    assert time.monotonic() - began < 10


def test_a_command_that_never_comes_up_is_no_trials_fault(tmp_path: Path) -> None:
    broken = Server("echo no such variant >&2; exit 2", os.environ, str(tmp_path), str(tmp_path))
    with pytest.raises(TuneError, match="does not come up: exit code 2: no such variant"):
        ask(broken, "fine")
    broken.close()
