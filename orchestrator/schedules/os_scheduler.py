"""Has the computer's scheduler call ``fcctl schedule tick`` every minute: systemd user timers or launchd. One entry
serves all schedules of a workspace, and changes of fcctl.toml need no new one."""

from __future__ import annotations

import hashlib
import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from orchestrator.base.errors import ConfigError, FcctlError
from orchestrator.base.files import disk_errors, make_folders, write_atomic
from orchestrator.base.installation import Finding
from orchestrator.base.run_id import slug

if TYPE_CHECKING:
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
    return {plist_name(entry): plist(entry)}


def install(kind: Kind, entry: Entry) -> list[str]:
    """Writes, checks and starts the entry; returns what was written. Raises FcctlError if the scheduler refuses."""
    folder = _folder(kind)
    with disk_errors("install the schedule", folder):
        make_folders(folder)
        for name, text in render(kind, entry).items():
            write_atomic(folder, name, text.encode())
    paths = [str(folder / name) for name in render(kind, entry)]
    check = ["plutil", "-lint"] if kind == "launchd" else ["systemd-analyze", "--user", "verify"]
    if shutil.which(check[0]):
        must([*check, *paths])
    if kind == "launchd":
        load(entry)
    else:
        must(["systemctl", "--user", "daemon-reload"])
        must(["systemctl", "--user", "enable", "--now", f"{entry.name}.timer"])
    return paths


def uninstall(kind: Kind, entry: Entry) -> list[str]:
    """Take the entry away; what was removed, nothing if it was not there."""
    folder = _folder(kind)
    found = [folder / name for name in render(kind, entry) if (folder / name).exists()]
    if found and kind == "launchd":
        unload(entry)
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
    """Whether exactly this entry is there, of a shell with any environment."""
    files = [render(kind, entry)]
    if kind == "launchd":
        files.append({plist_name(entry): plist(entry, "Background")})
    return any(
        all(_text(_folder(kind) / name) == _ENVIRONMENT.sub("", text) for name, text in one.items()) for one in files
    )


def findings(workspace: Path, statuses: Callable[[], Iterable[ScheduleStatus]]) -> list[Finding]:
    """What this computer refuses to the schedules that its own scheduler starts."""
    if sys.platform != "darwin" or not is_installed(workspace):
        return []
    failed = ((s.name, s.last.reason or "") for s in statuses() if s.last is not None)
    return list(launchd_findings(Entry.of(workspace), failed))


# ------------------------------------------------------------------------------------------------------------- systemd
def _service(entry: Entry) -> str:
    # In a command `$` begins a variable; in a setting it is a character.
    command = " ".join(_systemd_word(word).replace("$", "$$") for word in entry.argv)
    return f"""[Unit]
Description=fcctl: schedules of {_systemd_text(str(entry.folder))}

[Service]
Type=oneshot
WorkingDirectory={_systemd_text(str(entry.folder))}
Environment={" ".join(_systemd_word(f"{name}={value}") for name, value in entry.environment.items())}
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
        return agents_folder()
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "systemd" / "user"


#: Of a unit, and of a plist.
_ENVIRONMENT = re.compile(
    r"^Environment=[^\n]*|<key>EnvironmentVariables</key>\s*<dict>.*?</dict>", re.MULTILINE | re.DOTALL
)


def _text(path: Path) -> str | None:
    """The text of an installed unit or plist without its environment, which differs between shells; None if
    unreadable."""
    try:
        return _ENVIRONMENT.sub("", path.read_text(encoding="utf-8"))
    except OSError:
        return None


#: Since a `bootout`, `bootstrap` is refused for some 5 s, with one of these codes.
_BUSY = (5, 36, 37)
_BUSY_S = 10.0
#: Without a login at the screen there is no domain `gui/UID`.
_NO_DOMAIN = (112, 125)
#: Below the home folder: a program that launchd starts gets EPERM there, unless the user allowed it.
_PROTECTED = ("Desktop", "Documents", "Downloads", "Library/Mobile Documents")
#: launchd calls each minute, so an older complaint is not about the last call.
_FRESH_S = 300.0
_TAIL_BYTES = 8192


def agents_folder() -> Path:
    return Path.home() / "Library" / "LaunchAgents"


def plist_name(entry: Entry) -> str:
    return f"{_label(entry)}.plist"


def log_path(entry: Entry) -> Path:
    """Where what the calls print goes; not in the workspace, which macOS may refuse to them."""
    return Path.home() / "Library" / "Logs" / "fcctl" / f"{entry.name}.log"


def _label(entry: Entry) -> str:
    return f"dev.fcctl.{entry.name}"


def plist(entry: Entry, session: str = "Aqua") -> str:
    """``session``: Aqua for a login at the screen, Background for a user who is not logged in there."""
    log = str(log_path(entry))
    content = {
        "Label": _label(entry),
        "ProgramArguments": list(entry.argv),
        "WorkingDirectory": str(Path.home()),  # in a folder that is refused to it, the program would not even start
        "EnvironmentVariables": entry.environment,
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "LimitLoadToSessionType": session,
        "StartInterval": 60,
        "RunAtLoad": True,
        "AbandonProcessGroup": True,  # a firing outlives the tick that began it
        "ProcessType": "Background",
    }
    return plistlib.dumps(content).decode()


def load(entry: Entry) -> None:
    """Loads the entry that was written, for this user at the screen or else in the background. Raises FcctlError."""
    make_folders(log_path(entry).parent)
    log_path(entry).write_bytes(b"")  # complaints of the last entry are over
    unload(entry)
    path = agents_folder() / plist_name(entry)
    argv, done = _bootstrap(f"gui/{os.getuid()}", path)
    if done.returncode in _NO_DOMAIN:
        write_atomic(agents_folder(), plist_name(entry), plist(entry, "Background").encode())
        argv, done = _bootstrap(f"user/{os.getuid()}", path)
    if done.returncode:
        fix = f"if the entry was disabled: launchctl enable {argv[2]}/{_label(entry)}, then install again"
        raise refused(argv, done, fix)


def _bootstrap(domain: str, path: Path) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    argv = ["launchctl", "bootstrap", domain, str(path)]
    deadline = time.monotonic() + _BUSY_S
    while (done := call(argv)).returncode in _BUSY and time.monotonic() < deadline:
        time.sleep(0.5)
    return argv, done


def unload(entry: Entry) -> None:
    for domain in (f"gui/{os.getuid()}", f"user/{os.getuid()}"):
        call(["launchctl", "bootout", f"{domain}/{_label(entry)}"])  # one that is not loaded is as good as unloaded


# ---------------------------------------------------------------------------------------------- what macOS refuses it
_REFUSED = (
    (
        "Operation not permitted",
        "macOS did not let a program that launchd started access a file",
        "allow {python} in System Settings, Privacy & Security, Full Disk Access",
    ),
    (
        "No route to host",
        "macOS blocks the local network for programs that launchd starts: a host was not reachable",
        "allow Python in System Settings, Privacy & Security, Local Network",
    ),
)


def launchd_findings(entry: Entry, firings: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """What macOS refuses, or has refused, to the calls of ``entry``. ``firings``: schedule, and why its last firing
    failed."""
    if blocked := protected(entry.folder):
        new = Path.home() / entry.folder.name
        install = ["schedule", "install"]  # the entry has the folder's name, so the old one is removed first
        move = (
            ["fcctl", *install, "--remove"],
            ["mv", str(entry.folder), str(new)],
            ["fcctl", "-C", str(new), *install],
        )
        why = f"programs that launchd starts cannot access ~/{blocked}, unless Python has Full Disk Access"
        yield Finding("schedules", "folder", "warn", why, " && ".join(map(shlex.join, move)))
    for where, text in [("last start by launchd", _last_complaint(entry)), *firings]:
        for words, why, fix in _REFUSED:
            if words in text:
                yield Finding("schedules", where, "fail", why, fix.format(python=os.path.realpath(sys.executable)))


def protected(path: Path) -> str | None:
    """The folder of the home folder that macOS protects and that has ``path``; letters' case does not count there."""
    parts = [part.casefold() for part in Path(os.path.realpath(path)).parts]
    for name in _PROTECTED:
        parent = [part.casefold() for part in (Path(os.path.realpath(Path.home())) / name).parts]
        if parts[: len(parent)] == parent:
            return name
    return None


def _last_complaint(entry: Entry) -> str:
    try:
        with log_path(entry).open("rb") as log:
            facts = os.fstat(log.fileno())
            log.seek(max(0, facts.st_size - _TAIL_BYTES))
            return log.read(_TAIL_BYTES).decode(errors="replace") if time.time() - facts.st_mtime < _FRESH_S else ""
    except OSError:
        return ""


#: Variables of the user's shell that say where the ledger and the credentials are, and in which zone times are; and the
#: caps. Without them, firings would have another ledger, or fewer caps, than what the user types.
_KEPT = re.compile(
    r"(CLOUDSDK_CONFIG|GOOGLE_APPLICATION_CREDENTIALS|TZ|XDG_(CACHE|CONFIG|DATA|STATE)_HOME|FCCTL_BUDGET_[A-Z_]+)\Z"
)


@dataclass(frozen=True)
class Entry:
    """The entry of the scheduler: command, folder and environment."""

    name: str
    argv: tuple[str, ...]
    folder: Path
    environment: dict[str, str]  # PATH is for gcloud, ssh and what the jobs' own steps need

    @classmethod
    def of(cls, workspace: Path) -> Entry:
        digest = hashlib.sha256(str(workspace).encode()).hexdigest()[:8]
        fcctl = (sys.executable, "-P", "-m", "orchestrator.cli.entry")  # -P: the workspace's modules are not Python's
        argv = (*fcctl, "-C", str(workspace), "--quiet", "schedule", "tick")
        parts = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/bin", "/usr/bin", "/bin"]
        path = os.pathsep.join(dict.fromkeys(filter(None, parts)))
        kept = {name: value for name, value in sorted(os.environ.items()) if _KEPT.match(name) and value.isprintable()}
        name = f"fcctl-{slug(workspace.name)[:32]}-{digest}"
        return cls(name, argv, workspace, {"PATH": path, **kept})


def call(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a program of the scheduler; exit code 127 if it does not start or hangs."""
    try:
        # Messages are looked at for their meaning, so they must not be translated.
        env = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as e:
        return subprocess.CompletedProcess(list(argv), 127, "", str(e))


def must(argv: Sequence[str]) -> None:
    """The same; raises FcctlError if the program refuses."""
    done = call(argv)
    if done.returncode != 0:
        raise refused(argv, done)


def refused(argv: Sequence[str], done: subprocess.CompletedProcess[str], fix: str = "") -> FcctlError:
    """The error for a call that failed. ``fix``: what may help, before the general hint."""
    hint = fix or "correct the problem that it names and install again"
    return FcctlError(
        f"`{' '.join(argv[:3])}` failed",
        cause=(done.stderr or done.stdout).strip()[:500] or f"exit code {done.returncode}",
        hint=f"{hint}; or run a scheduler in the foreground: fcctl schedule serve",
    )
