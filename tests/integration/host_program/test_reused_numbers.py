"""Numbers of processes that were written down, and belong to somebody else by now.

A container that restarts keeps its kernel's boot id and gives its processes the same numbers again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fcctl_remote.base import processes as process
from tests.integration.host_program.agent_client import Agent, Host, step
from tests.support.living import is_running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@contextmanager
def unrelated(number: int | None = None) -> Iterator[int]:
    """A process that has nothing to do with any run, in a session of its own; with ``number`` if the kernel lets us.

    Afterwards the kernel's latest process number is set back: other tests' new processes would get the numbers of
    processes that have just ended.
    """
    latest = LAST_PID.read_text() if number is not None else ""
    for _ in range(300 if number is not None else 1):
        if number is not None:
            try:
                LAST_PID.write_text(str(number - 1))
            except OSError:
                pytest.skip("only root may say which number the next process gets")
        other = subprocess.Popen(["sleep", "300"], start_new_session=True)
        if number is not None:
            LAST_PID.write_text(latest)
        if number in (None, other.pid):
            break
        other.kill()
        other.wait()
    else:
        pytest.skip(f"other processes are faster at {number}")
    try:
        yield other.pid
    finally:
        other.kill()
        other.wait()


def heartbeat(host: Host, run_id: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((host.run_dir(run_id) / "heartbeat.json").read_bytes())
    return found


def at_work(host: Host, agent: Agent) -> tuple[str, int, int]:
    """A run whose step works: its id, its supervisor, the step's session, which is one process and starts no other."""
    run_id = agent.submit(step("busy", "exec sleep 301"))
    wait_for(lambda: (host.run_dir(run_id) / "heartbeat.json").exists() and heartbeat(host, run_id)["session"])
    session = heartbeat(host, run_id)["session"]
    assert isinstance(session, int)
    wait_for(lambda: process.ends_with(session, ["sleep", "301"]))
    return run_id, host.supervisor(run_id), session


def end_all_of_it(host: Host, run_id: str, supervisor: int, session: int) -> None:
    """As a container does that ends: all its processes at once, and nobody writes anything down."""
    watching = set(host.processes(f"TMUX_TMPDIR={host.tmux_dir}")) - {a.process.pid for a in host.agents}
    # The supervisor first: it would hear that its terminal hangs up.
    for pid in dict.fromkeys([supervisor, session, *watching, *host.processes(f"FCCTL_RUN_ID={run_id}")]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (supervisor, session)))


def test_who_has_the_number_of_a_dead_step_is_left_alone(host: Host, agent: Agent) -> None:
    run_id, supervisor, session = at_work(host, agent)
    end_all_of_it(host, run_id, supervisor, session)
    with unrelated(session) as other:
        assert [run["status"] for run in agent.call("status", {"run_ids": [run_id]})["runs"]] == ["lost"]
        assert is_running(other)
    assert "killed" not in (agent.outcome(run_id).message or "")


def test_a_number_in_the_heartbeat_alone_ends_nobody(host: Host, agent: Agent) -> None:
    """Of a host program that wrote no time beside it, or of another process."""
    run_id, supervisor, session = at_work(host, agent)
    end_all_of_it(host, run_id, supervisor, session)
    with unrelated() as other:
        state = heartbeat(host, run_id)
        (host.run_dir(run_id) / "heartbeat.json").write_text(json.dumps({**state, "session": other}))
        assert [run["status"] for run in agent.call("status")["runs"]] == ["lost"]
        assert is_running(other)


def test_a_step_that_outlives_its_supervisor_is_still_ended(host: Host, agent: Agent) -> None:
    """It hides its environment, so that only its session tells whose it is."""
    run_id = agent.submit(step("busy", "echo up; exec env -i sleep 302"))
    wait_for(lambda: (host.run_dir(run_id) / "heartbeat.json").exists() and heartbeat(host, run_id)["session"])
    session = heartbeat(host, run_id)["session"]
    assert isinstance(session, int)
    wait_for(lambda: process.ends_with(session, ["302"]) and not process.ends_with(session, ["-i", "sleep", "302"]))
    os.kill(host.supervisor(run_id), signal.SIGKILL)
    assert agent.outcome(run_id).status == "lost"
    assert not is_running(session)


def test_who_has_the_number_of_a_dead_supervisor_is_not_told_to_end(host: Host, agent: Agent) -> None:
    run_id, supervisor, session = at_work(host, agent)
    lock = host.run_dir(run_id) / "supervisor.lock"
    end_all_of_it(host, run_id, supervisor, session)
    with lock.open("r+") as settler, unrelated() as other:
        fcntl.flock(settler, fcntl.LOCK_EX)  # as by an agent that is just writing the run's outcome
        lock.write_text(str(other))
        asked = agent.send("cancel", {"run_id": run_id, "reason": "enough"})
        time.sleep(0.3)  # it is asked meanwhile
        host.settle(run_id)
        frame, _ = agent.receive()
        assert is_running(other)
        assert (frame["id"], frame["result"]["status"]) == (asked, "lost")


@pytest.mark.parametrize("is_linux", [True, False], ids=["proc", "ps"])
def test_a_process_is_known_by_its_number_and_its_start(is_linux: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "IS_LINUX", is_linux)
    with unrelated() as other:
        begun = process.started(other)
        assert begun is not None
        assert begun == process.started(other) != process.started(1)
        wait_for(lambda: process.ends_with(other, ["sleep", "300"]))  # a new one has no words for an instant
        assert process.ends_with(other, ["300"])
        assert not process.ends_with(other, ["supervise", "300"])
    assert process.started(other) is None
    assert not process.ends_with(other, ["sleep", "300"])
