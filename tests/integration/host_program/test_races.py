"""Two at once on the host: whoever comes first, the run has one ending, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from fcctl_remote import wire
from fcctl_remote.agent import submit
from fcctl_remote.wire import Refusal
from tests.integration.host_program.agent_client import Agent, Host, new_run_id, prepared, step, with_tmux
from tests.support.living import is_running
from tests.support.scripts import script
from tests.support.waiting import wait_for


def never_started(host: Host, agent: Agent) -> str:
    """A run that the host has, and that no supervisor took up yet: tmux only says that it did."""
    run_id, plan = prepared(agent, step("a", "touch ../ran"))
    assert with_tmux(host, "exit 0").call("submit", {"plan": plan})["state"] == "started"
    return run_id


def cancelled_while_the_lock_is_held(host: Host, agent: Agent, run_id: str) -> None:
    """Another process looks at the run just then, so that ``cancel`` takes it for the supervisor."""
    held = os.open(host.run_dir(run_id) / "supervisor.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert agent.call("cancel", {"run_id": run_id, "reason": "enough"})["status"] == "queued"
    finally:
        os.close(held)


def test_a_cancel_that_comes_just_before_the_supervisor_is_heeded(host: Host, agent: Agent) -> None:
    run_id = never_started(host, agent)
    cancelled_while_the_lock_is_held(host, agent, run_id)
    host.program("supervise", run_id)
    outcome = agent.outcome(run_id)
    assert (outcome.status, outcome.message, [s.status for s in outcome.steps]) == ("cancelled", "enough", ["skipped"])
    assert not (host.run_dir(run_id) / "ran").exists()


def test_a_cancel_of_a_run_that_never_starts_does_not_wait(host: Host, agent: Agent) -> None:
    run_id = never_started(host, agent)
    cancelled_while_the_lock_is_held(host, agent, run_id)
    outcome = agent.outcome(run_id)
    assert (outcome.status, outcome.message) == ("cancelled", "cancelled before its start")
    host.program("supervise", run_id)
    assert not (host.run_dir(run_id) / "ran").exists()


def test_who_looks_at_a_run_that_is_submitted_again_is_not_taken_for_its_supervisor(host: Host, agent: Agent) -> None:
    """The first submit call was killed before it started tmux. If the second one started nothing, the run would be
    `lost` after half a minute."""
    run_id, plan = prepared(agent, step("a", "true"))
    with pytest.raises(EOFError):
        with_tmux(host, "kill -9 $PPID").call("submit", {"plan": plan})
    looks = os.open(host.run_dir(run_id) / "supervisor.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(looks, fcntl.LOCK_EX)
        agent.send("submit", {"plan": plan})
        time.sleep(0.3)  # it is submitted meanwhile
    finally:
        os.close(looks)
    frame, _ = agent.receive()
    assert frame["result"]["state"] == "started"
    assert agent.outcome(run_id).status == "passed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGSTOP])
def test_no_key_in_the_supervisors_window_ends_a_run(host: Host, agent: Agent, number: int) -> None:
    """Ctrl-C, Ctrl-\\, its end; and tmux continues what was stopped."""
    run_id = agent.started(step("a", "sleep 300"))
    os.kill(host.supervisor(run_id), number)
    agent.call("cancel", {"run_id": run_id, "reason": "enough", "grace_s": 0})
    outcome = agent.outcome(run_id)
    assert (outcome.status, outcome.message) == ("cancelled", "enough")


def test_a_second_cancel_shortens_the_time_that_the_first_gave(host: Host, agent: Agent) -> None:
    run_id = agent.started(step("a", "trap 'echo told' TERM; echo ready; while true; do sleep 0.05 || true; done"))
    wait_for(lambda: "ready" in host.log(run_id, "a"))
    agent.call("cancel", {"run_id": run_id, "reason": "enough", "grace_s": 600})
    wait_for(lambda: "told" in host.log(run_id, "a"))
    agent.call("cancel", {"run_id": run_id, "reason": "now", "grace_s": 900, "status": "over_budget"})
    agent.call("cancel", {"run_id": run_id, "reason": "now", "grace_s": 0, "status": "over_budget"})
    outcome = agent.outcome(run_id)
    assert (outcome.status, outcome.message, outcome.steps[0].exit_code) == ("cancelled", "enough", 137)


def test_what_runs_is_ended_where_the_host_program_fails_during_a_step(host: Host, agent: Agent) -> None:
    """Here at the first event that it cannot write: as on a disk that became read-only."""
    away = "until [ -e $FCCTL_RUN_DIR/go ]; do sleep 0.05; done; mv $FCCTL_RUN_DIR $FCCTL_RUN_DIR.moved"
    run_id = agent.started(step("a", f"{away}; echo > ../moved; sleep 300"))
    (host.run_dir(run_id) / "go").touch()
    moved = Path(f"{host.run_dir(run_id)}.moved")
    wait_for((moved / "moved").exists)
    supervisor = int((moved / "supervisor.lock").read_text())
    os.kill(supervisor, signal.SIGTERM)
    wait_for(lambda: not is_running(supervisor))
    assert host.processes(f"FCCTL_RUN_ID={run_id}") == []


def test_one_damaged_run_does_not_hide_the_others(host: Host, agent: Agent) -> None:
    run_id = agent.passed(step("a", "true"))
    for content in ("[]", '{"run_id": 1}', "not JSON"):
        damaged = host.run_dir(new_run_id())
        damaged.mkdir()
        (damaged / "plan.json").write_text(content)
        (damaged / "outcome.json").write_text(content)
    found = {run["run_id"]: run for run in agent.call("status")["runs"]}
    assert found.pop(run_id)["status"] == "passed"
    assert len(found) == 3
    for run in found.values():
        assert (run["status"], run["message"]) == (
            "error",
            "outcome.json cannot be read: a step replaced or damaged this file",
        )


def test_a_step_that_scribbles_into_the_events_does_not_hold_them_up(host: Host, agent: Agent) -> None:
    run_id = agent.passed(step("a", "head -c 3000000 /dev/zero | tr '\\0' x >> ../events.jsonl"), step("b", "true"))
    size, offset, seen = (host.run_dir(run_id) / "events.jsonl").stat().st_size, 0, []
    for _ in range(20):
        reply = agent.call("watch", wire.encode(wire.WatchRequest(run_id, offset, wait_s=1.0)))
        offset = reply["events_offset"]
        seen += [event["type"] for event in reply["events"]]
    assert offset == size
    assert seen[-1] == "run_finished"


def test_a_tmux_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "tmux", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(submit, "PATIENCE_S", 0.3)
    with pytest.raises(Refusal, match="did not answer"):
        submit.start_session(new_run_id(), ["true"], ["true"], str(tmp_path))


def test_a_server_that_is_just_leaving_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last run's end takes the tmux server with it; the next run may call it at that very moment."""
    calls = tmp_path / "calls"
    leaving = "echo server exited unexpectedly >&2; exit 1"
    script(tmp_path / "tmux", f"echo x >> {calls}; [ $(wc -l < {calls}) -ge 3 ] || {{ {leaving}; }}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert submit.start_session(new_run_id(), ["true"], ["true"], str(tmp_path))
    assert len(calls.read_text().split()) == 3
