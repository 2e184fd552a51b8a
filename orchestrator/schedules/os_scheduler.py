"""Has the computer's scheduler call ``fcctl schedule tick`` every minute: systemd user timers or launchd. One entry
serves all schedules of a workspace, and changes of fcctl.toml need no new one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from orchestrator.base.errors import ConfigError, FcctlError
from orchestrator.base.files import disk_errors, make_folders, write_atomic
from orchestrator.schedules import launchd
from orchestrator.schedules.entry import Entry, call, must

if TYPE_CHECKING:
    from orchestrator.base.installation import Finding
    from orchestrator.schedules.fire import ScheduleStatus

Kind = Literal["systemd", "launchd"]


def detect() -> Kind:
    """Returns the scheduler of this computer. Raises ConfigError without one."""
    if sys.platform == "darwin":
        return "launchd"
    if shutil.which("systemctl") and call(["systemctl", "--user", "show-environment"]).returncode == 0:
        return "systemd"
    raise ConfigError(
        "found no scheduler on this computer",
        cause="no systemd user manager is available",
        hint="run a scheduler in the foreground: fcctl schedule serve",
    )


def render(kind: Kind, entry: Entry) -> dict[str, str]:
    """The files to be installed, by name."""
    if kind == "systemd":
        return {f"{entry.name}.service": _service(entry), f"{entry.name}.timer": _timer(entry)}
    return {launchd.file_name(entry): launchd.plist(entry)}


def install(kind: Kind, entry: Entry) -> list[str]:
    """Writes, checks and starts the entry; returns what was written. Raises FcctlError if the scheduler refuses."""
    folder = _folder(kind)
    with disk_errors("install the schedule", folder):
        make_folders(folder)
        for name, text in render(kind, entry).items():
            write_atomic(folder, name, text.encode())
    paths = [str(folder / name) for name in render(kind, entry)]
    _check_files(kind, paths)
    if kind == "launchd":
        launchd.load(entry)
    else:
        must(["systemctl", "--user", "daemon-reload"])
        must(["systemctl", "--user", "enable", "--now", f"{entry.name}.timer"])
    return paths


def uninstall(kind: Kind, entry: Entry) -> list[str]:
    """Take the entry away; what was removed, nothing if it was not there."""
    folder = _folder(kind)
    found = [folder / name for name in render(kind, entry) if (folder / name).exists()]
    if found and kind == "launchd":
        launchd.unload(entry)
    elif found:
        call(["systemctl", "--user", "disable", "--now", f"{entry.name}.timer"])  # one that does not run is stopped
    for path in found:
        path.unlink(missing_ok=True)
    if found and kind == "systemd":
        call(["systemctl", "--user", "daemon-reload"])
    return [str(path) for path in found]


def is_installed(workspace: Path) -> bool:
    """Whether this computer's scheduler calls the tick of a workspace."""
    try:
        return installed(detect(), Entry.of(workspace))
    except FcctlError:
        return False


def installed(kind: Kind, entry: Entry) -> bool:
    """Whether exactly this entry is there."""
    folder = _folder(kind)
    if kind == "launchd":
        return _text(folder / launchd.file_name(entry)) in launchd.plists(entry)
    return all(_text(folder / name) == text for name, text in render(kind, entry).items())


def findings(workspace: Path, statuses: Callable[[], Iterable[ScheduleStatus]]) -> list[Finding]:
    """What this computer refuses to the schedules that its own scheduler starts."""
    if sys.platform != "darwin" or not is_installed(workspace):
        return []
    failed = ((s.name, s.last.reason or "") for s in statuses() if s.last is not None)
    return list(launchd.findings(Entry.of(workspace), failed))


# ------------------------------------------------------------------------------------------------------------- systemd
def _service(entry: Entry) -> str:
    # In a command `$` begins a variable; in a setting it is a character.
    command = " ".join(_systemd_word(word).replace("$", "$$") for word in entry.argv)
    return f"""[Unit]
Description=fcctl: schedules of {_systemd_text(str(entry.folder))}

[Service]
Type=oneshot
WorkingDirectory={_systemd_text(str(entry.folder))}
Environment={_systemd_word(f"PATH={entry.path}")}
ExecStart={command}
# A firing continues after the tick that started it.
KillMode=process
"""


def _timer(entry: Entry) -> str:
    return f"""[Unit]
Description=fcctl: every minute, for {_systemd_text(str(entry.folder))}

[Timer]
OnCalendar=*-*-* *:*:00
AccuracySec=1s
Unit={entry.name}.service

[Install]
WantedBy=timers.target
"""


def _systemd_text(text: str) -> str:
    return text.replace("%", "%%")


def _systemd_word(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


# --------------------------------------------------------------------------------------------------------------- tools
def _folder(kind: Kind) -> Path:
    if kind == "launchd":
        return launchd.folder()
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "systemd" / "user"


def _check_files(kind: Kind, paths: Sequence[str]) -> None:
    if kind == "launchd" and shutil.which("plutil"):
        must(["plutil", "-lint", *paths])
    if kind == "systemd" and shutil.which("systemd-analyze"):
        must(["systemd-analyze", "--user", "verify", *paths])


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
