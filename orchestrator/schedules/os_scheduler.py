"""Has the computer's scheduler call ``fcctl schedule tick`` every minute: systemd user timers, launchd, or crontab. One
entry serves all schedules of a workspace, and changes of fcctl.toml need no new one."""

from __future__ import annotations

import hashlib
import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.base.errors import ConfigError, FcctlError
from orchestrator.base.files import alone_in, disk_errors, make_folders, write_atomic
from orchestrator.base.run_id import slug
from orchestrator.money.prices import file as price_file

Kind = Literal["systemd", "launchd", "crontab"]


@dataclass(frozen=True)
class Entry:
    """The entry of the scheduler: command, folder and PATH."""

    name: str
    argv: tuple[str, ...]
    folder: Path
    path: str  # PATH for gcloud, ssh and what the jobs' own steps need

    @classmethod
    def of(cls, workspace: Path) -> Entry:
        digest = hashlib.sha256(str(workspace).encode()).hexdigest()[:8]
        fcctl = (sys.executable, "-P", "-m", "orchestrator.cli.entry")  # -P: the workspace's modules are not Python's
        argv = (*fcctl, "-C", str(workspace), "--quiet", "schedule", "tick")
        return cls(f"fcctl-{slug(workspace.name)[:32] or 'workspace'}-{digest}", argv, workspace, _path())


def _path() -> str:
    parts = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(p for p in [*parts, "/usr/local/bin", "/usr/bin", "/bin"] if p))


def detect() -> Kind:
    """Returns the scheduler of this computer. Raises ConfigError without one."""
    if sys.platform == "darwin":
        return "launchd"
    if shutil.which("systemctl") and _call(["systemctl", "--user", "show-environment"]).returncode == 0:
        return "systemd"
    if shutil.which("crontab"):
        return "crontab"
    raise ConfigError(
        "this computer has no scheduler for users",
        cause="neither a systemd user manager nor crontab is here",
        hint="keep one running instead: fcctl schedule serve",
    )


def render(kind: Kind, entry: Entry) -> dict[str, str]:
    """The files to be installed, by name; for crontab its one line."""
    if kind == "systemd":
        return {f"{entry.name}.service": _service(entry), f"{entry.name}.timer": _timer(entry)}
    if kind == "launchd":
        return {f"dev.fcctl.{entry.name}.plist": _plist(entry)}
    return {"crontab": _cron_line(entry)}


def install(kind: Kind, entry: Entry) -> list[str]:
    """Writes, checks and starts the entry; returns what was written. Raises FcctlError if the scheduler refuses."""
    if kind == "crontab":
        with _crontab_alone():
            _write_crontab([*_others(entry), *render(kind, entry)["crontab"].splitlines()])
        return ["one line in this user's crontab (crontab -l)"]
    folder = _folder(kind)
    with disk_errors("install the schedule", folder):
        make_folders(folder)
        for name, text in render(kind, entry).items():
            write_atomic(folder, name, text.encode())
    paths = [str(folder / name) for name in render(kind, entry)]
    _check_files(kind, paths)
    for argv in _start(kind, entry, folder):
        _must(argv)
    return paths


def uninstall(kind: Kind, entry: Entry) -> list[str]:
    """Take the entry away; what was removed, nothing if it was not there."""
    if kind == "crontab":
        with _crontab_alone():
            others = _others(entry)
            if others == _crontab():
                return []
            _write_crontab(others)
        return ["the line in this user's crontab"]
    folder = _folder(kind)
    found = [folder / name for name in render(kind, entry) if (folder / name).exists()]
    for argv in _stop(kind, entry, folder) if found else ():
        _call(argv)  # one that was not running is as good as stopped
    for path in found:
        path.unlink(missing_ok=True)
    if found and kind == "systemd":
        _call(["systemctl", "--user", "daemon-reload"])
    return [str(path) for path in found]


def is_installed(workspace: Path) -> bool:
    """Whether this computer's scheduler calls the tick of a workspace."""
    try:
        return installed(detect(), Entry.of(workspace))
    except FcctlError:
        return False


def installed(kind: Kind, entry: Entry) -> bool:
    """Whether exactly this entry is there."""
    if kind == "crontab":
        lines = render(kind, entry)["crontab"].splitlines()
        there = _crontab()
        return any(there[i : i + len(lines)] == lines for i in range(len(there)))
    folder = _folder(kind)
    return all(_text(folder / name) == text for name, text in render(kind, entry).items())


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
# A firing goes on after the tick that began it.
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


# ------------------------------------------------------------------------------------------------------------- launchd
def _plist(entry: Entry) -> str:
    content = {
        "Label": f"dev.fcctl.{entry.name}",
        "ProgramArguments": list(entry.argv),
        "WorkingDirectory": str(entry.folder),
        "EnvironmentVariables": {"PATH": entry.path},
        "StartInterval": 60,
        "RunAtLoad": True,
        "AbandonProcessGroup": True,  # a firing outlives the tick that began it
        "ProcessType": "Background",
    }
    return plistlib.dumps(content).decode()


# ------------------------------------------------------------------------------------------------------------- crontab
def _mark(entry: Entry) -> str:
    return f"# {entry.name}: fcctl schedules of {entry.folder}"


def _cron_line(entry: Entry) -> str:
    # cron takes an unescaped % for a line break.
    command = shlex.join(["env", f"PATH={entry.path}", *entry.argv]).replace("%", r"\%")
    return f"{_mark(entry)}\n* * * * * {command} >/dev/null 2>&1\n"


def _crontab() -> list[str]:
    shown = _call(["crontab", "-l"])
    if shown.returncode == 0:
        return shown.stdout.splitlines()
    if "no crontab" in shown.stderr.lower():
        return []
    # Writing after a failed read would wipe what the user has.
    raise _refused(["crontab", "-l"], shown)


def _others(entry: Entry) -> list[str]:
    lines, kept = _crontab(), []
    mark = f"# {entry.name}: "
    skip = False
    for line in lines:
        if skip and "schedule tick" in line:
            skip = False
            continue
        skip = line.startswith(mark)
        if not skip:
            kept.append(line)
    return kept


@contextmanager
def _crontab_alone() -> Iterator[None]:
    """One fcctl of this user at a time reads its crontab and writes it back."""
    folder = price_file.folder()
    with disk_errors("lock the crontab", folder):
        make_folders(folder, 0o700)
        with alone_in(folder):
            yield


def _write_crontab(lines: Sequence[str]) -> None:
    _must(["crontab", "-"], text="".join(f"{line}\n" for line in lines))


# --------------------------------------------------------------------------------------------------------------- tools
def _folder(kind: Kind) -> Path:
    if kind == "launchd":
        return Path.home() / "Library" / "LaunchAgents"
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "systemd" / "user"


def _check_files(kind: Kind, paths: Sequence[str]) -> None:
    if kind == "launchd" and shutil.which("plutil"):
        _must(["plutil", "-lint", *paths])
    if kind == "systemd" and shutil.which("systemd-analyze"):
        _must(["systemd-analyze", "--user", "verify", *paths])


def _start(kind: Kind, entry: Entry, folder: Path) -> list[list[str]]:
    if kind == "systemd":
        return [
            ["systemctl", "--user", "daemon-reload"],
            ["systemctl", "--user", "enable", "--now", f"{entry.name}.timer"],
        ]
    domain, plist = f"gui/{os.getuid()}", str(folder / f"dev.fcctl.{entry.name}.plist")
    _call(["launchctl", "bootout", domain, plist])  # an older entry under this label
    return [["launchctl", "bootstrap", domain, plist]]


def _stop(kind: Kind, entry: Entry, folder: Path) -> list[list[str]]:
    if kind == "systemd":
        return [["systemctl", "--user", "disable", "--now", f"{entry.name}.timer"]]
    return [["launchctl", "bootout", f"gui/{os.getuid()}", str(folder / f"dev.fcctl.{entry.name}.plist")]]


def _call(argv: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        # Messages are looked at for their meaning, so they must not be translated.
        env = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as e:
        return subprocess.CompletedProcess(list(argv), 127, "", str(e))


def _must(argv: Sequence[str], text: str | None = None) -> None:
    done = _call(argv, text)
    if done.returncode != 0:
        raise _refused(argv, done)


def _refused(argv: Sequence[str], done: subprocess.CompletedProcess[str]) -> FcctlError:
    return FcctlError(
        f"`{' '.join(argv[:3])}` failed",
        cause=(done.stderr or done.stdout).strip()[:500] or f"exit code {done.returncode}",
        hint="mend what it names and install again, or keep one running instead: fcctl schedule serve",
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
