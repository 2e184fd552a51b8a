"""What is said of a run that Ctrl-C ended before its host had it: that nothing runs, and what may be left to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.runs.job.saved_fleet import searches_of
from orchestrator.runs.job.saved_plan import plan_at_home

if TYPE_CHECKING:
    from orchestrator.cli.context import Cli
    from orchestrator.results.records import RunRecord
    from orchestrator.results.store_api import Store
    from orchestrator.tune.fleet.member import Member


def print_never_begun(cli: Cli, store: Store, record: RunRecord, members: Sequence[Member] = ()) -> str:
    """Tell how the run, or the search with its ``members``, was left; returns it too."""
    what = "the search" if members else "run"
    lines = [f"interrupted: {what} {record.run_id} had not begun on {record.target}, and nothing of it runs there"]
    lines += [f"  {member.name}: {member.status}  {' '.join(member.runs)}".rstrip() for member in members]
    lines.append(_next(store, record, members))
    message = "\n".join(lines)
    cli.note(message)
    return message


def _next(store: Store, record: RunRecord, members: Sequence[Member]) -> str:
    active = store.active()
    left = [run_id for member in members for run_id in member.runs if run_id in active]
    if left:
        return f"  not home yet, end what is left of it:  fcctl cancel {' '.join(left)}"
    plan = plan_at_home(store, record.run_id)
    if before := (plan.get("plan") or {}).get("resume_from"):
        return f"  what it was to go on with is as it was:  fcctl {'tune' if members else 'run'} --resume {before}"
    if moved := [run_id for run_id in searches_of(plan) if run_id in active]:
        return f"  where it was before there may be more of it:  fcctl tune --resume {max(moved)}"
    return "  nothing is left to do; the same command begins anew"
