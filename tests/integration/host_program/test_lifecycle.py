"""Submitting, waiting, cancelling, dying: what becomes of a run when its surroundings change."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from fcctl_remote import wire
from tests.integration.host_program.agent_client import (
    Agent,
    CallFailed,
    Host,
    new_run_id,
    plan_of,
    prepared,
    step,
    with_tmux,
)
from tests.support.living import is_running
from tests.support.scripts import script
from tests.support.waiting import wait_for

LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="orphans are found through /proc")


def _telemetry(host: Host) -> list[int]:
    found = []
    for pid in host.processes(f"TMUX_TMPDIR={host.tmux_dir}"):
        with contextlib.suppress(OSError):
            if b"telemetry" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _kill_telemetry(host: Host) -> None:
    """And the tmux server, whose command line names it. Again, for one that was just starting and had no words yet."""

    def is_gone() -> bool:
        found = _telemetry(host)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    wait_for(is_gone)


# ------------------------------------------------------------------------------------------------ once
def test_a_second_submit_starts_nothing(host: Host, agent: Agent) -> None:
    run_id, plan = prepared(agent, step("count", "echo x >> ../count; sleep 0.3"))
    first = agent.send("submit", {"plan": plan})
    second = agent.send("submit", {"plan": plan})
    answers = {frame["id"]: frame["result"]["state"] for frame, _ in (agent.receive(), agent.receive())}
    assert answers == {first: "started", second: "exists"}
    other = host.agent()
    assert other.call("submit", {"plan": plan})["state"] == "exists"
    assert agent.outcome(run_id).status == "passed"
    again = agent.call("submit", {"plan": plan})
    assert (again["state"], again["summary"]["status"]) == ("exists", "passed")
    assert (host.run_dir(run_id) / "count").read_text() == "x\n"


def test_another_plan_under_the_same_id_is_refused(agent: Agent) -> None:
    run_id = agent.passed(step("a", "true"))
    with pytest.raises(CallFailed, match="conflict"):
        agent.call("submit", {"plan": wire.encode(plan_of(run_id, step("b", "true")))})


def test_a_run_that_tmux_does_not_start_is_not_kept(host: Host, agent: Agent) -> None:
    run_id, plan = prepared(agent, step("a", "true"))
    with pytest.raises(CallFailed) as caught:
        with_tmux(host, "echo 'server exited unexpectedly' >&2; exit 1").call("submit", {"plan": plan})
    assert caught.value.code == "no_tmux"
    assert "server exited unexpectedly" in caught.value.error["message"]
    assert agent.call("status", {"run_ids": [run_id]})["runs"] == []
    assert agent.call("submit", {"plan": plan})["state"] == "started"
    assert agent.outcome(run_id).status == "passed"


def test_a_tmux_that_cannot_be_started(host: Host, agent: Agent) -> None:
    run_id, plan = prepared(agent, step("a", "true"))
    broken = with_tmux(host, "true")
    (host.base / "bin/tmux").write_text("#!/no/such/interpreter\n")
    with pytest.raises(CallFailed) as caught:
        broken.call("submit", {"plan": plan})
    assert caught.value.code == "no_tmux"
    assert f"{host.base}/bin/tmux: No such file or directory" in caught.value.error["message"]
    assert agent.call("status", {"run_ids": [run_id]})["runs"] == []


def test_a_run_that_nobody_took_up_is_lost_for_whoever_lists_it(host: Host, agent: Agent) -> None:
    run_id, plan = prepared(agent, step("a", "true"))
    with pytest.raises(EOFError):
        with_tmux(host, "kill -9 $PPID").call("submit", {"plan": plan})
    long_ago = time.time() - 3600  # by a clock that was set meanwhile
    os.utime(host.run_dir(run_id) / "plan.json", (long_ago, long_ago))
    assert [run["status"] for run in agent.call("status")["runs"]] == ["queued"]
    place = host.run_dir(run_id) / "submission.json"
    submission = json.loads(place.read_bytes())
    place.write_text(json.dumps({**submission, "up_s": submission["up_s"] - 3600}))
    assert [run["status"] for run in agent.call("status")["runs"]] == ["lost"]


def test_a_run_that_tmux_starts_in_spite_of_its_complaint_is_kept(host: Host, agent: Agent) -> None:
    run_id, plan = prepared(agent, step("a", "sleep 1"))
    begun = host.run_dir(run_id) / "events.jsonl"
    odd = f'{shutil.which("tmux")} "$@"; while ! [ -s {begun} ]; do sleep 0.05; done; echo odd >&2; exit 1'
    assert with_tmux(host, odd).call("submit", {"plan": plan})["state"] == "started"
    assert agent.outcome(run_id).status == "passed"


def test_a_submit_that_died_before_tmux_is_finished_by_the_next(host: Host, agent: Agent) -> None:
    run_id, plan = prepared(agent, step("count", "echo x >> ../count"))
    with pytest.raises(EOFError):
        with_tmux(host, "kill -9 $PPID").call("submit", {"plan": plan})
    assert agent.call("status", {"run_ids": [run_id]})["runs"][0]["status"] == "queued"
    assert agent.call("submit", {"plan": plan})["state"] == "started"
    assert agent.outcome(run_id).status == "passed"
    assert (host.run_dir(run_id) / "count").read_text() == "x\n"


def test_a_submit_without_a_snapshot_is_refused(agent: Agent) -> None:
    with pytest.raises(CallFailed, match="conflict"):
        agent.call("submit", {"plan": wire.encode(plan_of(new_run_id(), step("a", "true")))})


def test_a_second_supervisor_runs_no_step_again(host: Host, agent: Agent) -> None:
    run_id = agent.passed(step("count", "echo x >> ../count"))
    assert host.program("supervise", run_id).returncode == 0
    wait_for(lambda: not _telemetry(host))  # it would find the run without a supervisor and close it
    (host.run_dir(run_id) / "outcome.json").unlink()
    assert host.program("supervise", run_id).returncode == 100
    assert agent.outcome(run_id).status == "lost"
    assert (host.run_dir(run_id) / "count").read_text() == "x\n"


# ------------------------------------------------------------------------------------------------ dying
@LINUX_ONLY
@pytest.mark.parametrize("noticed_by", ["agent", "telemetry"])
def test_a_killed_supervisor_leaves_a_lost_run_and_no_orphan(host: Host, agent: Agent, noticed_by: str) -> None:
    run_id = agent.submit(
        step("done", "echo one"),
        step("busy", "setsid sleep 300 & sleep 0.4; echo up; sleep 301"),
        step("never", "echo never"),
    )
    wait_for(lambda: host.log(run_id, "busy") == "up\n")
    if noticed_by == "agent":
        host.tmux("kill-session", "-t", f"=fcctl-{run_id}")  # the telemetry lives on: it ignores SIGHUP
        _kill_telemetry(host)
    os.kill(host.supervisor(run_id), signal.SIGKILL)
    if noticed_by == "telemetry":
        wait_for((host.run_dir(run_id) / "outcome.json").exists)
    outcome = agent.outcome(run_id)
    done, busy, never = outcome.steps
    assert (outcome.status, outcome.exit_code) == ("lost", 100)
    assert (done.status, busy.status, never.status) == ("passed", "failed", "skipped")
    assert busy.message == "the host program died"
    assert busy.duration_s > 0.3  # by what it printed, before there was a heartbeat
    assert host.processes(f"FCCTL_RUN_ID={run_id}") == []
    events, log = agent.follow(run_id, log_step="done")
    assert (events[-1].type, log) == ("run_finished", b"one\n")
    assert [e.seq for e in events] == list(range(len(events)))


@LINUX_ONLY
def test_who_asks_while_another_settles_the_run_hears_its_end(host: Host, agent: Agent) -> None:
    """Not that it runs: ``fcctl run --resume`` refuses a run that does."""
    run_id = agent.submit(step("busy", "echo up; sleep 301"))
    wait_for(lambda: host.log(run_id, "busy") == "up\n")
    _kill_telemetry(host)
    supervisor, lock = host.supervisor(run_id), host.run_dir(run_id) / "supervisor.lock"
    with lock.open("r+") as settler:
        os.kill(supervisor, signal.SIGKILL)
        fcntl.flock(settler, fcntl.LOCK_EX)
        wait_for(lambda: not is_running(supervisor))  # it lets go of its lock a moment before it has ended
        asked = agent.send("status", {"run_ids": [run_id]})
        time.sleep(0.3)  # it is asked meanwhile
        host.settle(run_id)
    frame, _ = agent.receive()
    assert frame["id"] == asked
    assert [run["status"] for run in frame["result"]["runs"]] == ["lost"]


@LINUX_ONLY
def test_who_only_looks_at_a_run_keeps_nobody_from_ending_it(host: Host, agent: Agent) -> None:
    """Nor does one that was ending it, and died."""
    run_id = agent.submit(step("busy", "echo up; sleep 301"))
    wait_for(lambda: host.log(run_id, "busy") == "up\n")
    _kill_telemetry(host)
    supervisor = host.supervisor(run_id)
    with (host.run_dir(run_id) / "supervisor.lock").open("r+") as looks:
        os.kill(supervisor, signal.SIGKILL)
        fcntl.flock(looks, fcntl.LOCK_SH)
        wait_for(lambda: not is_running(supervisor))
        agent.send("status", {"run_ids": [run_id]})
        time.sleep(0.3)  # it is asked meanwhile
    frame, _ = agent.receive()
    assert [run["status"] for run in frame["result"]["runs"]] == ["lost"]


def test_killing_the_tmux_server_does_not_kill_the_run(host: Host, agent: Agent) -> None:
    run_id = agent.started(step("wait", "while [ ! -e ../go ]; do echo tick; sleep 0.02; done; echo done"))
    host.tmux("kill-server")
    time.sleep(0.5)
    (host.run_dir(run_id) / "go").touch()
    assert agent.outcome(run_id).status == "passed"


def test_a_restarted_machine_loses_the_run_and_says_so(host: Host, agent: Agent) -> None:
    run_id = agent.started(step("busy", "sleep 300"))
    wait_for(lambda: json.loads((host.run_dir(run_id) / "heartbeat.json").read_bytes())["session"] is not None)
    place = host.run_dir(run_id) / "heartbeat.json"
    state = json.loads(place.read_bytes())
    state["boot_id"] = "another boot"
    os.kill(host.supervisor(run_id), signal.SIGSTOP)
    _kill_telemetry(host)
    place.write_text(json.dumps(state))
    os.kill(host.supervisor(run_id), signal.SIGKILL)
    outcome = agent.outcome(run_id)
    assert outcome.status == "lost"
    assert outcome.message == "the machine restarted during the run"


def test_a_run_submitted_before_a_restart_is_lost_for_who_watches(host: Host, agent: Agent) -> None:
    run_id, plan = prepared(agent, step("a", "true"))
    folder = host.run_dir(run_id)
    (folder / "submission.json").write_text(json.dumps({"boot_id": "another boot", "env": {}}))
    (folder / "plan.json").write_text(json.dumps(plan))
    outcome = agent.outcome(run_id)
    assert (outcome.status, outcome.steps[0].status) == ("lost", "skipped")


# ------------------------------------------------------------------------------------------------ cancelling
@pytest.mark.parametrize(("status", "code"), [("cancelled", 103), ("over_budget", 5)])
def test_cancel(host: Host, agent: Agent, status: str, code: int) -> None:
    run_id = agent.submit(
        step("busy", "trap 'echo tidied; exit 0' TERM; echo up; while true; do sleep 0.05; done"), step("b", "true")
    )
    wait_for(lambda: host.log(run_id, "busy") == "up\n")
    agent.call("cancel", {"run_id": run_id, "reason": "enough", "status": status, "grace_s": 60})
    events, log = agent.follow(run_id, log_step="busy")
    outcome = agent.outcome(run_id)
    assert (outcome.status, outcome.exit_code, outcome.message) == (status, code, "enough")
    assert [s.status for s in outcome.steps] == ["cancelled", "skipped"]
    assert log.endswith(b"tidied\n")
    assert [e.data["reason"] for e in events if e.type == "cancel_requested"] == ["enough"]
    assert agent.call("cancel", {"run_id": run_id, "reason": "again"})["status"] == status
    assert host.processes(f"FCCTL_RUN_ID={run_id}") == []


def test_cancel_kills_what_ignores_sigterm_after_the_grace(host: Host, agent: Agent) -> None:
    run_id = agent.submit(step("deaf", "trap '' TERM; echo up; while true; do sleep 0.05; done"))
    wait_for(lambda: host.log(run_id, "deaf") == "up\n")
    began = time.monotonic()
    agent.call("cancel", {"run_id": run_id, "reason": "x", "grace_s": 0.5})
    assert agent.outcome(run_id).status == "cancelled"
    assert 0.5 <= time.monotonic() - began < 60


def test_cancel_before_anything_started(host: Host, agent: Agent) -> None:
    run_id, plan = prepared(agent, step("a", "true"))
    (host.run_dir(run_id) / "plan.json").write_text(json.dumps(plan))
    assert agent.call("cancel", {"run_id": run_id, "reason": "x"})["status"] == "cancelled"


def test_sigterm_without_a_cancel_is_the_machine_going_down(host: Host, agent: Agent) -> None:
    run_id = agent.started(step("busy", "sleep 300"))
    os.kill(host.supervisor(run_id), signal.SIGTERM)
    outcome = agent.outcome(run_id)
    assert (outcome.status, outcome.steps[0].status) == ("preempted", "cancelled")


# ------------------------------------------------------------------------------------------------ two runs, one machine
WAIT = 'while [ ! -e "$FCCTL_RUN_DIR/go" ]; do sleep 0.02; done'


def test_exclusive_runs_queue_and_the_machine_is_handed_on(host: Host, agent: Agent) -> None:
    first = agent.started(step("a", WAIT))
    second = agent.submit(step("b", "true"))
    assert agent.wait_for(second, "queued").data == {"behind": first}
    assert agent.call("status", {"run_ids": [second]})["runs"][0]["behind"] == first
    (host.run_dir(first) / "go").touch()
    assert agent.outcome(first).status == "passed"
    assert agent.outcome(second).status == "passed"


def test_shared_runs_go_side_by_side_and_an_exclusive_one_waits(host: Host, agent: Agent) -> None:
    runs = []
    for _ in range(2):
        runs.append(agent.submit(step("a", WAIT), lock="shared"))
        agent.wait_for(runs[-1], "step_started")
    alone = agent.submit(step("b", "true"))
    assert agent.wait_for(alone, "queued").data["behind"] == runs[0]
    late = agent.submit(step("c", "true"), lock="shared")
    assert agent.wait_for(late, "queued").data["behind"] == alone  # first come, first served
    for run_id in runs:
        (host.run_dir(run_id) / "go").touch()
    assert [agent.outcome(run_id).status for run_id in (*runs, alone, late)] == ["passed"] * 4


def test_a_queued_run_can_be_cancelled(host: Host, agent: Agent) -> None:
    first = agent.started(step("a", WAIT))
    second = agent.submit(step("b", "true"))
    agent.wait_for(second, "queued")
    agent.call("cancel", {"run_id": second, "reason": "no longer needed"})
    outcome = agent.outcome(second)
    assert (outcome.status, outcome.steps[0].status) == ("cancelled", "skipped")
    (host.run_dir(first) / "go").touch()
    agent.outcome(first)


def test_a_dead_holder_does_not_hold_the_machine(host: Host, agent: Agent) -> None:
    first = agent.started(step("a", "sleep 300"))
    second = agent.submit(step("b", "true"))
    agent.wait_for(second, "queued")
    os.kill(host.supervisor(first), signal.SIGKILL)
    assert agent.outcome(second).status == "passed"
    assert agent.outcome(first).status == "lost"


def test_telemetry_names_the_gpu_that_no_step_probed(host: Host) -> None:
    line = "0, NVIDIA L4, 97, 41, 1024, 23034, 2040, 6251, 71.84, 63, 0x0000000000000001"
    again = f"while echo '{line}'; do sleep 0.2; done"
    smi = script(host.base / "bin/nvidia-smi", f'case " $* " in *" -l "*) {again} ;; *) echo "{line}" ;; esac')
    # The windows' PATH is the tmux server's, which starts with the first run.
    agent = host.agent(PATH=f"{smi.parent}:{host.env['PATH']}")
    run_id = agent.submit(
        step("a", "while ! grep -qs L4 $FCCTL_RUN_DIR/telemetry.jsonl; do sleep 0.05; done", timeout_s=60)
    )
    outcome = agent.outcome(run_id)
    assert outcome.status == "passed"
    assert outcome.host["gpu"] == {"present": True, "name": "NVIDIA L4", "count": 1}


def test_telemetry_is_kept_beside_the_run_and_ends_with_it(host: Host, agent: Agent) -> None:
    two = 'until [ "$(cat "$FCCTL_RUN_DIR/telemetry.jsonl" 2>/dev/null | wc -l)" -ge 2 ]; do sleep 0.1; done'
    run_id = agent.passed(step("a", two, timeout_s=60))
    host.wait_until_closed(run_id)
    lines = (host.run_dir(run_id) / "telemetry.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    assert len(samples) >= 2
    assert all("gpus" in sample or sample["mem_total_mb"] > 0 for sample in samples if Path("/proc").exists())


#: What a shell does that gets SIGTERM as it starts a program, with the moment drawn out: the signal is held back until
#: the program runs, and then ends the shell. SIGCONT follows when all that ran by then have been told.
SHELL = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCONT])
print("up", flush=True)
while not {signal.SIGTERM, signal.SIGCONT} <= signal.sigpending():
    time.sleep(0.01)
if os.fork() == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.execlp("bash", "bash", "-c", sys.argv[1])
while not os.path.exists("../started"):
    time.sleep(0.01)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
"""
PROGRAM = "trap 'echo heard; exit' TERM; echo started; touch ../started; while true; do sleep 0.05; done"
#: The same signal, in the hands of somebody who tidies up: what that takes is not told to end.
TIDY = "trap 'bash -c \"sleep 1; echo saved\"; exit' TERM; echo up; while true; do sleep 0.05; done"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="elsewhere nobody adopts orphans")
def test_what_was_started_too_late_to_hear_it_hears_it_too(host: Host, agent: Agent) -> None:
    script = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(SHELL)} {shlex.quote(PROGRAM)}"
    run_id = agent.submit(step("busy", script))
    wait_for(lambda: "up\n" in host.log(run_id, "busy"))
    agent.call("cancel", {"run_id": run_id, "reason": "enough", "grace_s": 60})
    assert agent.outcome(run_id).status == "cancelled"
    assert host.log(run_id, "busy") == "up\nstarted\nheard\n"


def test_what_tidies_up_is_left_in_peace(host: Host, agent: Agent) -> None:
    run_id = agent.submit(step("busy", TIDY))
    wait_for(lambda: "up\n" in host.log(run_id, "busy"))
    agent.call("cancel", {"run_id": run_id, "reason": "enough", "grace_s": 60})
    assert agent.outcome(run_id).status == "cancelled"
    assert host.log(run_id, "busy").endswith("saved\n")
