"""Whatever becomes of the emulator's process, its machines end with it, as they would with the power of a data centre.

A shell waits at the end of a pipe whose other end only the emulator has. Told that all is well it ends; if the pipe
just ends, the emulator was killed, and the shell becomes a program that kills what is left: this works the same on
Linux and macOS, and costs a few hundred kilobytes while nothing happens.
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
    """Watches over one emulator. ``temporary``: the emulator's folder, if it is to go with it."""

    def __init__(self, temporary: Path | None = None) -> None:
        self._temporary = temporary
        self._shell: subprocess.Popen[bytes] | None = None

    def announce(self, volatile: Path) -> None:
        """A machine is about to boot; ``volatile`` is a folder that no other boot has."""
        if self._shell is None:
            folder = str(self._temporary or "")
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "fcctl-emulator", sys.executable, "-c", _BURY, _ROOT, folder],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                bufsize=0, cwd="/",
            )  # fmt: skip
        self._tell(str(volatile))

    def dismiss(self) -> None:
        """All has ended as it should."""
        if self._shell is None or self._shell.stdin is None:
            return
        self._tell(".")
        self._shell.stdin.close()
        self._shell.wait()
        self._shell = None

    def _tell(self, line: str) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # somebody killed it
                self._shell.stdin.write(f"{line}\n".encode())


def main() -> None:
    """``ROOT FOLDER VOLATILE...``: the emulator is gone, and these are its machines."""
    reap(sys.argv[2], sys.argv[3:])


def reap(temporary: str, volatiles: Sequence[str]) -> None:
    """Kill what is left of these boots; other boots of the same disks, by an emulator that came after, go on."""
    for volatile in volatiles:
        processes.end_boot(Path(volatile))
        shutil.rmtree(volatile, ignore_errors=True)
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
