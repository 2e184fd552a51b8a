"""Which processes run. One that ended and that nobody has waited for yet does not."""

from __future__ import annotations

import os
from pathlib import Path


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:  # gone since, or no Linux
        return not Path("/proc/self/stat").exists()


def processes(mark: str, home: Path) -> list[int]:
    """Those with ``mark`` in their command line and that home folder: of one test, others run beside it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"HOME={home}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if ours and mark in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
