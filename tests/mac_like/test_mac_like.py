"""That the nearest thing to a Mac is what it says; else all that passes on it would say nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.base.clock import SystemClock
from orchestrator.emulator.clock import EmulatedClock
from orchestrator.runs.git_source import GitSource

pytestmark = pytest.mark.skipif(not os.environ.get("MAC_LIKE"), reason="it is for make mac-like")


def test_every_python_says_that_it_is_macos_and_the_product_finds_no_proc() -> None:
    program = """if True:
        import os, sys
        from fcctl_remote.base import hostfacts
        print(sys.platform, os.uname().sysname, hostfacts.boot_id())
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="remote")
    assert done.stdout.split() == ["darwin", "Darwin"]


def test_paths_are_as_macos_has_them() -> None:
    assert " " in str(Path.home())
    assert not str(Path.home()).isascii()
    assert len(os.environ["TMPDIR"]) > 49


def test_names_differ_by_more_than_case(tmp_path: Path) -> None:
    (tmp_path / "Src").mkdir()
    (tmp_path / "Src/Kernel.cu").write_text("x")
    assert (tmp_path / "SRC/kernel.cu").read_text() == "x"
    with pytest.raises(FileExistsError):
        os.open(tmp_path / "src/KERNEL.CU", os.O_CREAT | os.O_EXCL)
    os.rename(tmp_path / "src/kernel.cu", tmp_path / "src/KERNEL.CU")
    listed = subprocess.run(["ls", "SRC"], cwd=tmp_path, capture_output=True, check=True).stdout
    assert listed == b"KERNEL.CU\n"


def test_of_two_names_for_one_file_none_is_sent(tmp_path: Path) -> None:
    """As git has them in a repository from a computer that tells them apart."""
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "a.cu").write_text("// nothing\n")
    (tmp_path / "kernel.cu").write_text("// small\n")
    blob = subprocess.run(
        [*git, "hash-object", "-w", "a.cu"], capture_output=True, text=True, check=True
    ).stdout.strip()
    index = "".join(f"100644 {blob}\t{name}\n" for name in ("Kernel.cu", "a.cu", "kernel.cu"))
    subprocess.run([*git, "update-index", "--index-info"], input=index, text=True, check=True)
    source = GitSource(tmp_path / ".git/cache").read(tmp_path)
    assert [entry.path for entry in source.entries] == ["a.cu"]
    (said,) = source.skipped
    assert said.startswith("Kernel.cu and kernel.cu: this computer's file system has one file for both")


def test_the_controller_and_the_emulator_ask_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(time, "clock_gettime", lambda which: asked.append(which) or 0.0)
    SystemClock().elapsed()
    EmulatedClock(0.0).now()
    assert len(set(asked)) == 1


@pytest.mark.parametrize(
    "typed",
    ["sed -r s/a/b/", "stat -c %s .", "date -d now", "readlink -e .", "cp --help", "xargs -r echo", "mktemp -p ."],
)
def test_options_that_only_gnu_has_are_refused(typed: str) -> None:
    assert subprocess.run(typed.split(), capture_output=True, check=False, input=b"").returncode == 64


@pytest.mark.parametrize("gui", [True, False])
def test_schedules_are_installed_twice_in_a_row(tmp_path: Path, gui: bool) -> None:
    """launchd is busy for a while after the first entry was unloaded."""
    env = {**os.environ, "HOME": str(tmp_path), **({} if gui else {"NO_GUI": "1"})}
    fcctl = [sys.executable, "-m", "orchestrator.cli.entry", "-C", str(tmp_path / "Documents"), "schedule", "install"]
    (tmp_path / "Documents").mkdir()
    (tmp_path / "Documents/fcctl.toml").write_text('[project]\nname = "x"\n')
    for _ in range(2):
        done = subprocess.run(fcctl, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
        assert "cannot access ~/Documents" in done.stderr
    (entry,) = (tmp_path / "Library/LaunchAgents").iterdir()
    assert ("Aqua" in entry.read_text()) is gui


def test_rsync_is_openrsync() -> None:
    done = subprocess.run(["rsync", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("openrsync")
    assert subprocess.run(["rsync", "--mkpath", "a", "b"], capture_output=True, check=False).returncode == 1


def test_what_macos_has_not_is_not_there() -> None:
    assert [shutil.which(name) for name in ("timeout", "setsid", "systemctl", "nproc")] == [None] * 4
    assert shutil.which("sed") is not None
