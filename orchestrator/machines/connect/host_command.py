"""The shell command that starts the host program: which Python, which arguments."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from orchestrator.base.errors import HostUnusable

#: Exit statuses of the shell, where it does not become the program.
NO_RUNNER, NO_PYTHON = 93, 94
#: Places of a Python beside PATH: an SSH command's PATH is not a login shell's.
PYTHONS = (
    "python3",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/homebrew/bin/python3",
    *(f"python3.{minor}" for minor in range(14, 7, -1)),
    '"$HOME"/.venv/bin/python3',
    "/opt/*/.venv/bin/python3",
    "/opt/*/venv/bin/python3",
    "/opt/conda/bin/python3",
    '"$HOME"/miniconda3/bin/python3',
    '"$HOME"/miniforge3/bin/python3',
    '"$HOME"/.local/share/uv/python/*/bin/python3',
    '"$HOME"/.pyenv/versions/*/bin/python3',
)


@dataclass(frozen=True)
class HostProgram:
    """The archive ``<root>/runner/<sha256>.pyz`` and the Python that runs it; without ``python`` one is looked for."""

    sha256: str
    root: str
    python: str | None = None

    def script(self, *words: str, unpacked: bool = True) -> str:
        """POSIX shell, on one line: starts the program, or reports by the exit status why not.

        Args:
            unpacked: run the copy that the archive unpacked, if there is one; else the archive, which repairs it.

        Raises HostUnusable: ``root`` or ``python`` cannot be written on one line.
        """
        if any(c in word for word in (self.python or "", *words) for c in "\n\r\0"):
            raise HostUnusable("cannot start the host program", cause="a word of its command holds a control character")
        pythons = shlex.quote(self.python) if self.python else " ".join(PYTHONS)
        # The archive unpacks itself beside its name at its first start; from there it starts faster.
        copy = 'd="${p%.pyz}.d/__main__.py"; [ ! -f "$d" ] || p="$d"; ' if unpacked else ""
        # `-V` prints before the interpreter initialises, so trying costs a millisecond or two.
        return (
            f'r={shell_path(self.root)}; p="$r/runner/{self.sha256}.pyz"; [ -f "$p" ] || exit {NO_RUNNER}; '
            f"{copy}for y in {pythons}; do "
            'case "$("$y" -V 2>/dev/null </dev/null)" in "Python 3."[89]*|"Python 3."[1-9][0-9]*) '
            f'exec "$y" -I -S "$p" --root "$r" {shlex.join(words)};; esac; done; exit {NO_PYTHON}'
        )


def shell_path(root: str) -> str:
    """``root`` as a shell word; a leading ``~`` is the home directory of the login."""
    if any(c in root for c in "\n\r\0"):
        raise HostUnusable(f"cannot use {root!r} as `root`", cause="it holds a control character")
    root = root.rstrip("/")
    if root == "~" or root.startswith("~/"):
        return '"$HOME"' + shlex.quote(root[1:])
    return shlex.quote(root)
