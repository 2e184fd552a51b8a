"""The files that a computer's scheduler gets, looked at by its own tools where they are."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from orchestrator.base.errors import FcctlError
from orchestrator.schedules import launchd, os_scheduler
from orchestrator.schedules.entry import Entry

AWKWARD = "work space/100%$HOME 'quoted' \"two\""


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
    assert content["ProgramArguments"] == list(entry.argv)
    assert content["StartInterval"] == 60
    assert content["AbandonProcessGroup"] is True
    assert content["StandardOutPath"] == content["StandardErrorPath"] == str(launchd.log_path(entry))
    assert content["WorkingDirectory"] == str(Path.home())  # macOS may refuse the workspace to it


def test_the_crontab_line_means_the_same_words_to_a_shell(entry: Entry) -> None:
    line = os_scheduler.render("crontab", entry)["crontab"].splitlines()[1]
    command = line.removeprefix("* * * * * ").replace(r"\%", "%").removesuffix(" >/dev/null 2>&1")
    words = shlex.split(command)
    assert words[:1] == ["env"]
    assert tuple(words[2:]) == entry.argv


#: A crontab that belongs to nobody: this user's own is not for tests to write.
STAND_IN = """#!/bin/sh
if [ "$1" = -l ]; then
  [ -e "$SPOOL/denied" ] && { echo "crontab: permission denied" >&2; exit 1; }
  [ -e "$SPOOL/tab" ] || { echo "no crontab for user" >&2; exit 1; }
  cat "$SPOOL/tab"
else
  cat > "$SPOOL/tab"
fi
"""


@pytest.fixture
def spool(tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SPOOL", str(tmp_path))
    return tmp_path


def test_a_crontab_keeps_what_its_user_wrote(spool: Path, entry: Entry) -> None:
    mine = "MAILTO=me\n# fcctl is nice\n5 4 * * * backup 'a b'\n"
    (spool / "tab").write_text(mine)
    for _ in range(2):
        os_scheduler.install("crontab", entry)
    other = Entry.of(entry.folder.parent)
    os_scheduler.install("crontab", other)
    text = (spool / "tab").read_text()
    assert text.startswith(mine)
    assert text.count("schedule tick") == 2
    assert os_scheduler.installed("crontab", entry)
    assert os_scheduler.uninstall("crontab", entry)
    assert os_scheduler.uninstall("crontab", entry) == []
    assert not os_scheduler.installed("crontab", entry)
    assert os_scheduler.installed("crontab", other)
    os_scheduler.uninstall("crontab", other)
    assert (spool / "tab").read_text() == mine


def test_a_crontab_that_cannot_be_read_is_not_overwritten(spool: Path, entry: Entry) -> None:
    (spool / "tab").write_text("5 4 * * * backup\n")
    (spool / "denied").touch()
    with pytest.raises(FcctlError, match="crontab -l"):
        os_scheduler.install("crontab", entry)
    assert (spool / "tab").read_text() == "5 4 * * * backup\n"
