"""Whether a process still runs. One that ended and that nobody has waited for yet does not."""

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
