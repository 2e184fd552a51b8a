"""From insert to delete through Google's library: states, operations, what stays on the disk and what does not stay."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote.base import processes as base_processes
from orchestrator.emulator import guest, processes
from orchestrator.emulator.clock import EmulatedClock
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import Latency, Scenario
from tests.mac_like import programs
from tests.support.living import is_running
from tests.support.waiting import wait_for

pytest.importorskip("google.cloud.compute_v1")
from google.cloud import compute_v1 as compute

PROJECT, ZONE = "proj", "us-central1-a"
Cloud = tuple[Emulator, Any]


def test_a_new_machine_can_be_logged_in_to_with_the_keys_it_published(gce: Any) -> None:
    vm = gce.create()
    assert vm.status == "RUNNING"
    assert vm.network_interfaces[0].access_configs[0].nat_i_p == "127.0.0.1"
    assert vm.guest_accelerators[0].accelerator_type.endswith("/nvidia-l4")
    assert set(gce.host_keys()) == {"ssh-ed25519", "ecdsa-sha2-nistp256"}
    assert gce.ssh("true").returncode == 0


def test_a_port_that_somebody_takes_before_sshd_does(gce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken, real, told = other.getsockname()[1], guest.free_port, []

        def free_port(wished: int | None) -> int:
            told.append(real(wished) if told else taken)
            return told[-1]

        monkeypatch.setattr(guest, "free_port", free_port)
        gce.create()
        assert gce.metadata()["fcctl-emulator-ssh-port"] == str(told[1])
        assert gce.ssh("true").returncode == 0


def test_a_port_that_somebody_takes_while_it_is_off(start: Callable[..., Cloud]) -> None:
    emulator, gce = start(scenario=Scenario(latency=Latency(boot=20)), clock=EmulatedClock(speed=0))
    operation = gce.insert()
    emulator.advance(21)
    gce.done(operation)
    port = int(gce.metadata()["fcctl-emulator-ssh-port"])
    for verb in ("stop", "start"):
        operation = getattr(gce.instances, f"{verb}_unary")(project=PROJECT, zone=ZONE, instance="vm")
        emulator.advance(1)
        gce.done(operation)
        assert "fcctl-emulator-ssh-port" not in gce.metadata(), "nobody is to knock at the port that it had"
    with socket.create_server(("127.0.0.1", port)):
        emulator.advance(20)
        assert gce.metadata()["fcctl-emulator-ssh-port"] != str(port)
        assert gce.ssh("true").returncode == 0


def test_the_login_shell_reads_the_files_of_the_disk(emulator: Emulator, gce: Any) -> None:
    """Not the ``.bashrc`` of the computer's user, which may take seconds and lead to other programs."""
    gce.create()
    home = emulator.home("vm")
    (home / ".bashrc").write_text("export WHOSE=disk\n")
    shell = pwd.getpwuid(os.getuid()).pw_shell
    env = {"HOME": str(home), "SSH_CLIENT": "127.0.0.1 2 2", "SHLVL": "0"}
    as_it_does = subprocess.run([shell, "-c", "echo $WHOSE"], env=env, capture_output=True, text=True, check=True)
    assert gce.ssh("echo $WHOSE").stdout == as_it_does.stdout


def test_operations_pass_through_their_states(start: Callable[..., Cloud]) -> None:
    emulator, gce = start(clock=EmulatedClock(speed=0))
    seen: list[tuple[str, ...]] = []
    operation = gce.insert()

    def look() -> None:
        now = gce.operations.get(project=PROJECT, zone=ZONE, operation=operation.name)
        there = [instance.status for instance in gce.instances.list(project=PROJECT, zone=ZONE)]
        state = (compute.Operation.Status(now.status).name, *there)
        if state not in seen:
            seen.append(state)

    for _ in range(40):
        look()
        emulator.advance(0.01)
    assert seen == [
        ("PENDING",),
        ("RUNNING", "PROVISIONING"),
        ("RUNNING", "STAGING"),
        ("DONE", "RUNNING"),
    ]
    ended = gce.operations.get(project=PROJECT, zone=ZONE, operation=operation.name)
    assert ended.insert_time < ended.end_time
    assert ended.progress == 100
    assert ended.target_id == gce.get().id


def test_what_macos_hides_ends_too(
    start: Callable[..., Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ps shows no environment of Apple's own programs: the session of each login is recorded instead."""
    programs.install_ps(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(base_processes, "IS_LINUX", False)
    _, gce = start()
    gce.create()
    quiet = "> /dev/null 2>&1 < /dev/null &"
    sleep = f"sleep 1{os.getpid()}"
    gce.ssh(f"{sleep}0 {quiet} nohup {sleep}1 {quiet} tmux new -d '{sleep}2 & nohup {sleep}3'")

    def sleepers() -> int:
        return base_processes.rows("-A", "-ww", "-o", "command=").count(f"\n{sleep}")

    wait_for(lambda: sleepers() == 4)
    gce.do("stop")
    assert sleepers() == 0


def test_the_disk_stays_and_everything_else_goes(emulator: Emulator, gce: Any) -> None:
    gce.create()
    before = gce.host_keys()
    nohup = "setsid" if shutil.which("setsid") else "nohup"  # macOS has no setsid
    sleeping = f"tmux new -d -s job 'sleep 1000'; {nohup} sleep 1001 > /dev/null 2>&1 < /dev/null & tmux ls | wc -l"
    done = gce.ssh(f"echo kept > file; touch $TMPDIR/lost; {sleeping}")
    assert done.stdout.split() == ["1"], done.stderr
    home = emulator.home("vm")
    machine = emulator.hypervisor.running[emulator.machine("vm").path]
    wait_for(lambda: len(machine._processes()) >= 3)  # one that is starting its program is not found meanwhile
    gce.do("stop")
    assert processes.of_home(home) == set()
    vm = gce.get()
    assert vm.status == "TERMINATED"
    assert not vm.network_interfaces[0].access_configs[0].nat_i_p
    gce.do("stop")  # twice is no error, nor is a second start
    gce.do("start")
    gce.do("start")
    assert gce.ssh("cat file; ls $TMPDIR/lost; tmux ls").stdout.split() == ["kept"]
    assert gce.host_keys() == before


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has taken effect: a process finishes its system call first."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    except OSError:  # it ended; or no Linux
        return True


def test_suspend_freezes_and_resume_goes_on(emulator: Emulator, gce: Any) -> None:
    gce.create()
    count = "i=0; while true; do i=$((i+1)); echo $i >> ticks; sleep 0.02; done"
    assert gce.ssh(f"tmux new -d -s ticks '{count}'").returncode == 0
    ticks = emulator.home("vm") / "ticks"
    wait_for(lambda: ticks.exists() and ticks.stat().st_size)
    gce.do("suspend")
    assert gce.status() == "SUSPENDED"
    machine = emulator.hypervisor.running[emulator.machine("vm").path]
    wait_for(lambda: all(map(is_stopped, machine._processes())))
    frozen = ticks.stat().st_size
    time.sleep(0.1)
    assert ticks.stat().st_size == frozen
    gce.do("resume")
    assert gce.status() == "RUNNING"
    wait_for(lambda: ticks.stat().st_size > frozen)


def test_a_suspended_instance_that_is_stopped_leaves_no_session(emulator: Emulator, gce: Any) -> None:
    gce.create()
    machine = emulator.hypervisor.running[emulator.machine("vm").path]
    *argv, _command = gce.ssh("true").args
    session = subprocess.Popen([*argv, "sleep 1000"], stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(machine._tree()) >= 3)  # listener, session, what it runs
        gce.do("suspend")
        left = machine._tree()
        gce.do("stop")
        assert gce.status() == "TERMINATED"
        assert [pid for pid in left if is_running(pid)] == []
    finally:
        session.kill()
        session.wait()


def test_keys_of_the_metadata_come_and_go(gce: Any) -> None:
    vm = gce.create()
    argv = gce.ssh("true").args
    items = [item for item in vm.metadata.items if item.key != "ssh-keys"]
    gce.do("set_metadata", metadata_resource=compute.Metadata(items=items, fingerprint=vm.metadata.fingerprint))
    assert gce.ssh("true").args == argv
    assert gce.ssh("true").returncode == 255


@pytest.mark.parametrize(
    "metadata", [{"enable-oslogin": "TRUE"}, {"ssh-keys": "somebody-else:ssh-ed25519 AAAA"}], ids=["os-login", "name"]
)
def test_keys_that_do_not_count(gce: Any, metadata: dict[str, str]) -> None:
    gce.create(metadata=metadata)
    assert "Permission denied" in gce.ssh("true").stderr


def test_logins_are_refused_while_the_system_boots(start: Callable[..., Cloud]) -> None:
    emulator, gce = start(scenario=Scenario(latency=Latency(boot=20, login=10)), clock=EmulatedClock(speed=0))
    operation = gce.insert()
    emulator.advance(1)
    gce.done(operation)
    assert gce.status() == "RUNNING"
    assert "fcctl-emulator-ssh-port" not in gce.metadata()
    emulator.advance(20)
    port = int(gce.metadata()["fcctl-emulator-ssh-port"])
    assert port > 0
    with pytest.raises(Exception, match="not found"):
        gce.host_keys()
    emulator.advance(10)
    assert gce.ssh("true").returncode == 0
