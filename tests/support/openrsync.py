"""A program that behaves as macOS's openrsync does towards its caller and its remote shell; GNU rsync moves the files.

openrsync knows fewer options, names itself in its own way, and gives its remote shell descriptors that do not block.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

_PROGRAM = """#!{python} -S
import os, sys

# Options of Apple's openrsync that take no value, and those that do.
FLAGS = set("-l -t -p -I -r -a -z -n -v -q -u -H -g -o -D --from0 -0 --partial --server --delete --inplace".split())
VALUES = ("-e", "--rsh", "--timeout", "--files-from", "--exclude", "--include", "--rsync-path", "-f")
words = sys.argv[1:]
if words[:1] == ["--version"]:
    print("openrsync: protocol version 29\\nrsync version 2.6.9 compatible")
    sys.exit()
if words[:1] == ["--as-remote-shell"]:
    for descriptor in (0, 1):
        os.set_blocking(descriptor, False)
    os.execv(words[1], words[1:])
if words[:1] != ["--server"]:
    options = iter(words[: words.index("--")] if "--" in words else words)
    for word in options:
        name = word.partition("=")[0]
        if name in VALUES:
            next(options) if "=" not in word else None
        elif word.startswith("-") and word not in FLAGS:
            sys.exit(f"openrsync: unknown option {{word}}")
    if "-e" in words:
        at = words.index("-e") + 1
        words[at] = f"'{{os.path.abspath(sys.argv[0])}}' --as-remote-shell {{words[at]}}"
os.execv({rsync!r}, ["rsync", *words])
"""


def install(path: Path, rsync: str | None = None) -> Path:
    """Writes the program. ``rsync``: the GNU one behind it, by default that of PATH."""
    path.write_text(_PROGRAM.format(python=sys.executable, rsync=rsync or shutil.which("rsync")))
    path.chmod(0o755)
    return path
