"""Words that reach a host's shell, and text of a host that reaches a terminal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import ConfigError, HostUnusable, NotFoundError
from orchestrator.machines.connect.bootstrap import NO_PYTHON, NO_RUNNER, agent_command
from orchestrator.machines.connect.ssh.terminal import attach_argv
from orchestrator.machines.connect.transport import LOADER, command, printable
from orchestrator.machines.targets import LocalTarget, SandboxTarget, SshTarget
from tests.support.scripts import script

RUN = "20261121t081530z-phase1-l4-3fa9c1"
WORDS = st.lists(st.text(st.characters(blacklist_characters="\n\r\0", blacklist_categories=["Cs"])), min_size=1)


def through(shell: str, line: str) -> str:
    """What ``line`` prints when a login shell starts the loader that reads it."""
    done = subprocess.run([shell, "-c", LOADER], input=line.encode() + b"\n", capture_output=True, check=True)
    return done.stdout.decode()


@given(WORDS)
def test_words_survive_the_shell(words: list[str]) -> None:
    assert through("/bin/sh", command(["printf", "%s\\0", *words])) == "".join(word + "\0" for word in words)


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh"])
def test_loader_means_the_same_to_every_shell(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    word = "a 'b' \"c\" $HOME `id` !x \\ ünï *"
    assert through(program, command(["printf", "%s", word])) == word


def test_loader_is_one_line_all_shells_read_alike() -> None:
    quoted = LOADER.split("'")[1]
    assert LOADER.count("'") == 2
    assert not set("!\\\n") & set(quoted)


def test_input_after_the_line_is_the_program_s() -> None:
    done = subprocess.run(["/bin/sh", "-c", LOADER], input=b"exec cat\nrest\n", capture_output=True, check=True)
    assert done.stdout == b"rest\n"


def test_folder_with_odd_name(tmp_path: Path) -> None:
    folder = tmp_path / "-o 'd\"d $x"
    folder.mkdir()
    assert through("/bin/sh", command(["pwd"], cwd=str(folder))).strip() == str(folder)


def test_line_breaks_are_refused() -> None:
    with pytest.raises(HostUnusable):
        command(["echo", "a\nb"])
    with pytest.raises(HostUnusable):
        agent_command("ab", "/x\ny")


def start(root: str, python: str | None, home: Path) -> tuple[int, str]:
    argv, env = ["/bin/sh", "-c", agent_command("cafe", root, python)], {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    return done.returncode, done.stdout


def test_start_script(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    runner = home / ".fcctl" / "runner"
    runner.mkdir(parents=True)
    assert start("~/.fcctl", None, home)[0] == NO_RUNNER
    (runner / "cafe.pyz").write_text("import sys; print(sys.argv[1:], sys.flags.isolated, sys.flags.no_site)")
    for root in ("~/.fcctl", "~/.fcctl/", str(home / ".fcctl")):
        words = ["--root", str(home / ".fcctl"), "agent"]
        assert start(root, sys.executable, home) == (0, f"{words} 1 1\n")
    old = tmp_path / "old python"
    for version in ("2.7.18", "3.6.8", "3.7.0", "4.0.0"):
        script(old, f"echo Python {version}")
        assert start("~/.fcctl", str(old), home)[0] == NO_PYTHON
    assert start("~/.fcctl", "/nowhere/python", home)[0] == NO_PYTHON


def test_a_python_off_the_path_is_found(tmp_path: Path) -> None:
    runner = tmp_path / ".fcctl" / "runner"
    runner.mkdir(parents=True)
    (runner / "cafe.pyz").write_text("import sys; print(sys.version_info[:2] >= (3, 8))")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python3").symlink_to(sys.executable)
    argv, env = ["/bin/sh", "-c", agent_command("cafe", "~/.fcctl")], {"HOME": str(tmp_path), "PATH": "/x"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("plain ünï", "plain ünï"),
        ("\x1b[31mred\x1b[0m", "[31mred [0m"),
        ("a\rb\x00c\x9bd", "a b c d"),
        ("bidi \u202e evil", "bidi   evil"),
        ("two\nlines\n", "two\nlines"),
    ],
)
def test_printable(raw: str, safe: str) -> None:
    assert printable(raw) == safe


def test_printable_is_bounded() -> None:
    assert printable("x" * 5000, 10) == "x" * 10 + "…"


def test_attach_locally() -> None:
    assert attach_argv(LocalTarget(name="local"), RUN) == ["tmux", "attach", "-t", f"=fcctl-{RUN}"]


def test_attach_over_ssh(private_home: Path) -> None:
    given = {"identity_file": "/k e/y", "known_hosts": "/kh", "proxy_jump": "j1,j2"}
    argv = attach_argv(SshTarget(name="box", host="gpu", user="ada", port=2200, **given), RUN)
    assert argv[:2] == ["ssh", "-t"]
    assert argv[-3:] == ["--", "gpu", f"tmux attach -t =fcctl-{RUN}"]
    for option in ("Port=2200", "User=ada", 'IdentityFile="/k e/y"', "UserKnownHostsFile=/kh"):
        assert option in argv
    assert argv[argv.index("-J") + 1] == "j1,j2"
    # OpenSSH itself takes them: -G prints what it would do.
    found = subprocess.run([argv[0], "-G", *argv[2:-1]], capture_output=True, text=True, check=True).stdout
    assert {"port 2200", "user ada", "identityfile /k e/y", "proxyjump j1,j2", "stricthostkeychecking true"} <= set(
        found.splitlines()
    )


def test_attach_refuses_what_is_no_run() -> None:
    with pytest.raises(NotFoundError):
        attach_argv(LocalTarget(name="local"), "x; rm -rf /")
    with pytest.raises(ConfigError):
        attach_argv(SandboxTarget(name="s"), RUN)
