"""Steps in a container, through a docker whose daemon is a process of its own: what goes in, and that it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from fcctl_remote.base.layout import Layout
from tests.integration.host_program.agent_client import LIMITS_S, Agent, Host, new_run_id, plan_of, prepared, step
from tests.support import fake_docker_path
from tests.support.fake_docker_path import IMAGE
from tests.support.living import is_running
from tests.support.waiting import wait_for

PROGRAMS = ("bash", "sh", "sleep", "cat", "env", "touch", "python3", "tr", "grep", "ls", "id")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for docker finds processes in /proc")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a docker whose daemon runs."""
    made = tmp_path / "docker"
    (made / "bin").mkdir(parents=True)
    with fake_docker_path.daemon(made / "bin/docker", made, *PROGRAMS):
        yield made


@pytest.fixture
def agent(host: Host, state: Path) -> Agent:
    """An agent with docker on its PATH."""
    return host.agent(PATH=f"{state}/bin:{os.environ['PATH']}")


def calls(state: Path, verb: str) -> list[list[str]]:
    return [words for line in (state / "calls").read_text().splitlines() if (words := json.loads(line))[0] == verb]


def test_a_step_runs_inside_with_its_folders_user_and_variables(host: Host, agent: Agent, state: Path) -> None:
    script = (
        'cat hello.txt; echo "$COLOUR $SHADE $FCCTL_STEP $FCCTL_PYTHON ${SSH_KEY-unset} $(id -u)"; echo "$PATH"\n'
        'touch "$FCCTL_OUT/a" "$FCCTL_ARTIFACTS/b" "$FCCTL_CACHE/c" "$HOME/d"; fcctl-host version\n'
    )
    agent = host.agent(PATH=f"{state}/bin:{os.environ['PATH']}", SSH_KEY="of the host")
    run_id = agent.submit(
        step("one", script, env={"SHADE": "dark"}, needs=wire.Needs(tools=["cat", "cxx"])), container=IMAGE,
        env={"COLOUR": "red"},
    )  # fmt: skip
    assert (agent.outcome(run_id).status, host.log(run_id, "one")) == ("failed", "")
    assert agent.outcome(run_id).steps[0].message == f"the image {IMAGE} has no cxx"
    one = step("one", script, env={"SHADE": "dark"}, needs=wire.Needs(tools=["cat"]))
    run_id = agent.submit(
        one, step("two", "exit 7", exit_codes={"7": "warned"}), container=IMAGE, env={"COLOUR": "red"}
    )
    assert [s.status for s in agent.outcome(run_id).steps] == ["passed", "warned"], host.log(run_id, "one")
    lines = host.log(run_id, "one").splitlines()
    assert lines[:2] == ["hello", f"red dark one python3 unset {os.getuid()}"]
    assert lines[2] == f"{host.run_dir(run_id)}/bin:{state}/image/bin"
    assert lines[3].startswith("fcctl host program")
    assert (host.run_dir(run_id) / "artifacts/b").exists()
    assert (Path(Layout(str(host.root)).cache_of("ws")) / "home/d").exists()
    words = next(words for words in calls(state, "run") if f"fcctl-{run_id}-one" in words)
    assert words[1:3] == ["--rm", "--init"]
    assert "COLOUR" in words
    assert "red" not in words, "values are not in arguments"
    assert calls(state, "rm") == []


def test_the_gpu_is_given_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fcctl_remote.probe import docker

    layout = Layout(str(tmp_path))
    run = layout.run(new_run_id())
    spec = step("one", "true")
    plan = plan_of(run.run_id, spec, container=IMAGE)
    for there in (True, False):
        monkeypatch.setattr("fcctl_remote.probe.gpu.visible", lambda there=there: there)
        words = docker.command(layout, run, run.step("one"), plan, spec, {"PATH": "/usr/bin"}, None)
        assert words[words.index("--gpus") + 1 :][:1] == ["all"] if there else "--gpus" not in words, words


def test_cancel_gives_what_runs_inside_time_to_tidy_up(host: Host, agent: Agent, state: Path) -> None:
    inner = "trap 'sleep 0.5; echo saved; exit' TERM; echo up; while true; do sleep 0.05; done"
    run_id = agent.submit(step("busy", f'bash -c "{inner}"'), container=IMAGE)
    wait_for(lambda: "up\n" in host.log(run_id, "busy"))
    agent.call("cancel", {"run_id": run_id, "reason": "enough", "grace_s": 60})
    outcome = agent.outcome(run_id)
    assert (outcome.status, outcome.steps[0].status) == ("cancelled", "cancelled")
    assert "saved\n" in host.log(run_id, "busy")
    assert host.processes(f"FCCTL_CONTAINER=fcctl-{run_id}-busy") == []


def test_a_container_that_is_deaf_is_removed_at_the_timeout(host: Host, agent: Agent, state: Path) -> None:
    """docker's client is killed, which ends no container."""
    deaf = "trap '' TERM; setsid sleep 3002 & echo up; while true; do sleep 0.05; done"
    (state / "image/bin/setsid").symlink_to(shutil.which("setsid") or "setsid")
    for limit_s in LIMITS_S:
        (state / "calls").write_text("")
        spec = step("deaf", deaf, timeout_s=limit_s, env={"FCCTL_KILL_GRACE_S": "0.4"})
        run_id = agent.submit(spec, container=IMAGE)
        outcome = agent.outcome(run_id)
        if "up\n" in host.log(run_id, "deaf"):  # it was deaf before its time was over
            break
    assert (outcome.status, outcome.steps[0].status) == ("failed", "timed_out")
    assert calls(state, "rm") == [["rm", "-f", f"fcctl-{run_id}-deaf"]]
    assert host.processes(f"FCCTL_CONTAINER=fcctl-{run_id}-deaf") == []


def ask(state: Path, verb: str, *argv: str) -> Any:
    """What the daemon answers, without what it costs to start a client."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.connect(str(state / "socket"))
        daemon.sendall(json.dumps({"verb": verb, "argv": argv}).encode())
        return json.loads(daemon.recv(1 << 16))


def test_the_stand_in_says_that_a_container_is_removed_when_none_of_its_processes_runs(state: Path) -> None:
    """As docker does. One without the container's environment, as while it becomes another program, was left."""
    argv = ["--name", "c", "--label", "l", "--entrypoint", "bash", IMAGE, "-c", "env -i sleep 3004 & echo $!; wait"]
    with subprocess.Popen([state / "bin/docker", "run", *argv], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        wait_for(lambda: ask(state, "ps", "label=l") == ["c"])
        removed, running = ask(state, "rm", "c"), is_running(pid)
    assert (removed, running) == (0, False)


def test_the_container_of_a_dead_supervisor_is_removed(host: Host, agent: Agent, state: Path) -> None:
    run_id = agent.submit(step("busy", "echo up; sleep 3003"), container=IMAGE)
    wait_for(lambda: "up\n" in host.log(run_id, "busy"))
    os.kill(host.supervisor(run_id), signal.SIGKILL)
    assert agent.outcome(run_id).status == "lost"
    wait_for(lambda: host.processes(f"FCCTL_CONTAINER=fcctl-{run_id}-busy") == [])
    left = subprocess.run(
        [state / "bin/docker", "ps", "-aq", "--filter", f"label=fcctl.run={run_id}"], capture_output=True, check=True
    )
    assert left.stdout.strip() == b""


@pytest.mark.parametrize(
    ("complaint", "message", "hint"),
    [
        ("permission denied while trying to connect to the Docker daemon socket", "may not use docker", "usermod -aG"),
        ("Cannot connect to the Docker daemon", "docker does not run", "systemctl start docker"),
        (None, "this machine has no docker", "remove `container`"),
    ],
)
def test_a_machine_without_docker_says_so(
    host: Host, state: Path, complaint: str | None, message: str, hint: str
) -> None:
    if complaint is None:
        (state / "bin/docker").unlink()
    else:
        (state / "refuse").write_text(complaint)
    agent = host.agent(PATH=f"{state}/bin:{state}/image/bin")
    run_id = agent.submit(step("one", "echo never"), container=IMAGE)
    (one,) = agent.outcome(run_id).steps
    assert (one.status, host.log(run_id, "one")) == ("unavailable", "")
    assert message in (one.message or "")
    assert hint in (one.hint or "")


def test_an_image_that_docker_cannot_start_is_a_failure_with_its_words(agent: Agent) -> None:
    (one,) = agent.outcome(agent.submit(step("one", "true"), container="repo.example/none")).steps
    assert (one.status, one.exit_code) == ("failed", 125)
    assert "Unable to find image" in (one.message or "")


def test_a_secret_is_in_the_container_and_in_no_argument_and_no_variable_of_docker(
    host: Host, agent: Agent, state: Path
) -> None:
    one = step("one", '[ "$TOKEN" = "a b\'c-planted" ]; echo "got $TOKEN"; ls /dev/shm')
    run_id, plan = prepared(agent, one, container=IMAGE, secrets=["TOKEN"])
    agent.call("submit", {"plan": plan, "secrets": {"TOKEN": "a b'c-planted"}})
    assert agent.outcome(run_id).status == "passed", host.log(run_id, "one")
    assert "got ***" in host.log(run_id, "one")
    words = next(words for words in calls(state, "run") if f"fcctl-{run_id}-one" in words)
    assert "TOKEN" not in words, "docker writes the variables that it is given to its disk"
    assert not list(Path("/dev/shm").glob(f"*{run_id}*"))
