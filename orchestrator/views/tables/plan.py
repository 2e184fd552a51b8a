"""The plan of a run, before anything of it happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fcctl_remote import wire
from orchestrator.base.sanitize import clean
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.prices.rates import capacity_notes
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.tune import job as tune_job
from orchestrator.tune.fleet import rules as fleet
from orchestrator.views.figures import duration
from orchestrator.views.table import Table, show

if TYPE_CHECKING:
    from orchestrator.money.prices.spot import SpotPreview
    from orchestrator.runs.job.prepare import Prepared
    from orchestrator.tune.fleet.plan import Plans

#: Of a variable's value, characters that are shown.
_VALUE = 60


def plan_json(prepared: Prepared, spot: SpotPreview | None = None) -> dict[str, Any]:
    """What ``fcctl run --dry-run --json`` prints."""
    saved = prepared.saved
    return {
        "dry_run": True,
        "before_wake": [wire.encode(step) for step in saved.before_wake],
        "plan": wire.encode(saved.plan),
        "target": saved.target.model_dump(mode="json"),
        "source": {**saved.source.model_dump(), "files": len(prepared.source.entries)},
        "worst_case": {
            "seconds": saved.worst_case_minutes * 60,
            "fence_s": saved.fence_s,
            "usd": saved.worst_case_usd,
            "stop_at_usd": saved.stop_at_usd,
            "usd_per_hour": saved.worst_machine_rate,
            "rest_usd_per_hour": saved.rest_rate,
            "egress_usd": saved.egress_usd,
        },
        "spot": spot.as_json() if spot is not None else None,
        "capacity": _capacity(saved),
    }


def print_plan(prepared: Prepared, console: Console, spot: SpotPreview | None = None) -> None:
    """Print steps, limits, gates and the worst case."""
    saved, source = prepared.saved, prepared.source
    plan = saved.plan
    head = Text.assemble((plan.job, "bold"), " on ", (plan.target, "bold"), f"  {plan.title}")
    commit = f", commit {source.git_commit[:10]}" if source.git_commit else ""
    dirty = " with uncommitted changes" if source.dirty else ""
    tree = f"{len(source.entries)} files, tree {source.tree_sha256[:12]}"
    show(console, head, f"source      {tree}{commit}{dirty}")
    show(console, *(f"not sent    {clean(path)}" for path in source.skipped))
    if plan.env:
        env = "  ".join(f"{name}={clean(value, _VALUE)}" for name, value in sorted(plan.env.items()))
        show(console, f"env         {env}")
    table = Table("STEP", "AT MOST", "NEEDS", "GATES", header="bold")
    here = {step.id: "  (here, before the wake)" for step in saved.before_wake}
    for step in [*saved.before_wake, *plan.steps]:
        gates = "\n".join(gate_text(g) for g in step.gates)
        table.add_row(step.id + here.get(step.id, ""), _limit(step), _needs(step.needs), gates)
    notes = [*([spot.text] if spot is not None else []), *_capacity(saved)]
    show(console, table, *_gpu_idle(plan.idle), *_worst_case(saved), *(f"            {note}" for note in notes))


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
        name = Text.assemble("\n", (member.saved.target.name, "bold"), " helps, in a run of its own")
        show(console, name, *_worst_case(member.saved))
    price = f"${plans.worst_case_usd:.2f} at most" if plans.worst_case_usd else "no price on these targets"
    show(console, f"\nall together  {len(plans.all)} machines, {price}")


def _worst_case(saved: SavedPlan) -> Iterator[str]:
    limit, nothing = duration(saved.worst_case_minutes * 60), "Nothing was sent or started."
    price = ", no price on this target"
    if saved.worst_rate:
        price = f", ${saved.worst_case_usd:.2f} at ${saved.worst_rate:.2f} an hour"
    price += " with disks and address" if saved.rest_rate else ""
    stop = f"the host itself ends it before it has cost ${saved.stop_at_usd or 0.0:.2f}, whoever follows it"
    stops = [f"            {stop}"] if saved.stop_at_usd is not None else []
    if saved.fence_s is None:
        yield f"worst case  {limit}{price}. {nothing}"
        yield from stops
        return
    emulated = ", which nobody pays: it is emulated" if saved.target.kind == "sandbox" else ""
    fence = f"the cloud stops the machine after {duration(saved.fence_s)}"
    yield f"worst case  {limit} for the steps; {fence}{price}{emulated}"
    yield from stops
    if saved.plan.job in (tune_job.NAME, fleet.MEMBER):  # no file, so no job that could be asked for by name
        yield f"            {nothing}"
    else:
        yield f"            by activity: fcctl cost plan {saved.plan.job} --on {saved.target.name}. {nothing}"


def _limit(step: wire.StepSpec) -> str:
    text = duration(step.timeout_s) + (f" x {1 + step.retries}" if step.retries else "")
    return text + (" (optional)" if step.optional else " (if available)" if step.unavailable_ok else "")


def gate_text(gate: wire.GateSpec) -> str:
    """Its expression, when it applies, and whether it may stay undecided."""
    return gate.expr + (f"  when {gate.when}" if gate.when else "") + ("  (optional)" if gate.optional else "")


def _needs(needs: wire.Needs) -> str:
    gpu = f"GPU >= {needs.compute_capability}" if needs.compute_capability else "GPU" if needs.gpu else ""
    return ", ".join([*needs.tools, *([gpu] if gpu else [])])
