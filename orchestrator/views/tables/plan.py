"""The plan of a run, before anything of it happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fcctl_remote import wire
from orchestrator.base.sanitize import clean
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.prices.rates import capacity_notes
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.tune import job as tune_job
from orchestrator.tune.fleet import rules as fleet
from orchestrator.views.live.run import duration

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.money.prices.spot import SpotPreview
    from orchestrator.runs.job.prepare import Prepared
    from orchestrator.tune.fleet.plan import Plans


#: Of a variable's value, characters that are shown.
_VALUE = 60


def plan_json(prepared: Prepared, spot: SpotPreview | None = None) -> dict[str, Any]:
    """What ``fcctl run --dry-run --json`` prints."""
    plan = prepared.saved.plan
    return {
        "dry_run": True,
        "before_wake": [wire.encode(step) for step in prepared.saved.before_wake],
        "plan": wire.encode(plan),
        "target": prepared.saved.target.model_dump(mode="json"),
        "source": {**prepared.saved.source.model_dump(), "files": len(prepared.source.entries)},
        "worst_case": {
            "seconds": prepared.saved.worst_case_minutes * 60,
            "fence_s": prepared.saved.fence_s,
            "usd": prepared.saved.worst_case_usd,
            "stop_at_usd": prepared.saved.stop_at_usd,
            "usd_per_hour": prepared.saved.worst_machine_rate,
            "rest_usd_per_hour": prepared.saved.rest_rate,
            "egress_usd": prepared.saved.egress_usd,
        },
        "spot": spot.as_json() if spot is not None else None,
        "capacity": _capacity(prepared.saved),
    }


def print_plan(prepared: Prepared, console: Console, spot: SpotPreview | None = None) -> None:
    """Print steps, limits, gates and the worst case."""
    from rich.table import Table
    from rich.text import Text

    plan, source = prepared.saved.plan, prepared.source
    console.print(f"[bold]{plan.job}[/] on [bold]{plan.target}[/]  {plan.title}", highlight=False)
    commit = f", commit {source.git_commit[:10]}" if source.git_commit else ""
    dirty = " with uncommitted changes" if source.dirty else ""
    tree = f"{len(source.entries)} files, tree {source.tree_sha256[:12]}"
    console.print(f"source      {tree}{commit}{dirty}", highlight=False)
    for path in source.skipped:
        console.print(f"not sent    {clean(path)}", highlight=False, markup=False)
    if plan.env:
        env = "  ".join(f"{name}={clean(value, _VALUE)}" for name, value in sorted(plan.env.items()))
        console.print(f"env         {env}", highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("STEP", "AT MOST", "NEEDS", "GATES"):
        table.add_column(column, overflow="fold")
    here = {step.id: "  (here, before the wake)" for step in prepared.saved.before_wake}
    for step in [*prepared.saved.before_wake, *plan.steps]:
        shown = step.id + here.get(step.id, "")
        gates = Text("\n".join(gate_text(g) for g in step.gates))  # whose brackets are no markup
        table.add_row(shown, _limit(step), _needs(step.needs), gates)
    console.print(table)
    for line in [*_gpu_idle(plan.idle), *_worst_case(prepared.saved)]:
        console.print(line, highlight=False)
    for note in [*([spot.text] if spot is not None else []), *_capacity(prepared.saved)]:
        console.print(f"            {note}", highlight=False, markup=False)


def _capacity(saved: SavedPlan) -> list[str]:
    target = saved.target
    return list(capacity_notes(target)) if isinstance(target, CloudTarget) else []


def _gpu_idle(rule: wire.GpuIdle | None) -> Iterator[str]:
    if rule is not None:
        where = f"in {', '.join(rule.steps)}" if rule.steps else "- but no step of it uses a GPU"
        yield f"idle        ended if no GPU reaches {rule.below_pct:g} % for {duration(rule.seconds)} {where}"


def fleet_json(plans: Plans) -> dict[str, Any]:
    """The same for a search over several machines: the search's own plan, and beside it those of its members."""
    return {
        **plan_json(plans.search),
        "members": [plan_json(member) for member in plans.members],
        "fleet": {"machines": len(plans.all), "worst_case_usd": plans.worst_case_usd},
    }


def print_fleet(plans: Plans, console: Console) -> None:
    """Print the search's plan, each further machine's worst case, and what all of it may cost."""
    print_plan(plans.search, console)
    for member in plans.members:
        console.print(f"\n[bold]{member.saved.target.name}[/] helps, in a run of its own", highlight=False)
        for line in _worst_case(member.saved):
            console.print(line, highlight=False)
    usd = plans.worst_case_usd
    price = f"${usd:.2f} at most" if usd else "no price on these targets"
    console.print(f"\nall together  {len(plans.all)} machines, {price}", highlight=False)


def _worst_case(saved: SavedPlan) -> Iterator[str]:
    usd, limit, fence = saved.worst_case_usd, duration(saved.worst_case_minutes * 60), saved.fence_s
    rate = saved.worst_rate
    price = f", ${usd:.2f} at ${rate:.2f} an hour" if rate else ", no price on this target"
    price += " with disks and address" if saved.rest_rate else ""
    if fence is None:
        yield f"worst case  {limit}{price}. Nothing was sent or started."
        if saved.stop_at_usd is not None:
            yield f"            the host itself ends it before it has cost ${saved.stop_at_usd:.2f}, whoever follows it"
        return
    emulated = ", which nobody pays: it is emulated" if saved.target.kind == "sandbox" else ""
    yield f"worst case  {limit} for the steps; the cloud stops the machine after {duration(fence)}{price}{emulated}"
    if saved.stop_at_usd is not None:
        yield f"            the host itself ends it before it has cost ${saved.stop_at_usd:.2f}, whoever follows it"
    if saved.plan.job in (tune_job.NAME, fleet.MEMBER):  # no file, so no job that could be asked for by name
        yield "            Nothing was sent or started."
        return
    command = f"fcctl cost plan {saved.plan.job} --on {saved.target.name}"
    yield f"            by activity: {command}. Nothing was sent or started."


def _limit(step: wire.StepSpec) -> str:
    text = duration(step.timeout_s)
    if step.retries:
        text += f" x {1 + step.retries}"
    return text + (" (optional)" if step.optional else " (if available)" if step.unavailable_ok else "")


def gate_text(gate: wire.GateSpec) -> str:
    """Its expression, when it applies, and whether it may stay undecided."""
    when = f"  when {gate.when}" if gate.when else ""
    return gate.expr + when + ("  (optional)" if gate.optional else "")


def _needs(needs: wire.Needs) -> str:
    parts = list(needs.tools)
    if needs.compute_capability:
        parts.append(f"GPU >= {needs.compute_capability}")
    elif needs.gpu:
        parts.append("GPU")
    return ", ".join(parts)
