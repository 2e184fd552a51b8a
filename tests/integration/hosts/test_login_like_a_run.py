"""A person on the machine: the shell of ``hosts ssh``, and plain ``ssh`` through ``hosts ssh-config``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.forked import FCCTL
from tests.support.sshd import LoopbackSshd, free_port
from tests.support.virtual_cloud import CloudWorkspace
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace


def shell(workspace: Workspace, target: str, script: str) -> subprocess.CompletedProcess[str]:
    """``fcctl hosts ssh TARGET`` with ``script`` typed into it."""
    argv = [*FCCTL, "hosts", "ssh", target]
    env = workspace.env()
    return subprocess.run(argv, cwd=workspace.root, env=env, input=script, capture_output=True, text=True, check=False)


def test_the_shell_has_what_a_step_has(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> None:
    workspace = Workspace(tmp_path / "w", private_home, sshd)
    before = shell(workspace, "box", "echo plain $FCCTL_PYTHON\n")
    assert (before.returncode, before.stdout) == (0, "plain\n"), "a machine that fcctl has not been on"
    workspace.job("one", "steps:\n  - {id: one, run: 'echo $FCCTL_PYTHON $FCCTL_CUDA_ARCH'}\n")
    workspace.fcctl("run", "one", "--on", "box")
    log = workspace.fcctl("logs", "last", "--step", "one").stdout
    after = shell(workspace, "box", "echo $FCCTL_PYTHON $FCCTL_CUDA_ARCH; fcctl-host version; tmux ls\n")
    assert after.stdout.splitlines()[0] == log.strip()
    assert "fcctl host program" in after.stdout
    assert after.stdout.splitlines()[0].split()[1].isdigit()
    assert "gpu" not in after.stdout, "no log on a machine of others"


@pytest.mark.full
def test_the_virtual_environment_of_the_target_is_active_in_both(
    tmp_path: Path, private_home: Path, sshd: LoopbackSshd
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(sshd.home / "my env")], check=True)
    workspace = Workspace(tmp_path / "w", private_home, sshd, python="~/my env/bin/python3")
    show = "python3 -c 'import sys; print(sys.prefix)'; echo $VIRTUAL_ENV"
    workspace.job("one", f'steps:\n  - {{id: one, run: "{show}"}}\n')
    workspace.fcctl("run", "one", "--on", "box")
    expected = f"{sshd.home}/my env\n" * 2
    assert workspace.fcctl("logs", "last", "--step", "one").stdout == expected
    assert shell(workspace, "box", show + "\n").stdout == expected


@pytest.mark.full
def test_the_session_with_a_log_of_an_owned_machine(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> None:
    workspace = Workspace(tmp_path / "w", private_home, sshd, owned=True)
    workspace.fcctl("ps")
    subprocess.run([*FCCTL, "preflight", "--on", "box"], cwd=workspace.root, env=workspace.env(), check=False)
    for _ in range(2):
        assert "gpu: 1 windows" in shell(workspace, "box", "tmux ls\n").stdout
    log = sshd.home / ".fcctl/gpu.log"
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) >= 2)


def test_plain_ssh_while_the_machine_is_on(tmp_path: Path, private_home: Path, cloud: Emulator) -> None:
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud)
    config = private_home / ".ssh/config"
    config.parent.mkdir(exist_ok=True)
    config.write_text("Host other\n  User me\n")
    assert workspace.type("hosts", "ssh-config", "l4").code == 6, "nothing is known of it yet"
    workspace.type("hosts", "up", "l4", "--minutes", "10", "--yes", check=0)
    assert "log in: ssh l4" in workspace.type("hosts", "ssh-config", "l4", check=0).err
    workspace.type("hosts", "ssh-config", "l4", check=0)
    assert config.read_text() == f'Include "{config.parent}/fcctl_config"\nHost other\n  User me\n'
    assert config.parent.joinpath("fcctl_config").stat().st_mode & 0o777 == 0o600
    argv = ["ssh", "-F", str(config), "l4", "echo", "from", "there"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "from there\n"), done.stderr
    editor = ["ssh", "-F", str(config), "-T", "-D", str(free_port()), "l4", "bash"]  # as VS Code Remote does
    done = subprocess.run(editor, input="echo from bash\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "from bash\n"), done.stderr
    rsync = ["rsync", "-e", f"ssh -F {shlex.quote(str(config))}", str(config), "l4:copied"]
    subprocess.run(rsync, check=True, capture_output=True)
    assert subprocess.run([*argv[:4], "cat", "copied"], capture_output=True, text=True, check=True).stdout
    workspace.type("hosts", "down", "l4", check=0)
    assert config.read_text() == "Host other\n  User me\n"
    assert os.listdir(config.parent) == ["config"]
