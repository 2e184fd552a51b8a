"""``fcctl results prune``: delete old runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.results.prune import Plan

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([hdwmy])", re.IGNORECASE)
_SECONDS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0, "m": 30 * 86_400.0, "y": 365 * 86_400.0}


@click.command()
@click.option("--older-than", metavar="AGE", help="Runs older than 12h, 90d, 8w, 6m (of 30 days) or 1y.")
@click.option("--max-size", metavar="SIZE", help="The oldest runs, until the rest takes no more than 10GB.")
@click.option("--keep-last", type=click.IntRange(min=0), default=1, show_default=True, help="The newest runs stay.")
@click.option("--keep-best", type=click.IntRange(min=0), default=1, show_default=True,
              help="Runs with one of the so many best times of any benchmark stay.")  # fmt: skip
@click.option("--job", help="Only runs of this job.")
@click.option("--dry-run", is_flag=True, help="Say which runs would go, and keep them.")
@click.pass_obj
def prune(
    cli: Cli,
    older_than: str | None,
    max_size: str | None,
    keep_last: int,
    keep_best: int,
    job: str | None,
    dry_run: bool,
) -> None:
    """Delete runs by age or size. Runs that a tag names always stay.

    Shows what would go and asks; without a terminal it needs --yes.
    """
    from dataclasses import replace

    from orchestrator.results.prune import Rules, carry_out, plan
    from orchestrator.runs.cost.owners import book_runs

    rules = Rules(_age(older_than), _size(max_size), keep_last, keep_best, job)
    with cli.services() as services:
        found = plan(services.store, rules, services.clock.now())
        done = bool(found.doomed) and not dry_run
        if done:
            cli.confirm(_told(found, "these runs will be deleted:"))
            book_runs(services)  # what they cost still counts
            found = replace(found, doomed=tuple(carry_out(services.store, found)))
    if cli.json:
        runs = [{"run_id": r.run_id, "created": r.created, "status": r.status, "bytes": r.bytes} for r in found.doomed]
        cli.emit({"deleted": runs if done else [], "would_delete": [] if done else runs, "bytes": found.bytes,
                  "spared": found.spared})  # fmt: skip
    elif dry_run and found.doomed:
        click.echo(_told(found, "these runs would be deleted:"))
    else:
        cli.note(f"{len(found.doomed)} runs deleted, {_bytes(found.bytes)} freed; {found.spared} spared")


def _told(found: Plan, head: str) -> str:
    lines = [f"  {run.run_id}  {run.status}  {_bytes(run.bytes)}" for run in found.doomed[:30]]
    rest = [f"  ... and {len(found.doomed) - 30} more"] if len(found.doomed) > 30 else []
    spared = f"; {found.spared} are spared (tagged, among the best, or the newest)" if found.spared else ""
    return "\n".join([head, *lines, *rest, f"{len(found.doomed)} runs, {_bytes(found.bytes)}{spared}"])


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _age(text: str | None) -> float | None:
    from orchestrator.base.errors import UsageError

    if text is None:
        return None
    found = _AGE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"--older-than {text[:40]!r} is no age", hint="for instance --older-than 90d")
    return float(found[1]) * _SECONDS[found[2].lower()]


def _size(text: str | None) -> int | None:
    from orchestrator.base.errors import UsageError

    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"--max-size {text[:40]!r} is no size", hint="for instance --max-size 10GB")
    return int(float(found[1]) * 1000 ** ("", "k", "m", "g", "t").index(found[2].lower()))
