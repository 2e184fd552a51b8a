"""An emulator that stops, or is killed, and another that goes on with its state."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote.base.processes import family, ps
from orchestrator.base.errors import ConflictError
from orchestrator.emulator import processes
from orchestrator.emulator.clock import EmulatedClock
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import Latency, Scenario
from tests.integration.emulator.conftest import Gce
from tests.support.command import run_fcctl, source_environment
from tests.support.waiting import wait_for

pytest.importorskip("google.cloud.compute_v1")
from google.api_core import exceptions

Cloud = tuple[Emulator, Any]


def test_instances_come_back_with_their_disks(tmp_path: Path, start: Callable[..., Cloud]) -> None:
    emulator, gce = start(tmp_path)
    vm = gce.create()
    gce.create("off")
    gce.do("stop", "off")
    gce.ssh("echo kept > file")
    keys, port = gce.host_keys(), gce.metadata()["fcctl-emulator-ssh-port"]
    home = emulator.home("vm")
    emulator.stop()
    assert processes.of_home(home) == set()
    emulator, gce = start(tmp_path)
    assert (gce.get().id, gce.status(), gce.status("off")) == (vm.id, "RUNNING", "TERMINATED")
    assert (gce.host_keys(), gce.metadata()["fcctl-emulator-ssh-port"]) == (keys, port)
    assert gce.ssh("cat file").stdout == "kept\n"
    gce.do("start", "off")


def test_operations_and_deadlines_go_on(tmp_path: Path, start: Callable[..., Cloud]) -> None:
    scenario = Scenario(latency=Latency(stop=100))
    emulator, gce = start(tmp_path, scenario=scenario)
    gce.create()
    gce.create("other")
    operation = gce.call("stop", "other")
    emulator.advance(50)
    until = gce.get().resource_status.scheduling.termination_timestamp
    emulator.stop()
    emulator, gce = start(tmp_path, scenario=scenario)
    assert gce.get().resource_status.scheduling.termination_timestamp == until
    assert gce.status("other") == "STOPPING"
    emulator.advance(60)
    gce.done(operation)
    emulator.advance(3600)
    assert gce.status() == "TERMINATED"


def test_a_deadline_that_passed_meanwhile(tmp_path: Path, start: Callable[..., Cloud]) -> None:
    emulator, gce = start(tmp_path)
    gce.create()
    now = emulator.clock.now()
    emulator.stop()
    emulator, gce = start(tmp_path, clock=EmulatedClock(now + 4000))
    emulator.advance(1)
    assert gce.status() == "TERMINATED"


def test_time_does_not_run_backwards(tmp_path: Path, start: Callable[..., Cloud]) -> None:
    emulator, _ = start(tmp_path)
    emulator.advance(100_000)
    before = emulator.clock.now()
    emulator.stop()
    emulator, _ = start(tmp_path)
    assert emulator.clock.now() >= before


@contextmanager
def process(key: Path, *arguments: str, **env: str) -> Iterator[tuple[int, Gce]]:
    """The process id of an emulator and a client, whose machine runs; the process is killed."""
    argv = [sys.executable, "-m", "orchestrator.cli.entry", "emulator", *arguments, "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**source_environment(), **env}) as child:
        try:
            assert child.stdout is not None
            gce = Gce(json.loads(child.stdout.readline())["url"], key)
            gce.create()
            yield child.pid, gce
        finally:
            child.kill()


@pytest.mark.full
def test_a_killed_emulator_leaves_orphans_which_the_next_ends(
    tmp_path: Path, key: Path, start: Callable[..., Cloud]
) -> None:
    with process(key, "--state", str(tmp_path)) as (pid, gce):
        assert gce.ssh("tmux new -d -s job 'sleep 1000'").returncode == 0
        with pytest.raises(ConflictError, match="another emulator"):
            Emulator(tmp_path).start()
        processes.send_all(_guardians(pid), signal.SIGKILL)  # as when the computer loses its power
    state = json.loads((tmp_path / "state.json").read_text())
    volatile = Path(state["machines"][0]["volatile"])
    home = tmp_path / "disks" / state["disks"]["projects/proj/zones/us-central1-a/disks/vm"]["id"] / "home"
    orphans = processes.of_home(home)
    assert orphans
    emulator, gce = start(tmp_path)
    wait_for(lambda: not any(_alive(pid) for pid in orphans))
    assert not volatile.exists()
    assert gce.ssh("true").returncode == 0
    assert ps(emulator.hypervisor.running[emulator.machine("vm").path]._sshd.pid, "command")
    gce.do("delete")
    with pytest.raises(exceptions.NotFound):
        gce.get()


def _guardians(emulator: int) -> list[int]:
    return [pid for pid in family(ancestor=emulator) if ps(pid, "command").startswith("/bin/sh -c while")]


def test_a_killed_emulator_takes_its_machines_along(tmp_path: Path, key: Path) -> None:
    with process(key, TMPDIR=str(tmp_path)) as (pid, gce):
        volatile = Path(gce.ssh("tmux new -d -s job 'sleep 1000'; printf %s $TMUX_TMPDIR").stdout)
        assert volatile.is_dir()
        assert list(tmp_path.glob("fcctl-emulator-*"))
        wait_for(lambda: len(processes.of_boot(volatile)) >= 3)  # sshd, tmux, and sleep, which tmux is just starting
        assert len(_guardians(pid)) == 1
    wait_for(lambda: not processes.of_boot(volatile) and not volatile.exists())
    wait_for(lambda: not list(tmp_path.glob("fcctl-emulator-*")))


def test_one_that_is_told_to_stop_leaves_no_guardian(start: Callable[..., Cloud]) -> None:
    emulator, gce = start()
    before = set(_guardians(os.getpid()))
    gce.create()
    (guardian,) = set(_guardians(os.getpid())) - before
    emulator.stop()
    assert not _alive(guardian)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "defunct" not in ps(pid, "command")


def test_who_looks_whether_one_is_there_keeps_none_from_starting(
    tmp_path: Path, start: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    look = (tmp_path / "lock").open("w")
    fcntl.flock(look, fcntl.LOCK_SH)
    asked: list[int] = []
    real = fcntl.flock

    def flock(stream: Any, what: int) -> None:
        asked.append(what)
        if len(asked) == 3:
            look.close()  # it has seen what it wanted
        real(stream, what)

    monkeypatch.setattr(fcntl, "flock", flock)
    try:
        start(tmp_path)
    finally:
        look.close()
    assert len(asked) == 3


def test_a_port_that_is_taken(start: Callable[..., Cloud]) -> None:
    emulator, _ = start()
    with pytest.raises(ConflictError, match="cannot be used"):
        Emulator(port=int(emulator.url.split(":")[2].split("/")[0])).start()


def test_the_command_prints_its_url_and_ends_when_told(tmp_path: Path) -> None:
    done = run_fcctl("emulator", "--for", "0.1", cwd=tmp_path)
    assert done.code == 0
    assert done.out.startswith("http://127.0.0.1:")
    assert "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE=" + done.out.strip() + "/compute/v1/" in done.err
    (tmp_path / "faults.yaml").write_text("- {do: explode}\n")
    done = run_fcctl("emulator", "--faults", "faults.yaml", cwd=tmp_path)
    assert (done.code, "unknown key 'explode' in faults" in done.err) == (3, True)
