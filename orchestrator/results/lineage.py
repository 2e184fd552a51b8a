"""From which runs a run comes, and which come from it: it continues one, or has its parameters from a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

#: Generations, and runs of each direction.
DEPTH, RUNS = 10, 50
_LINE = """
    WITH RECURSIVE line (id, depth) AS (
        VALUES (?, 0) UNION SELECT {to}, depth + 1 FROM parents JOIN line ON {of} = id WHERE depth < ?
    ) SELECT id, min(depth) FROM line WHERE id != ? GROUP BY id ORDER BY 2, 1 LIMIT ?
"""


def lineage(store: FileStore, run_id: str) -> tuple[list[str], list[str]]:
    """Ids of the runs before it, the first one first, and of those after it. Runs that were deleted are named, too."""
    given = (run_id, DEPTH, run_id, RUNS)
    before, after = (
        [str(name) for name, _ in store.query(_LINE.format(to=to, of=of), given)]
        for to, of in (("parent", "run_id"), ("run_id", "parent"))
    )
    return before[::-1], after
