"""Evolution against random search at equal budget, on every recorded landscape, seed by seed.

    python benchmarks/search.py [--seeds 10] [--write]

Needs no GPU: what each configuration came to was recorded (benchmarks/landscapes). ``--write`` puts the table into
docs/search.md. Exit code 1 if evolution wins fewer than 8 of 10 seeds with 128 trials, one at a time. Takes about two
minutes of processor time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "remote")]

from benchmarks import replay  # noqa: E402
from benchmarks.figures import Figure  # noqa: E402
from benchmarks.landscape import Landscape  # noqa: E402

LANDSCAPES = ROOT / "benchmarks" / "landscapes"
PAGE = ROOT / "docs" / "search.md"
BEGIN, END = "<!-- contests: benchmarks/search.py --write -->", "<!-- end of contests -->"
COLUMNS = (
    "landscape", "configurations", "trials", "under way", "evolution wins", "equal", "above the best", "random's",
)  # fmt: skip
WINS = 0.8


def contests(seeds: int) -> list[replay.Contest]:
    """Each landscape with each budget: one trial at a time, and with builds running ahead."""
    return [
        replay.contest(landscape, budget, range(seeds), ahead)
        for landscape in (Landscape.load(str(path)) for path in sorted(LANDSCAPES.glob("*.json")))
        for budget in replay.BUDGETS
        for ahead in (0, replay.AHEAD)
    ]


def measure_all() -> list[Figure]:
    """What the page promises: with the larger budget, one trial at a time. About a minute."""
    budget = max(replay.BUDGETS)
    found = []
    for path in sorted(LANDSCAPES.glob("*.json")):
        c = replay.contest(Landscape.load(str(path)), budget, range(replay.SEEDS), 0)
        name = f"search: evolution beats chance on {c.landscape.name}, {budget} trials"
        found.append(Figure(name, float(c.wins), f"of {len(c.pairs)} seeds", WINS * len(c.pairs), at_least=True))
    return found


def row(c: replay.Contest) -> tuple[str, ...]:
    return (
        c.landscape.name,
        f"{len(c.landscape)}, {len(c.landscape.values)} work",
        str(c.budget),
        str(1 + c.ahead),
        f"{c.wins} of {len(c.pairs)}",
        str(c.ties),
        f"{100 * c.behind(0):.1f} %",
        f"{100 * c.behind(1):.1f} %",
    )


def table(found: Sequence[replay.Contest]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row(c)) + " |" for c in found])


def write(text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=replay.SEEDS)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    found = contests(options.seeds)
    print(table(found))
    if options.write:
        write(table(found))
    judged = [c for c in found if c.budget == max(replay.BUDGETS) and c.ahead == 0]
    return 0 if all(c.wins >= WINS * len(c.pairs) for c in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
