"""The files that a computer's scheduler gets, looked at by its own tools where they are."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.schedules import os_scheduler
from orchestrator.schedules.os_scheduler import Entry

AWKWARD = "work space/100%$HOME 'quoted' \"two\" & <Zoë> \N{GREEK SMALL LETTER MU}"


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    folder = tmp_path / AWKWARD
    folder.mkdir(parents=True)
    return Entry.of(folder)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
def test_systemd_accepts_the_units(entry: Entry, tmp_path: Path) -> None:
    units = os_scheduler.render("systemd", entry)
    for name, text in units.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", *(str(tmp_path / name) for name in units)],
        capture_output=True, text=True, check=False, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert entry.name not in done.stderr, done.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
def test_systemd_calls_it_every_minute() -> None:
    timer = os_scheduler.render("systemd", Entry.of(Path("/ws")))
    line = next(x for t in timer.values() for x in t.splitlines() if x.startswith("OnCalendar="))
    done = subprocess.run(
        ["systemd-analyze", "calendar", "--iterations=2", line.removeprefix("OnCalendar=")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Normalized form: *-*-* *:*:00" in done.stdout


def test_launchd_gets_the_same_words(entry: Entry) -> None:
    (text,) = os_scheduler.render("launchd", entry).values()
    content = plistlib.loads(text.encode())
    assert content["ProgramArguments"][5] == str(entry.folder)
    assert content["ProgramArguments"] == list(entry.argv)
    assert content["StartInterval"] == 60
    assert content["AbandonProcessGroup"] is True
    assert content["StandardOutPath"] == content["StandardErrorPath"] == str(os_scheduler.log_path(entry))
    assert content["WorkingDirectory"] == str(Path.home())  # macOS may refuse the workspace to it
