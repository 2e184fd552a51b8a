"""Ends the machines if the emulator's process is killed.

A shell waits at the end of a pipe whose other end only the emulator has. On a normal stop it is told to exit; if the
pipe just closes, it starts a program that kills what is left. This works the same on Linux and macOS, and takes a few
hundred kilobytes.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.emulator.core import processes

#: Each line is one more argument of what is run in the end; a single dot says that there is nothing to be done.
_WATCH = """\
while IFS= read -r line; do
  [ "$line" = . ] && exit 0
  set -- "$@" "$line"
done
exec "$@"
"""
_BURY = "import sys; sys.path.insert(0, sys.argv[1]); from orchestrator.emulator.core import guardian; guardian.main()"
_ROOT = str(Path(__file__).resolve().parents[3])


class Guardian:
    """The guardian of one emulator. ``temporary``: the emulator's folder, if it is to be deleted."""

    def __init__(self, temporary: Path | None = None) -> None:
        self._temporary = temporary
        self._shell: subprocess.Popen[bytes] | None = None

    def announce(self, volatile: Path) -> None:
        """A machine is about to boot; ``volatile`` is its folder, used by no other boot."""
        if self._shell is None:
            folder = str(self._temporary or "")
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "fcctl-emulator", sys.executable, "-c", _BURY, _ROOT, folder],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                bufsize=0, cwd="/",
            )  # fmt: skip
        self._tell(str(volatile))

    def dismiss(self) -> None:
        """Ends the guardian after a normal stop."""
        if self._shell is None or self._shell.stdin is None:
            return
        self._tell(".")
        self._shell.stdin.close()
        self._shell.wait()
        self._shell = None

    def _tell(self, line: str) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed
                self._shell.stdin.write(f"{line}\n".encode())


def main() -> None:
    """``ROOT FOLDER VOLATILE...``: the emulator was killed, and these are its machines."""
    reap(sys.argv[2], sys.argv[3:])


def reap(temporary: str, volatiles: Sequence[str]) -> None:
    """Kills the processes of these boots; later boots of the same disks by another emulator are not touched."""
    for volatile in volatiles:
        processes.end_boot(Path(volatile))
        shutil.rmtree(volatile, ignore_errors=True)
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
