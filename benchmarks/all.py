"""Every speed figure the project promises, in one table.

    python benchmarks/all.py

Exit code 1 if a target was missed. A machine that is busy with something else shows in the load average: what is
counted in processor time or as a ratio bears it, within reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "remote")]

from benchmarks import dashboard, figures, host_program, kernel_build, round_trip, search, store, warm_start  # noqa: E402


def main() -> int:
    before = figures.machine()
    found = []
    for part in (round_trip, warm_start, store, host_program, kernel_build, dashboard, search):
        print(f"measuring: {part.__name__.rpartition('.')[2].replace('_', ' ')} ...", file=sys.stderr)
        found += part.measure_all()
    print(f"before: {before}\nafter:  {figures.machine()}\n")
    return figures.report(found)


if __name__ == "__main__":
    sys.exit(main())
