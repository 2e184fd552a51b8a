"""Tables of docs pages: made by all processors, and put where their markers are."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

PAGE = Path(__file__).resolve().parent.parent / "docs" / "statistics.md"
Scenario = TypeVar("Scenario")


def in_parallel(row: Callable[[Scenario, int], str], scenarios: Sequence[Scenario], trials: int) -> list[str]:
    """A row for each scenario, as they come told on stderr."""
    found = []
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for made in processes.map(row, scenarios, [trials] * len(scenarios)):
            print(made, file=sys.stderr, flush=True)
            found.append(made)
    return found


def command(name: str, about: str | None, make: Callable[[int], str]) -> int:
    """The command line of the program ``name``: print the table that ``make`` makes of so many trials a row; with
    ``--write``, replace the one between its markers."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    table = make(options.trials)
    print(table)
    if options.write:
        put(PAGE, table, f"rates: {name} --write", f"end of rates: {name}")
    return 0


def put(page: Path, table: str, begin: str, end: str) -> None:
    """Replace what stands in the page between the comments ``begin`` and ``end``."""
    before, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {begin} -->")
    after = rest.partition(f"<!-- {end} -->")[2]
    page.write_text(f"{before}<!-- {begin} -->\n{table}\n<!-- {end} -->{after}", encoding="utf-8")
