"""Folders of a search among temporary files: removed by their owner, and after it was killed by whoever comes next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fcctl_tune.workers import folders

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from fcctl_tune.workers import folders
with folders.temporary() as path:
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def owner(place: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(ROOT / "remote")}
    return subprocess.Popen(
        [sys.executable, "-c", HOLD], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_a_folder_is_its_owners_and_goes_with_it(place: Path) -> None:
    with folders.temporary() as path:
        assert os.stat(path).st_mode & 0o777 == 0o700
        assert [name.name for name in place.iterdir()] == [Path(path).name]
        (Path(path) / "cpu").mkdir()
        (Path(path) / "cpu" / "some").touch()
        (Path(path) / "tls.pem").write_text("a key")
        folders.sweep()  # another search begins
        assert (Path(path) / "tls.pem").exists()
    assert not list(place.iterdir())


def test_what_a_killed_one_left_goes_and_what_is_in_use_stays(place: Path) -> None:
    with owner(place) as killed, owner(place) as living:
        assert killed.stdout is not None
        assert living.stdout is not None
        left, used = (Path(said.readline().strip()) for said in (killed.stdout, living.stdout))
        for folder in (left, used):
            (folder / "tls.pem").write_text("a key")
            (folder / "cpu").mkdir()
            (folder / "cpu" / "to").symlink_to(place / "somewhere")
        (place / "somewhere").mkdir()
        (place / "somewhere" / "file").touch()
        os.utime(used, (0, 0))  # however old it is
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        folders.sweep()
        assert not left.exists()
        assert (used / "tls.pem").exists()
        assert (place / "somewhere" / "file").exists()
        living.communicate("")
    assert not used.exists()


def test_what_nobody_can_be_sure_of_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fcctl-tune-old", "fcctl-tune-of-somebody", "somewhere"):
        (place / name).mkdir()
    (place / "fcctl-tune-file").touch()
    (place / "fcctl-tune-link").symlink_to(place / "somewhere")
    (place / "somewhere" / folders.LOCK).touch()
    before = sorted(place.rglob("*"))
    folders.sweep()  # what is no folder, and what has no lock
    assert sorted(place.rglob("*")) == before
    (place / "fcctl-tune-of-somebody" / folders.LOCK).touch()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    before = sorted(place.rglob("*"))
    folders.sweep()  # what is another's
    assert sorted(place.rglob("*")) == before
