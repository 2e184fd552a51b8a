"""What fcctl asks of a computer's own scheduler, and where its files go."""

from __future__ import annotations

import hashlib
import os
import plistlib
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.base.errors import ConfigError, FcctlError
from orchestrator.schedules import os_scheduler
from orchestrator.schedules.due import Firing, Schedule
from orchestrator.schedules.fire import ScheduleStatus
from orchestrator.schedules.os_scheduler import Entry


class Tools:
    """Programs of a computer, their calls, and with what code each ends."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.calls: list[str] = []
        self.codes: dict[str, int | list[int]] = {}  # by the start of a call; several: one for each call

    def which(self, name: str) -> str | None:
        return name if name in self.there else None

    def run(self, argv: Sequence[str], **given: object) -> subprocess.CompletedProcess[str]:
        if argv[0] not in self.there:
            raise FileNotFoundError(argv[0])
        self.calls.append(" ".join(argv))
        code = next((code for start, code in self.codes.items() if self.calls[-1].startswith(start)), 0)
        if isinstance(code, list):
            code = code.pop(0) if code else 0
        return subprocess.CompletedProcess(list(argv), code, "", "it says no" if code else "")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, private_home: Path) -> Tools:
    made = Tools()
    monkeypatch.setattr(shutil, "which", made.which)
    monkeypatch.setattr(subprocess, "run", made.run)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return made


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    return Entry.of(tmp_path / "ws")


@pytest.mark.parametrize(
    ("platform", "there", "codes", "kind"),
    [
        ("darwin", {"systemctl"}, {}, "launchd"),
        ("linux", {"systemctl"}, {}, "systemd"),
        ("linux", {"systemctl"}, {"systemctl": 1}, None),  # no user manager runs: a container
        ("linux", set(), {}, None),
    ],
)
def test_which_scheduler_a_computer_has(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, platform: str, there: set[str], codes: dict[str, int | list[int]],
    kind: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "platform", platform)
    tools.there, tools.codes = there, codes
    if kind is not None:
        assert os_scheduler.detect() == kind
        return
    with pytest.raises(ConfigError) as refused:
        os_scheduler.detect()
    assert "schedule serve" in (refused.value.hint or "")


def test_systemd(tools: Tools, entry: Entry, private_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.there = {"systemctl"}
    folder = private_home / ".config" / "systemd" / "user"
    paths = [str(folder / f"{entry.name}.{kind}") for kind in ("service", "timer")]
    assert not os_scheduler.installed("systemd", entry)
    assert os_scheduler.uninstall("systemd", entry) == []
    assert tools.calls == []
    assert os_scheduler.install("systemd", entry) == paths
    assert tools.calls == ["systemctl --user daemon-reload", f"systemctl --user enable --now {entry.name}.timer"]
    assert os_scheduler.installed("systemd", entry)
    assert os_scheduler.installed("systemd", replace(entry, environment={"PATH": "/another/shell"}))
    assert not os_scheduler.installed("systemd", replace(entry, argv=("/another/python",)))
    Path(paths[1]).write_text("changed")
    assert not os_scheduler.installed("systemd", entry)
    tools.calls.clear()
    assert os_scheduler.uninstall("systemd", entry) == paths
    assert tools.calls == [f"systemctl --user disable --now {entry.name}.timer", "systemctl --user daemon-reload"]
    assert list(folder.iterdir()) == []
    monkeypatch.setenv("XDG_CONFIG_HOME", str(private_home / "xdg"))
    assert os_scheduler.install("systemd", entry)[0].startswith(str(private_home / "xdg" / "systemd" / "user"))


def test_launchd(tools: Tools, entry: Entry, private_home: Path) -> None:
    tools.there = {"launchctl"}
    tools.codes = {"launchctl bootout": 3}  # it was not loaded
    path = str(private_home / "Library" / "LaunchAgents" / f"dev.fcctl.{entry.name}.plist")
    gui, user = (f"{kind}/{os.getuid()}" for kind in ("gui", "user"))
    unloads = [f"launchctl bootout {domain}/dev.fcctl.{entry.name}" for domain in (gui, user)]
    assert os_scheduler.install("launchd", entry) == [path]
    asked = plistlib.loads(Path(path).read_bytes())
    assert {name: asked[name] for name in ("StartInterval", "RunAtLoad", "AbandonProcessGroup")} == {
        "StartInterval": 60, "RunAtLoad": True, "AbandonProcessGroup": True,
    }  # fmt: skip
    assert tools.calls == [*unloads, f"launchctl bootstrap {gui} {path}"]
    assert os_scheduler.installed("launchd", replace(entry, environment={"PATH": "/another/shell"}))
    assert not os_scheduler.installed("launchd", replace(entry, argv=("/another/python",)))
    tools.calls.clear()
    assert os_scheduler.uninstall("launchd", entry) == [path]
    assert tools.calls == unloads
    assert not os_scheduler.installed("launchd", entry)


@pytest.mark.parametrize("code", [5, 36, 37])
def test_launchd_is_busy_for_some_seconds_after_a_bootout(
    tools: Tools, entry: Entry, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    tools.there, tools.codes = {"launchctl"}, {"launchctl bootstrap": [code] * 10}
    os_scheduler.install("launchd", entry)
    assert now[0] == 5.0
    tools.codes = {"launchctl bootstrap": code}
    with pytest.raises(FcctlError, match=r"launchctl bootstrap gui/\d+` failed") as refused:
        os_scheduler.install("launchd", entry)
    assert now[0] == 15.0
    assert "launchctl enable gui/" in (refused.value.hint or "")


@pytest.mark.parametrize("code", [112, 125])
def test_launchd_without_a_login_at_the_screen(tools: Tools, entry: Entry, code: int) -> None:
    tools.there, tools.codes = {"launchctl"}, {"launchctl bootstrap gui/": code}
    (path,) = os_scheduler.install("launchd", entry)
    assert tools.calls[-1] == f"launchctl bootstrap user/{os.getuid()} {path}"
    assert plistlib.loads(Path(path).read_bytes())["LimitLoadToSessionType"] == "Background"
    assert os_scheduler.installed("launchd", entry)


@pytest.mark.parametrize(
    ("place", "log", "reason", "finding", "fix"),
    [
        ("ws", "", "", None, ""),
        (
            "Documents/ws",
            "",
            "",
            "cannot access ~/Documents",
            "schedule install --remove && mv {home}/Documents/ws {home}/ws && fcctl -C {home}/ws schedule install",
        ),
        ("desktop/a/ws", "", "", "cannot access ~/Desktop", "schedule install"),
        ("ws", "Operation not permitted: 'x'\n", "", "did not let", "Full Disk Access"),
        ("ws", "", "cannot connect to port 22: No route to host", "local network", "Local Network"),
    ],
)
def test_what_macos_refuses_to_what_launchd_starts(
    tools: Tools, private_home: Path, monkeypatch: pytest.MonkeyPatch, place: str, log: str, reason: str,
    finding: str | None, fix: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "platform", "darwin")
    tools.there = {"launchctl"}
    workspace = private_home / place
    workspace.mkdir(parents=True)
    last = Firing(outcome="finished", status="error", due=1.0, at=2.0, key="k", reason=reason)
    status = ScheduleStatus("nightly", Schedule(job="j", on="t", cron="@daily"), [], last, 0.0, False)
    assert os_scheduler.findings(workspace, lambda: [status]) == []  # nothing is installed
    os_scheduler.install("launchd", Entry.of(workspace))
    os_scheduler.log_path(Entry.of(workspace)).write_text(log)
    found = os_scheduler.findings(workspace, lambda: [status])
    if finding is None:
        assert found == []
        return
    (one,) = found
    assert finding in one.message
    assert fix.format(home=private_home) in (one.fix or "")
    os_scheduler.log_path(Entry.of(workspace)).write_text(log + "x" * 8192)
    assert len(os_scheduler.findings(workspace, lambda: [status])) == (0 if log else 1), "only the end of a log counts"
    os_scheduler.log_path(Entry.of(workspace)).write_text(log)
    os.utime(os_scheduler.log_path(Entry.of(workspace)), (time.time() - 400, time.time() - 400))
    assert len(os_scheduler.findings(workspace, lambda: [status])) == (0 if log else 1)  # an old complaint is over


@pytest.mark.parametrize(("kind", "tool"), [("systemd", "systemd-analyze"), ("launchd", "plutil")])
def test_files_are_checked_where_there_is_a_tool_and_not_started_if_it_refuses(
    tools: Tools, entry: Entry, kind: os_scheduler.Kind, tool: str
) -> None:
    tools.there, tools.codes = {tool, "systemctl", "launchctl"}, {tool: 1}
    with pytest.raises(FcctlError, match=tool) as refused:
        os_scheduler.install(kind, entry)
    assert refused.value.cause == "it says no"
    assert [call.partition(" ")[0] for call in tools.calls] == [tool]
    tools.codes.clear()
    assert os_scheduler.install(kind, entry)


def test_a_tool_that_refuses_or_is_not_there_is_named(tools: Tools, entry: Entry) -> None:
    with pytest.raises(FcctlError, match="systemctl --user daemon-reload") as refused:
        os_scheduler.install("systemd", entry)
    assert refused.value.cause == "systemctl"
    tools.there, tools.codes = {"systemctl"}, {"systemctl --user enable": 1}
    with pytest.raises(FcctlError, match="systemctl --user enable"):
        os_scheduler.install("systemd", entry)


def test_what_a_program_of_the_scheduler_said_is_read_whatever_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    done = os_scheduler.call(["sh", "-c", "echo $LC_ALL; echo no >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "C\n", "no\n"), "its messages are not translated"
    assert os_scheduler.call(["/nowhere/systemctl"]).returncode == 127
    with pytest.raises(FcctlError, match="`sh -c exit 3` failed") as refused:
        os_scheduler.must(["sh", "-c", "exit 3"])
    assert refused.value.cause == "exit code 3"
    with pytest.raises(FcctlError) as refused:
        os_scheduler.must(["sh", "-c", "printf %0600d 0 >&2; exit 3"])
    assert refused.value.cause == "0" * 500


@pytest.mark.parametrize(("folder", "name"), [("ws", "ws"), ("a" * 40, "a" * 32), ("---", "x")])
def test_an_entry_has_the_same_name_in_each_version_and_no_odd_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str
) -> None:
    monkeypatch.setenv("TZ", "UTC\nExecStart=evil")
    monkeypatch.setenv("PATH", "/mine::/bin")
    entry = Entry.of(tmp_path / folder)
    digest = hashlib.sha256(str(tmp_path / folder).encode()).hexdigest()
    assert entry.name == f"fcctl-{name}-{digest[:8]}"
    assert "TZ" not in entry.environment
    assert entry.environment["PATH"] == "/mine:/bin:/usr/local/bin:/usr/bin"


@pytest.mark.parametrize("platform", ["linux", "cygwin"])
def test_what_macos_protects_is_nothing_elsewhere(
    tools: Tools, private_home: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    tools.there = {"systemctl"}
    workspace = private_home / "Documents" / "ws"
    os_scheduler.install("systemd", Entry.of(workspace))
    assert os_scheduler.is_installed(workspace)
    assert os_scheduler.findings(workspace, list) == []


def test_without_a_scheduler_nothing_is_installed(tools: Tools, tmp_path: Path) -> None:
    assert not os_scheduler.is_installed(tmp_path)


@pytest.mark.parametrize("kind", ["systemd", "launchd"])
def test_a_firing_has_the_ledger_and_the_caps_of_the_shell_that_installed_it(
    kind: os_scheduler.Kind, tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.there = {"systemctl", "launchctl"}
    wanted = {"XDG_STATE_HOME": "/my state/100%", "FCCTL_BUDGET_PER_DAY_USD": "2", "TZ": "Europe/Berlin"}
    for name, value in {**wanted, "MY_SECRET": "s3cret", "FCCTL_WORKSPACE": "/elsewhere"}.items():
        monkeypatch.setenv(name, value)
    entry = Entry.of(tmp_path / "ws")
    assert wanted.items() <= entry.environment.items()
    text = "".join(os_scheduler.render(kind, entry).values())
    assert "s3cret" not in text
    assert "elsewhere" not in text
    if kind == "systemd":
        (line,) = (line for line in text.splitlines() if line.startswith("Environment="))
        assert '"XDG_STATE_HOME=/my state/100%%"' in line
    else:
        assert plistlib.loads(text.encode())["EnvironmentVariables"] == entry.environment
    os_scheduler.install(kind, entry)
    for name in wanted:
        monkeypatch.delenv(name)
    assert os_scheduler.installed(kind, Entry.of(tmp_path / "ws")), "of another shell"
