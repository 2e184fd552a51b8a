"""The sandbox in the background: started by who needs it, found by the next, replaced when it died, gone when told."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote.base.processes import ps
from orchestrator.base.errors import CloudError, ConfigError
from orchestrator.emulator import processes
from orchestrator.emulator.guest import login_name
from orchestrator.machines import sandbox as module
from orchestrator.machines.sandbox import Sandbox
from orchestrator.machines.targets import SANDBOX_INSTANCE as INSTANCE
from orchestrator.machines.targets import SANDBOX_PROJECT as PROJECT
from orchestrator.machines.targets import SANDBOX_ZONES as ZONES
from orchestrator.machines.targets import SandboxTarget
from tests.integration.emulator.conftest import Gce
from tests.support import scratch
from tests.support.command import run_fcctl, source_environment
from tests.support.tiers import sampled
from tests.support.waiting import wait_for

pytest.importorskip("google.cloud.compute_v1")

PATH = f"projects/{PROJECT}/zones/{ZONES[0]}/instances/{INSTANCE}"


@pytest.fixture
def sandbox(private_home: Path) -> Iterator[Sandbox]:
    made = Sandbox()
    assert made.folder.is_relative_to(private_home), "never the real one"
    yield made
    with contextlib.suppress(ProcessLookupError, OSError, ValueError):
        os.kill(pid_of(made), signal.SIGCONT)
    made.stop()


def pid_of(sandbox: Sandbox) -> int:
    return int(json.loads((sandbox.folder / "daemon.json").read_text())["pid"])


def processes_about(folder: Path) -> list[str]:
    """Commands of the emulator of this folder, and of its instances."""
    rows = subprocess.run(["ps", "-A", "-ww", "-o", "stat=,command="], capture_output=True, text=True, check=True)
    found = [row for row in rows.stdout.splitlines() if str(folder) in row and not row.startswith("Z")]
    homes = [path / "home" for path in (folder / "disks").glob("*")]
    return found + [str(pid) for home in homes for pid in processes.of_home(home)]


def gone(pid: int) -> bool:
    return not ps(pid, "command") or "defunct" in ps(pid, "command")


def client(sandbox: Sandbox, key: Path) -> Gce:
    return Gce(sandbox.url(), key, PROJECT, ZONES[0], INSTANCE)


def wake(gce: Gce) -> Any:
    """What a newcomer's first wake is: a key for the machine that was there, then start."""
    before = gce.get()
    items = [{"key": "ssh-keys", "value": f"{login_name()}:{Path(f'{gce.key}.pub').read_text().strip()}"}]
    items += [{"key": item.key, "value": item.value} for item in before.metadata.items if item.key != "ssh-keys"]
    gce.do("set_metadata", metadata_resource={"fingerprint": before.metadata.fingerprint, "items": items})
    gce.do("start")
    return gce.get()


def say(gce: Gce, command: str) -> str:
    """Over ssh as soon as it answers, with the host keys that the machine published at its first boot, long ago."""
    said: list[str] = []

    def answers() -> bool:
        done = gce.ssh(command)
        said.append(done.stdout.strip())
        return done.returncode == 0

    wait_for(lambda: "fcctl-emulator-ssh-port" in gce.metadata())
    wait_for(answers)
    return said[-1]


def test_a_stopped_l4_machine_waits_to_be_woken(sandbox: Sandbox, key: Path) -> None:
    target = sandbox.resolve(SandboxTarget(name="sandbox", release="keep", keep_minutes=3))
    assert (target.kind, target.api_endpoint, target.release, target.keep_minutes) == ("gcp", sandbox.url(), "keep", 3)
    assert (target.project, target.instance, target.zones) == (PROJECT, INSTANCE, list(ZONES))
    gce = client(sandbox, key)
    machine = gce.get()
    assert machine.status == "TERMINATED"
    assert machine.machine_type.endswith("/g2-standard-4")
    assert machine.guest_accelerators[0].accelerator_type.endswith("/nvidia-l4")
    assert not machine.labels, "fcctl did not make it"
    wake(gce)
    python = say(gce, "command -v python3")
    assert python == str(Path(sys.executable).parent / "python3"), "the image brings a Python with what the jobs need"
    first = say(gce, "echo $FCCTL_EMULATOR_BOOT_ID")
    gce.do("stop")
    gce.do("start")
    assert say(gce, "echo $FCCTL_EMULATOR_BOOT_ID") not in ("", first)


def test_only_its_user_can_read_where_it_is(sandbox: Sandbox) -> None:
    sandbox.url()
    for path, mode in ((sandbox.folder, 0o700), (sandbox.folder / "daemon.json", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE((sandbox.folder / "state.json").stat().st_mode) == 0o600
    first = sandbox.url()
    sandbox.stop()
    assert sandbox.url().rsplit("/", 1)[1] != first.rsplit("/", 1)[1], "a secret dies with its emulator"


def test_it_outlives_the_command_and_the_next_finds_it(sandbox: Sandbox) -> None:
    code = "from orchestrator.machines.sandbox import Sandbox; print(Sandbox().url())"
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=source_environment(), stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    urls = {process.communicate()[0].strip() for process in started}
    assert len(urls) == 1, "three commands at once share one"
    assert sandbox.url() in urls
    assert len([row for row in processes_about(sandbox.folder) if "daemon" in row]) == 1


@pytest.mark.full
def test_stopped_it_leaves_no_process_and_its_machine_off(sandbox: Sandbox, key: Path) -> None:
    gce = client(sandbox, key)
    wake(gce)
    say(gce, "nohup sleep 600 > /dev/null 2>&1 &")
    assert sandbox.stop()
    assert processes_about(sandbox.folder) == []
    assert not sandbox.stop(), "there is none"
    sandbox.url()
    assert sandbox.running() == {PATH: "TERMINATED"}


@pytest.mark.full
def test_killed_it_is_replaced_and_its_machine_has_power_again(sandbox: Sandbox, key: Path) -> None:
    gce = client(sandbox, key)
    identifier = wake(gce).id
    say(gce, "echo kept > file; nohup sleep 600 > /dev/null 2>&1 &")
    before = pid_of(sandbox)
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: gone(before))
    assert sandbox.running() is None
    gce = client(sandbox, key)
    machine = gce.get()
    assert (machine.id, machine.status) == (identifier, "RUNNING")
    assert say(gce, "cat file") == "kept"
    assert not [row for row in processes_about(sandbox.folder) if "sleep 600" in row], "what ran before is gone"


def test_one_that_hangs_is_replaced(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.url()
    before = pid_of(sandbox)
    os.kill(before, signal.SIGSTOP)
    monkeypatch.setattr(module, "_ANSWER_LIMIT_S", 0.5)
    sandbox.url()
    assert pid_of(sandbox) != before
    wait_for(lambda: gone(before))


@pytest.mark.full
def test_one_of_other_code_is_replaced_unless_something_runs_on_it(
    sandbox: Sandbox, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gce = client(sandbox, key)
    wake(gce)
    before = pid_of(sandbox)
    monkeypatch.setattr(module, "_identity", lambda: "an upgrade")
    sandbox.url()
    assert pid_of(sandbox) == before, "a run may be going on there"
    gce.do("stop")
    sandbox.url()
    assert pid_of(sandbox) != before
    sandbox.url()
    assert json.loads((sandbox.folder / "daemon.json").read_text())["identity"] == "an upgrade"


def test_a_change_in_any_folder_of_the_emulator_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "orchestrator/emulator/world.py"
    source.parent.mkdir(parents=True)
    source.write_text("before")
    monkeypatch.setattr(module, "_package", lambda: tmp_path / "orchestrator")
    first = module._identity()
    source.write_text("after, and longer")
    assert module._identity() != first


@pytest.mark.full
def test_it_ends_when_nobody_has_needed_it_for_a_while(sandbox: Sandbox, key: Path) -> None:
    wake(client(sandbox, key))
    os.kill(pid_of(sandbox), signal.SIGKILL)
    wait_for(lambda: not sandbox._locked())
    gce = client(Sandbox(idle_s=2), key)  # its machine is on from the start, however long a busy computer takes
    pid = pid_of(sandbox)
    time.sleep(4)
    assert not gone(pid), "an instance runs"
    gce.call("stop")
    wait_for(lambda: gone(pid))
    assert processes_about(sandbox.folder) == []
    assert not (sandbox.folder / "daemon.json").exists()


def test_it_ends_when_its_folder_is_deleted(sandbox: Sandbox, key: Path) -> None:
    wake(client(sandbox, key))
    pid = pid_of(sandbox)
    subprocess.run(["rm", "-rf", str(sandbox.folder)], check=False)
    wait_for(lambda: gone(pid))
    assert processes_about(sandbox.folder) == []


@pytest.mark.parametrize("state", sampled(['{"version": 99}', "cut o"], ["cut o"]))
def test_a_state_that_cannot_be_read_is_set_aside(sandbox: Sandbox, state: str) -> None:
    sandbox.url()
    sandbox.stop()
    (sandbox.folder / "state.json").write_text(state)
    sandbox.url()
    assert sandbox.running() == {PATH: "TERMINATED"}
    assert (sandbox.folder / "unreadable" / "state.json").read_text() == state


def test_what_is_missing_is_said(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(module.shutil, "which", lambda *_, **__: None)
        with pytest.raises(ConfigError, match="sshd") as refused:
            sandbox.url()
    assert "openssh-server" in (refused.value.hint or "")
    with monkeypatch.context() as another:
        another.setattr(module.os, "geteuid", lambda: pwd.getpwnam("nobody").pw_uid)
        with pytest.raises(ConfigError, match="cannot log in"):
            sandbox.url()
        another.setattr(module.os, "geteuid", lambda: 2**31 - 7)
        with pytest.raises(ConfigError, match="cannot log in"):
            sandbox.url()
    blocked = sandbox.folder.parent / "file"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("")
    with pytest.raises(ConfigError, match="cannot be created"):
        Sandbox(blocked / "sandbox").url()
    monkeypatch.setattr(module, "_STARTED_AS", "orchestrator.emulator.nothing")
    with pytest.raises(CloudError, match="does not start") as refused_start:
        sandbox.url()
    assert "nothing" in (refused_start.value.cause or "")


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can become somebody else")
def test_a_plain_user_has_one_of_his_own() -> None:
    plain = next(
        entry for entry in pwd.getpwall() if entry.pw_uid and not entry.pw_shell.endswith(("nologin", "false"))
    )
    code = "from orchestrator.machines import sandbox\ns = sandbox.Sandbox()\ns.url()\n"
    code += "print(s.running(), s.folder)\ns.stop()"
    # The Python of these tests may lie where only root can look: that much is left to the plain user, and no more.
    became = ["setpriv", f"--reuid={plain.pw_uid}", f"--regid={plain.pw_gid}", "--clear-groups"]
    became += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    with tempfile.TemporaryDirectory(prefix="fcu", dir=scratch.folder()) as folder:
        os.chown(folder, plain.pw_uid, plain.pw_gid)
        env = {"PATH": os.environ["PATH"], "HOME": folder, "PYTHONPATH": source_environment()["PYTHONPATH"]}
        argv = [*became, sys.executable, "-c", code]
        done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "TERMINATED" in done.stdout
    assert folder in done.stdout


def test_the_command_stops_it(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.url()
    pid = pid_of(sandbox)
    done = run_fcctl("emulator", "--stop", cwd=tmp_path)
    assert done.code == 0, done.err
    assert gone(pid)
    again = run_fcctl("emulator", "--stop", "--json", cwd=tmp_path)
    assert (again.code, again.json["stopped"]) == (0, False)
