from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.command import Fcctl, source_environment
from tests.support.scripts import launcher


@pytest.fixture
def busy(workspace: Path) -> Path:
    with (workspace / "fcctl.toml").open("a") as file:
        file.write('[targets.box]\nkind = "ssh"\nhost = "a"\n[targets.big-box]\nkind = "ssh"\nhost = "b"\n')
    for place, name in (("runs", "20261121t081530z-hello-box-3fa9c1"), ("active", "20261122t081530z-hello-box-000001")):
        (workspace / "results" / place / name).mkdir(parents=True)
    (workspace / "results" / "runs" / "not a run\n").mkdir()
    (workspace / "tune").mkdir()
    (workspace / "tune" / "saxpy.yaml").write_text("tune: saxpy\n")
    return workspace


def offered(fcctl: Fcctl, cwd: Path, line: str) -> list[str]:
    words = line.split(" ")
    env = {"_FCCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = fcctl(cwd=cwd, env=env)
    assert (done.code, done.err) == (0, "")
    return [text.removeprefix("plain,") for text in done.out.splitlines()]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("fcctl pul", ["pull-results"]),
        ("fcctl run ", ["hello", "preflight"]),
        ("fcctl run he", ["hello"]),
        ("fcctl run hello --on ", ["big-box", "box", "local", "sandbox"]),
        ("fcctl run hello --on bo", ["box"]),
        ("fcctl preflight --on ", ["big-box", "box", "local", "sandbox"]),
        ("fcctl doctor --on l", ["local"]),
        ("fcctl logs ", ["last", "20261122t081530z-hello-box-000001", "20261121t081530z-hello-box-3fa9c1"]),
        ("fcctl attach 3fa9", ["20261121t081530z-hello-box-3fa9c1"]),
        ("fcctl cancel 20261122", ["20261122t081530z-hello-box-000001"]),
        ("fcctl jobs show h", ["hello"]),
        ("fcctl jobs v", ["validate"]),
        ("fcctl tune ", ["saxpy"]),
        ("fcctl tune --adopt 3fa9", ["20261121t081530z-hello-box-3fa9c1"]),
        ("fcctl tune saxpy --compare ", ["random"]),
        ("fcctl run --dry", ["--dry-run"]),
        ("fcctl completion ", ["bash", "zsh", "fish", "install"]),
        ("fcctl results compare last 3fa9", ["20261121t081530z-hello-box-3fa9c1"]),
        ("fcctl run --resume 3fa9", ["20261121t081530z-hello-box-3fa9c1"]),
        ("fcctl hosts up bo", ["box"]),
        ("fcctl hosts audit --stop --others he", [""]),
        ("fcctl schedule add nightly --job he", ["hello"]),
        ("fcctl run hello --steps l", [""]),
        ("fcctl help gat", ["gates"]),
    ],
)
def test_what_is_offered(fcctl: Fcctl, busy: Path, line: str, names: list[str]) -> None:
    assert offered(fcctl, busy, line) == names


@pytest.mark.parametrize("trap", ["link", "fifo"])
def test_a_strangers_tags_cannot_hold_up_the_shell(fcctl: Fcctl, busy: Path, trap: str) -> None:
    tags = busy / "results/tags.toml"
    tags.unlink(missing_ok=True)
    tags.symlink_to("/dev/zero") if trap == "link" else os.mkfifo(tags)
    assert offered(fcctl, busy, "fcctl attach 3fa9") == ["20261121t081530z-hello-box-3fa9c1"]


def test_without_a_workspace_or_with_a_broken_one(fcctl: Fcctl, tmp_path: Path) -> None:
    assert offered(fcctl, tmp_path, "fcctl run --on ") == ["local", "sandbox"]
    (tmp_path / "fcctl.toml").write_text("[[[")
    assert offered(fcctl, tmp_path, "fcctl run --on ") == ["local", "sandbox"]


def test_it_is_quick_enough_to_type_along(busy: Path) -> None:
    """By processor time: the clock on the wall is other programs' too."""

    def took_s() -> float:
        env = {
            **source_environment(),
            "_FCCTL_COMPLETE": "bash_complete",
            "COMP_WORDS": "fcctl run he",
            "COMP_CWORD": "2",
        }
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(forked.FCCTL, cwd=busy, env=env, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert b"hello" in done.stdout
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds = [took_s() for _ in range(3)]
    assert min(seconds) < 0.5


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_its_shell(fcctl: Fcctl, tmp_path: Path, shell: str) -> None:
    done = fcctl("completion", shell, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "_FCCTL_COMPLETE" in done.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.out, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(fcctl: Fcctl, busy: Path) -> None:
    program = launcher(busy / "bin")
    (busy / "completion.bash").write_text(fcctl("completion", "bash", cwd=busy).out)
    script = (
        "source completion.bash; COMP_WORDS=(fcctl run hel); COMP_CWORD=2; _fcctl_completion fcctl hel run;"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environ = source_environment({"PATH": f"{program.parent}:{os.environ['PATH']}"})
    done = subprocess.run(["bash", "-c", script], cwd=busy, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "hello\n"


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("/bin/zsh", ".zfunc/_fcctl"),
        ("/usr/bin/bash", ".local/share/bash-completion/completions/fcctl"),
        ("fish", ".config/fish/completions/fcctl.fish"),
    ],
)
def test_install_writes_the_script_where_the_shell_looks(fcctl: Fcctl, tmp_path: Path, shell: str, place: str) -> None:
    env = {"HOME": str(tmp_path), "SHELL": shell}
    for _ in range(2):
        done = fcctl("completion", "install", cwd=tmp_path, env=env)
        assert done.code == 0, done.err
    assert (tmp_path / place).read_text() == fcctl("completion", Path(shell).name, cwd=tmp_path).out.removesuffix("\n")
    rc = tmp_path / ".zshrc"
    assert rc.is_file() == shell.endswith("zsh")
    assert not rc.is_file() or rc.read_text().count(".zfunc") == 1
    assert fcctl("completion", "install", cwd=tmp_path, env={**env, "SHELL": "/bin/csh"}).code == 2


@pytest.mark.parametrize("folder", ["", "zsh"])
def test_install_adds_a_line_of_its_own_to_the_zshrc_that_zsh_reads(fcctl: Fcctl, tmp_path: Path, folder: str) -> None:
    rc = tmp_path / folder / ".zshrc"
    rc.parent.mkdir(exist_ok=True)
    rc.write_text("export A=1")  # without an end of line
    env = {"HOME": str(tmp_path), "SHELL": "/bin/zsh", **({"ZDOTDIR": str(rc.parent)} if folder else {})}
    assert fcctl("completion", "install", cwd=tmp_path, env=env).code == 0
    first, second = rc.read_text().splitlines()
    assert (first, second.partition("=")[0]) == ("export A=1", "fpath")
