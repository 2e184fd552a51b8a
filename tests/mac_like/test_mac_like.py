"""That the nearest thing to a Mac is what it says; else all that passes on it would say nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
