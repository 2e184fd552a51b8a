"""launchd: its entry, how it is loaded, and what macOS refuses to the programs that it starts."""

from __future__ import annotations

import os
import plistlib
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.base.files import make_folders, write_atomic
from orchestrator.base.installation import Finding
from orchestrator.schedules.entry import Entry, call, refused

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


def folder() -> Path:
    return Path.home() / "Library" / "LaunchAgents"


def file_name(entry: Entry) -> str:
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
        "EnvironmentVariables": {"PATH": entry.path},
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "LimitLoadToSessionType": session,
        "StartInterval": 60,
        "RunAtLoad": True,
        "AbandonProcessGroup": True,  # a firing outlives the tick that began it
        "ProcessType": "Background",
    }
    return plistlib.dumps(content).decode()


def plists(entry: Entry) -> tuple[str, str]:
    return plist(entry), plist(entry, "Background")


def load(entry: Entry) -> None:
    """Loads the entry that was written, for this user at the screen or else in the background. Raises FcctlError."""
    make_folders(log_path(entry).parent)
    log_path(entry).write_bytes(b"")  # complaints of the last entry are over
    unload(entry)
    path = folder() / file_name(entry)
    argv, done = _bootstrap(f"gui/{os.getuid()}", path)
    if done.returncode in _NO_DOMAIN:
        write_atomic(folder(), file_name(entry), plist(entry, "Background").encode())
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


def findings(entry: Entry, firings: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """What macOS refuses, or has refused, to the calls of ``entry``. ``firings``: schedule, and why its last firing
    failed."""
    if blocked := protected(entry.folder):
        new = Path.home() / entry.folder.name
        move = f"{shlex.join(['mv', str(entry.folder), str(new)])} && {shlex.join(['fcctl', '-C', str(new)])}"
        why = f"programs that launchd starts cannot access ~/{blocked}, unless Python has Full Disk Access"
        yield Finding("schedules", "folder", "warn", why, f"{move} schedule install")
    for where, text in [("the last call", _last_complaint(entry)), *firings]:
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
