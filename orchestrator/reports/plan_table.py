"""The plan of a run, before anything of it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fcctl_remote import wire
from orchestrator.domain.plan import worst_case_s
from orchestrator.reports.live import duration

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.workflows.prepare import Prepared


def plan_json(prepared: Prepared) -> dict[str, Any]:
    """What ``fcctl run --dry-run --json`` prints."""
    plan = prepared.saved.plan
    return {
        "dry_run": True,
        "plan": wire.encode(plan),
        "target": prepared.saved.target.model_dump(mode="json"),
        "source": {**prepared.saved.source.model_dump(), "files": len(prepared.source.entries)},
        "worst_case": {"seconds": worst_case_s(plan), "usd": worst_case_usd(prepared)},
    }


def worst_case_usd(prepared: Prepared) -> float:
    """The dollars of :func:`worst_case_s` at the target's price; 0 for a machine without one."""
    return worst_case_s(prepared.saved.plan) / 3600 * (prepared.saved.target.usd_per_hour or 0.0)


def print_plan(prepared: Prepared, console: Console) -> None:
    """Print steps, limits, gates and the worst case."""
    from rich.table import Table

    plan, source = prepared.saved.plan, prepared.source
    console.print(f"[bold]{plan.job}[/] on [bold]{plan.target}[/]  {plan.title}", highlight=False)
    commit = f", commit {source.git_commit[:10]}" if source.git_commit else ""
    dirty = " with uncommitted changes" if source.dirty else ""
    tree = f"{len(source.entries)} files, tree {source.tree_sha256[:12]}"
    console.print(f"source      {tree}{commit}{dirty}", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("STEP", "AT MOST", "NEEDS", "GATES"):
        table.add_column(column, overflow="fold")
    for step in plan.steps:
        table.add_row(step.id, _limit(step), _needs(step.needs), "\n".join(g.expr for g in step.gates))
    console.print(table)
    usd = worst_case_usd(prepared)
    price = f", ${usd:.2f}" if usd else ", no price on this target"
    console.print(f"worst case  {duration(worst_case_s(plan))}{price}. Nothing was sent or started.", highlight=False)


def _limit(step: wire.StepSpec) -> str:
    text = duration(step.timeout_s)
    if step.retries:
        text += f" x {1 + step.retries}"
    return text + (" (optional)" if step.optional or step.unavailable_ok else "")


def _needs(needs: wire.Needs) -> str:
    parts = list(needs.tools)
    if needs.compute_capability:
        parts.append(f"GPU >= {needs.compute_capability}")
    elif needs.gpu:
        parts.append("GPU")
    return ", ".join(parts)
