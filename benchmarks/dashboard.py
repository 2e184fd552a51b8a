"""Measures the memory of the dashboard's server while fifty browsers follow the log of one run.

    python benchmarks/dashboard.py [--clients 50]

Linux only: the server's memory is read from /proc, twice a second; the largest counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "remote")]

from benchmarks.figures import Figure, machine, report  # noqa: E402
from tests.support.crowd import LAST, watched_by  # noqa: E402
from tests.support.sshd import end_processes_of  # noqa: E402
from tests.support.workspace import Workspace  # noqa: E402

CLIENTS, LINES, MOST_MB = 50, 20_000, 200.0


def measure_all(clients: int = CLIENTS) -> list[Figure]:
    """The server's largest memory, and how many of the clients saw the log's last line."""
    with tempfile.TemporaryDirectory(prefix="fcctl-ui-", dir="/tmp") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        os.environ["TMUX_TMPDIR"] = folder
        workspace = Workspace(Path(folder) / "ws", home)
        try:
            told, memory_mb = watched_by(workspace, clients, LINES, 300)
        finally:
            end_processes_of(home)
    complete = sum(any(LAST in piece["text"] for one in news for piece in one["log"]) for news in told)
    return [
        Figure(f"dashboard, {clients} browsers watching a log: memory", max(memory_mb), "MiB", MOST_MB),
        Figure("  of them saw the log's end", complete, "browsers", clients, at_least=True),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    found = measure_all(parser.parse_args().clients)
    print(machine())
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
