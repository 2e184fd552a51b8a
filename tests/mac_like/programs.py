"""Programs as macOS has them: they refuse what only their GNU versions know, and some are not there."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

#: BSD's have no long options, and of the short ones not these.
GNU_ONLY = {
    "awk": "", "cp": "tuZ", "date": "dI", "find": "", "grep": "P", "head": "", "mktemp": "p", "ps": "",
    "readlink": "em", "sed": "rsz", "sort": "", "stat": "c", "tail": "", "tar": "", "xargs": "dr",
}  # fmt: skip
#: BSD's grep and tar have long options, too.
LONG = {"grep", "tar"}
MISSING = ("getent", "md5sum", "nproc", "setsid", "sha256sum", "stdbuf", "systemctl", "crontab", "timeout")

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
        _write(folder / name, PS.format(program=program) if name == "ps" else text)
    return folder


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    os.chmod(path, path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
