from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fcctl_remote import wire
from orchestrator.base import installation
from orchestrator.base.errors import HostUnreachable
from orchestrator.machines.targets import LocalTarget, SshTarget, Target
from orchestrator.workspace import doctor
from tests.support.command import Fcctl
from tests.support.scripts import script
from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of the test's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def found(findings: object) -> dict[str, installation.Finding]:
    return {finding.id: finding for finding in findings}  # type: ignore[attr-defined]


def test_missing_programs_each_have_a_fix(programs: Path) -> None:
    script(programs / "apt-get", "true")
    findings = found(doctor.check_programs(runs_here=True))
    assert {name: finding.status for name, finding in findings.items()} == {
        "python": "ok", "git": "fail", "ssh": "warn", "rsync": "warn", "tmux": "fail",
    }  # fmt: skip
    assert findings["ssh"].fix == "sudo apt-get install -y openssh-client"
    assert findings["tmux"].fix == "sudo apt-get install -y tmux"
    assert found(doctor.check_programs(runs_here=False))["tmux"].status == "warn"


def test_the_fix_is_the_machine_s_own(programs: Path) -> None:
    assert installation.install_command("tmux") == "install tmux"
    script(programs / "brew", "true")
    assert installation.install_command("ssh") == "brew install openssh"


@pytest.mark.parametrize(
    ("says", "status", "message"),
    [
        ("echo 'rsync  version 3.2.7  protocol version 31'", "ok", "GNU rsync 3.2.7"),
        (
            "echo 'openrsync: protocol version 29'; echo 'rsync version 2.6.9 compatible'",
            "ok",
            "rsync, used as rsync 2.6.9",
        ),
        ("exit 1", "warn", "rsync cannot be started"),
    ],
)
def test_which_rsync(programs: Path, says: str, status: str, message: str) -> None:
    script(programs / "rsync", says)
    finding = found(doctor.check_programs(runs_here=False))["rsync"]
    assert finding.status == status
    assert message in finding.message


def test_a_program_that_does_not_start(programs: Path) -> None:
    script(programs / "git", "echo broken >&2; exit 3")
    finding = found(doctor.check_programs(runs_here=False))["git"]
    assert (finding.status, "cannot be started" in finding.message) == ("fail", True)


def test_a_workspace_that_is_no_repository(tmp_path: Path) -> None:
    """docs/configuration.md: .gitignore counts there too."""
    finding = doctor.check_git(tmp_path)
    assert (finding.status, finding.fix) == ("warn", f"git -C {tmp_path} init")
    assert ".gitignore still counts" in finding.message


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
def test_known_hosts(tmp_path: Path) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJhdNSZL5N1tyPrV7VaJ2bSUbHaoVPTjrYf3VdDBQYbu"
    known, config = tmp_path / "known hosts", tmp_path / "config"
    known.write_text(f"box.example {key}\n[other.example]:2200 {key}\n")
    config.write_text("Host alias\n  HostName other.example\n  Port 2200\n")
    targets = {
        "plain": {"host": "box.example"},
        "alias": {"host": "alias", "ssh_config": str(config)},
        "port": {"host": "box.example", "port": 23},
        "nobody": {"host": "nobody.example", "user": "me"},
    }
    made = [SshTarget(name=name, known_hosts=str(known), **values) for name, values in targets.items()]  # type: ignore[arg-type]
    findings = found(doctor.check_known_hosts([LocalTarget(name="local"), *made]))
    assert {name: f.status for name, f in findings.items()} == {
        "plain": "ok", "alias": "ok", "port": "warn", "nobody": "warn",
    }  # fmt: skip
    assert findings["nobody"].fix == "ssh -l me nobody.example true"


@dataclass
class Session:
    hello: wire.Hello
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass
class Hosts:
    """A connector with one answer."""

    answer: Session | HostUnreachable
    asked: list[str] = field(default_factory=list)

    def connect(self, target: Target) -> Session:
        self.asked.append(target.name)
        if isinstance(self.answer, HostUnreachable):
            raise self.answer
        return self.answer


def hello(tools: dict[str, str | None], *, free: int = 10**12, clock: float = 1000.0) -> wire.Hello:
    return wire.Hello(
        1, "ab", "3.8.18", "linux", "gpu", "me", "/home/me", "/home/me/.fcctl", "b", clock, 8, free, tools
    )


BOX = SshTarget(name="box", host="gpu-host")
ALL = {"tmux": "/usr/bin/tmux", "bash": "/bin/bash", "rsync": "/usr/bin/rsync"}


def test_a_target_in_order() -> None:
    session = Session(hello(ALL))
    findings = list(doctor.check_target(BOX, Hosts(session), lambda: 1001.0))  # type: ignore[arg-type]
    assert [finding.status for finding in findings] == ["ok", "ok"]
    assert session.closed


def test_what_a_target_lacks() -> None:
    poor = Session(hello({"bash": "/bin/bash"}, free=10**9, clock=2000.0))
    findings = found(doctor.check_target(BOX, Hosts(poor), lambda: 1000.0))  # type: ignore[arg-type]
    statuses = {name: finding.status for name, finding in findings.items()}
    assert statuses == {"reachable": "ok", "tmux": "fail", "rsync": "warn", "disk": "warn", "clock": "warn"}
    assert all(finding.fix for finding in findings.values() if finding.status != "ok")
    assert "+1000 s" in findings["clock"].message


def test_a_target_out_of_reach() -> None:
    error = HostUnreachable(
        "cannot reach gpu-host", reason="port", cause="connection refused", hint="ssh gpu-host true"
    )
    (finding,) = doctor.check_target(BOX, Hosts(error), lambda: 0.0)  # type: ignore[arg-type]
    assert finding.status == "fail"
    assert finding.message == "cannot reach gpu-host: connection refused"
    assert finding.fix == "ssh gpu-host true"


def test_the_command(fcctl: Fcctl, workspace: Path) -> None:
    done = fcctl("doctor", cwd=workspace)
    assert done.code == 0, done.out
    assert "1 warning" in done.err or "0 errors" in done.err
    (workspace / "jobs" / "broken.yaml").write_text("job: broken\n")
    done = fcctl("doctor", cwd=workspace)
    assert done.code == 10
    assert "jobs/broken.yaml:1: the job has no steps" in done.out
    assert "fix: fcctl jobs validate broken" in done.out
    findings = fcctl("doctor", "--json", "--on", "nowhere", cwd=workspace)
    assert findings.code == 10
    wrong = [f for f in findings.json["findings"] if f["status"] == "fail"]
    assert {f["id"] for f in wrong} == {"job broken", "nowhere"}
    assert findings.json["summary"]["fail"] == 2


def test_without_a_workspace(fcctl: Fcctl, tmp_path: Path) -> None:
    done = fcctl("doctor", cwd=tmp_path)
    assert done.code == 0, done.out
    assert "fix: fcctl init" in done.out
    (tmp_path / "fcctl.toml").write_text("x = 1\n")
    assert fcctl("doctor", cwd=tmp_path).code == 10


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("tmux") is None, reason="needs tmux")
def test_this_machine_and_one_over_ssh_as_targets(private_home: Path, sshd: LoopbackSshd, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w", private_home, sshd)
    for target in ("here", "box"):
        said = workspace.fcctl("doctor", "--on", target).stdout
        assert f"target {target}\n  ok    reachable: " in said
    assert "host key of [127.0.0.1]" in said
