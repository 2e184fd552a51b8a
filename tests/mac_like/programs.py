"""Programs as macOS has them: they refuse what only their GNU versions know, and some are not there."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tests.support import openrsync

#: BSD's have no long options, and of the short ones not these.
GNU_ONLY = {
    "awk": "", "cp": "tuZ", "date": "dI", "find": "", "grep": "P", "head": "", "mktemp": "p",
    "readlink": "em", "sed": "rsz", "sort": "", "stat": "c", "tail": "", "tar": "", "xargs": "dr",
}  # fmt: skip
#: BSD's grep and tar have long options, too.
LONG = {"grep", "tar"}
MISSING = ("getent", "md5sum", "nproc", "setsid", "sha256sum", "stdbuf", "systemctl", "timeout")

REFUSING = """#!/bin/bash
for word in "$@"; do
  case "$word" in
    --) break ;;
    --?*) [ -n "{long}" ] || {{ echo "{name}: illegal option -- -" >&2; exit 64; }} ;;
    -*) case "${{word#-}}" in [{short}]*) echo "{name}: illegal option -- ${{word#-}}" >&2; exit 64 ;; esac ;;
  esac
done
exec {program} "$@"
"""
#: With ``-E`` macOS shows the environment after the command, but not that of Apple's own programs; tmux is Homebrew's.
PS = """#!/usr/bin/env -S python3 -S
import os, subprocess, sys
words = [word for word in sys.argv[1:] if word != "-E"]
done = subprocess.run([{program!r}, *words], stdout=subprocess.PIPE, text=True)
for line in done.stdout.splitlines():
    environ = ""
    if "-E" in sys.argv:
        folder = "/proc/" + line.split(None, 1)[0]
        try:
            place, _, name = os.readlink(folder + "/exe").rpartition("/")
            if place not in ("/bin", "/sbin", "/usr/bin", "/usr/sbin") or name.startswith(("python", "tmux")):
                environ = " " + open(folder + "/environ", "rb").read().replace(b"\\0", b" ").decode(errors="replace")
        except OSError:
            pass
    print(line + environ)
sys.exit(done.returncode)
"""

#: For some seconds after a `bootout` it refuses a `bootstrap`. Nobody has logged in at the screen if $NO_GUI is set.
LAUNCHCTL = """#!/usr/bin/env -S python3 -S
import os, sys, time
verb, domain = sys.argv[1:3]
if os.environ.get("NO_GUI") and domain.startswith("gui/"):
    sys.exit(125)
if verb == "bootout":
    open({state!r}, "w").close()
elif verb == "bootstrap" and os.path.exists({state!r}) and time.time() - os.path.getmtime({state!r}) < 2:
    sys.stderr.write("Bootstrap failed: 5: Input/output error\\n")
    sys.exit(5)
"""


def install(folder: Path, path: str) -> Path:
    """A folder with the programs of ``path``, to be the only one on PATH."""
    folder.mkdir(parents=True)
    for place in filter(os.path.isdir, path.split(os.pathsep)):
        for name in os.listdir(place):
            if name not in MISSING and not (folder / name).is_symlink():
                (folder / name).symlink_to(Path(place, name))
    for name, short in GNU_ONLY.items():
        program = shutil.which(name, path=path)
        if program is None:
            continue
        text = REFUSING.format(name=name, short=short or "\x01", long="yes" if name in LONG else "", program=program)
        (folder / name).unlink()
        _write(folder / name, text)
    if own_bash := os.environ.get("MAC_BASH"):
        (folder / "bash").unlink()
        (folder / "bash").symlink_to(own_bash)
    (folder / "ps").unlink()
    install_ps(folder, path)
    if rsync := shutil.which("rsync", path=path):
        (folder / "rsync").unlink()
        openrsync.install(folder / "rsync", rsync)
    _write(folder / "launchctl", LAUNCHCTL.format(state=str(folder / "launchctl.unloaded")))
    return folder


def install_ps(folder: Path, path: str | None = None) -> None:
    """macOS's ps, as far as its environment of a process goes, in front of the one on ``path``."""
    _write(folder / "ps", PS.format(program=shutil.which("ps", path=path)))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    os.chmod(path, path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
