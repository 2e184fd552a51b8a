"""What fcctl asks of a computer's own scheduler, and where its files go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.base.errors import ConfigError, FcctlError
from orchestrator.schedules import os_scheduler
from orchestrator.schedules.os_scheduler import Entry


class Tools:
    """Programs of a computer, their calls, and with what code each ends."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.calls: list[str] = []
        self.codes: dict[str, int] = {}

    def which(self, name: str) -> str | None:
        return name if name in self.there else None

    def run(self, argv: Sequence[str], **given: object) -> subprocess.CompletedProcess[str]:
        if argv[0] not in self.there:
            raise FileNotFoundError(argv[0])
        self.calls.append(" ".join(argv))
        code = next((code for start, code in self.codes.items() if self.calls[-1].startswith(start)), 0)
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
        ("darwin", {"crontab", "systemctl"}, {}, "launchd"),
        ("linux", {"crontab", "systemctl"}, {}, "systemd"),
        ("linux", {"crontab", "systemctl"}, {"systemctl": 1}, "crontab"),  # no user manager runs: a container
        ("aix", {"crontab"}, {}, "crontab"),
        ("linux", {"systemctl"}, {"systemctl": 1}, None),
        ("linux", set(), {}, None),
    ],
)
def test_which_scheduler_a_computer_has(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, platform: str, there: set[str], codes: dict[str, int],
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
    domain = f"gui/{os.getuid()}"
    assert os_scheduler.install("launchd", entry) == [path]
    assert tools.calls == [f"launchctl bootout {domain} {path}", f"launchctl bootstrap {domain} {path}"]
    assert os_scheduler.installed("launchd", entry)
    tools.calls.clear()
    assert os_scheduler.uninstall("launchd", entry) == [path]
    assert tools.calls == [f"launchctl bootout {domain} {path}"]
    assert not os_scheduler.installed("launchd", entry)


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
