"""Which runs may go. Never one that a tag names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.base.clock import epoch
from orchestrator.base.errors import UsageError
from orchestrator.results.records import RunRow

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore


@dataclass(frozen=True)
class Rules:
    """Which go: older than ``older_s`` seconds; the oldest until no more than ``max_bytes`` are left. Which stay
    nevertheless: the newest ``keep_last``, and those with one of the ``keep_best`` best times of any benchmark."""

    older_s: float | None = None
    max_bytes: int | None = None
    keep_last: int = 1
    keep_best: int = 0
    job: str | None = None


@dataclass(frozen=True)
class PruneCandidate:
    run_id: str
    created: str
    status: str
    bytes: int


@dataclass(frozen=True)
class Plan:
    """What would go, oldest first, and how many stay although a rule names them."""

    doomed: tuple[PruneCandidate, ...]
    spared: int

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.doomed)


def plan(store: FileStore, rules: Rules, now: float) -> Plan:
    """Choose; nothing is deleted. Raises UsageError: no rule says which runs go; ConfigError: the tags cannot be read,
    so that nobody knows what must stay."""
    if rules.older_s is None and rules.max_bytes is None:
        raise UsageError(
            "choose which runs to delete",
            hint="fcctl results prune --older-than 90d, or --max-size 10GB; to see them first: --dry-run",
        )
    rows = store.rows(job=rules.job)
    kept = {run for tag in store.tags().values() for run in tag.runs} | {r.run_id for r in rows[: rules.keep_last]}
    if rules.keep_best:
        kept |= store.best(rules.keep_best)
    oldest_first = rows[::-1]
    old = rules.older_s
    named = {r.run_id for r in oldest_first if old is not None and now - (epoch(r.created) or now) > old}
    sizes: dict[str, int] = {}
    if rules.max_bytes is not None:
        sizes = {r.run_id: store.size(r.run_id) for r in oldest_first}
        named |= _over(oldest_first, sizes, named - kept, kept, rules.max_bytes)
    doomed = [r for r in oldest_first if r.run_id in named and r.run_id not in kept]
    sizes.update({r.run_id: store.size(r.run_id) for r in doomed if r.run_id not in sizes})
    candidates = (PruneCandidate(r.run_id, r.created, r.status, sizes[r.run_id]) for r in doomed)
    return Plan(tuple(candidates), spared=len(named & kept))


def carry_out(store: FileStore, chosen: Plan) -> list[PruneCandidate]:
    """Delete what was chosen, but for what was tagged since; returns what went."""
    tagged = {run for tag in store.tags().values() for run in tag.runs}
    going = [run for run in chosen.doomed if run.run_id not in tagged]
    store.delete([run.run_id for run in going])
    return going


def _over(rows: Sequence[RunRow], sizes: dict[str, int], gone: set[str], kept: set[str], most: int) -> set[str]:
    """The oldest runs beyond ``gone`` that have to go until the rest fits; those to be kept count, and stay."""
    left = sum(sizes.values()) - sum(sizes[run_id] for run_id in gone)
    more: set[str] = set()
    for row in rows:
        if left <= most:
            break
        if row.run_id not in gone and row.run_id not in kept:
            more.add(row.run_id)
            left -= sizes[row.run_id]
    return more
