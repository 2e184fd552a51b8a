"""Schedules, the plan of a run before anything of it happens, and the phases of a project."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fcctl_remote import wire
from orchestrator.base.errors import plural
from orchestrator.base.json_text import pick
from orchestrator.base.sanitize import clean
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.progress import Goal, PhaseProgress, Progress
from orchestrator.schedules.due import Firing
from orchestrator.schedules.fire import ScheduleStatus
from orchestrator.tune import fleet_rules as fleet
from orchestrator.tune import search_file as tune_job
from orchestrator.views.blocks import Block, Cell, Facts, Grid, Heading, Line, Text
from orchestrator.views.figures import duration, local, microseconds, significant, usd
from orchestrator.views.table import show, show_blocks

if TYPE_CHECKING:
    from orchestrator.money.prices.machine import SpotPreview
    from orchestrator.runs.job.prepare import Prepared
    from orchestrator.tune.fleet import Plans


def print_schedules(schedules: Sequence[ScheduleStatus], console: Console) -> None:
    if schedules:
        show_blocks(console, [schedules_grid(schedules)])
    else:
        add = 'fcctl schedule add nightly --cron "0 2 * * 1-5" --job JOB --on TARGET --budget 2'
        show(console, f"no schedules; {add}")


def schedules_grid(schedules: Sequence[ScheduleStatus]) -> Grid:
    """One line a schedule: when it is due next, what the month has cost, how the last one went."""
    rows = []
    for s in schedules:
        due = ", ".join(local(t.timestamp()) for t in s.next[:2]) or ("never" if s.schedule.enabled else "off")
        cap = f" of {usd(s.schedule.per_month_usd)}" if s.schedule.per_month_usd is not None else ""
        month, when = f"{usd(s.spent_this_month_usd)}{cap}", Cell(clean(s.schedule.cron, 60), kind="code")
        rows.append((s.name, clean(s.schedule.job, 40), clean(s.schedule.on, 60), when, due, month, _last(s)))
    header = ("schedule", "job", "target", "cron", "next (local)", "this month", "last")
    return Grid(header, tuple(rows), "Scheduled jobs", optional=(3,))


def _last(s: ScheduleStatus) -> Cell:
    if s.running or s.last is None:
        return Cell("running", kind="status") if s.running else Cell("-")
    href = f"/runs/{s.last.run_id}" if s.last.run_id else ""
    return Cell(s.last.status or s.last.outcome, f"({local(s.last.due)})", "status", href)


def firings_grid(firings: Sequence[tuple[str, Firing]]) -> Grid:
    """What became of each time, newest first."""
    rows = []
    for name, f in firings:
        run = Cell(clean(f.run_id or "-", 63), href=f"/runs/{clean(f.run_id, 63)}" if f.run_id else "")
        outcome, cost = Cell(f.status or f.outcome, kind="status"), "-" if f.usd is None else f"{f.usd:.4f}"
        rows.append((local(f.due), name, outcome, run, cost, clean(f.reason or "", 300)))
    return Grid(
        ("due (local)", "schedule", "outcome", "run", "dollars", "reason"), tuple(rows), "Firings, newest first"
    )


def schedule_json(s: ScheduleStatus) -> dict[str, Any]:
    """Plain JSON of one schedule; times with their offsets."""
    return {
        **pick(s, "name running spent_this_month_usd"), **s.schedule.model_dump(mode="json"),
        "next": [t.isoformat() for t in s.next], "last": s.last.model_dump(mode="json") if s.last else None,
    }  # fmt: skip


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
            "builder_usd": saved.builder_usd,
            "total_usd": saved.worst_case_usd + saved.builder_usd,
        },
        "spot": spot.as_json() if spot is not None else None,
    }


def print_plan(prepared: Prepared, console: Console, spot: SpotPreview | None = None) -> None:
    """Print steps, limits, gates and the worst case."""
    show_blocks(console, _plan_blocks(prepared, spot))


def _plan_blocks(prepared: Prepared, spot: SpotPreview | None) -> Iterator[Block]:
    saved, source, plan = prepared.saved, prepared.source, prepared.saved.plan
    commit = f", commit {source.git_commit[:10]}" if source.git_commit else ""
    dirty = " with uncommitted changes" if source.dirty else ""
    tree = f"{plural(len(source.entries), 'file')}, tree {source.tree_sha256[:12]}{commit}{dirty}"
    env = "  ".join(f"{name}={clean(value, _VALUE)}" for name, value in sorted(plan.env.items()))
    yield Text(f"{plan.job} on {plan.target}  {plan.title}", style="bold")
    yield _facts([
        ("source", tree), *(("not sent", clean(path)) for path in source.skipped),
        *(("large", clean(text)) for text in source.large.values()), ("env", env),
    ])  # fmt: skip
    steps = [*saved.before_wake, *plan.steps]
    place = "this computer" if saved.builder is None else saved.builder.target.name
    here = {step.id: f"(on {place}, before the machine starts)" for step in saved.before_wake}
    rows = tuple((Cell(step.id, here.get(step.id, "")), _limit(step), _needs(step.needs)) for step in steps)
    yield Grid(("STEP", "AT MOST", "NEEDS"), rows, fold=(2,))
    gates = tuple((step.id, gate_text(gate)) for step in steps for gate in step.gates)
    if gates:
        yield Grid(("STEP", "GATE"), gates, fold=(1,))
    yield _facts([
        *_gpu_idle(plan.idle), *_worst_case(saved), *_builder(saved),
        *([("", spot.text)] if spot is not None else []),
    ])  # fmt: skip


def _facts(pairs: Sequence[tuple[str, str]]) -> Facts:
    """Those with a value, the values one below the other over the whole plan."""
    return Facts(tuple((f"{name:<10}", value) for name, value in pairs if value))


def _builder(saved: SavedPlan) -> Iterator[tuple[str, str]]:
    if (there := saved.builder) is not None:
        limit = f"; the cloud stops it after {duration(there.fence_s)}" if there.fence_s is not None else ""
        price = f"{usd(there.worst_case_usd)} more at most, at {usd(there.worst_rate)} an hour{limit}"
        yield "builder", f"{there.target.name} compiles: {price}"
        yield "total", f"{usd(saved.worst_case_usd + saved.builder_usd)} at most"


def _gpu_idle(rule: wire.GpuIdle | None) -> Iterator[tuple[str, str]]:
    if rule is not None:
        where = f"in {', '.join(rule.steps)}" if rule.steps else "(but no step uses a GPU)"
        yield "idle", f"stops if no GPU reaches {rule.below_pct:g} % for {duration(rule.seconds)} {where}"


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
        head = Heading(member.saved.target.name, "worker host, with its own run")
        show_blocks(console, [head, _facts([*_worst_case(member.saved)])])
    price = f"{usd(plans.worst_case_usd)} at most" if plans.worst_case_usd else "no price on these targets"
    show_blocks(console, [Text(f"\ntotal  {len(plans.all)} machines, {price}")])


def _worst_case(saved: SavedPlan) -> Iterator[tuple[str, str]]:
    limit, nothing = duration(saved.worst_case_minutes * 60), "Nothing was sent or started."
    price = ", no price on this target"
    if saved.worst_rate:
        price = f", {usd(saved.worst_case_usd)} at {usd(saved.worst_rate)} an hour"
    price += " with disks and address" if saved.rest_rate else ""
    fence = f" for the steps; the cloud stops the machine after {duration(saved.fence_s)}" if saved.fence_s else ""
    emulated = " (emulated: no cost)" if saved.target.kind == "sandbox" else ""
    by_activity = f"by activity: fcctl cost plan {saved.plan.job} --on {saved.target.name}. "
    if saved.fence_s is None or saved.plan.job in (tune_job.NAME, fleet.MEMBER):  # no file to ask for by name
        by_activity = ""
    yield "worst case", f"{limit}{fence}{price}{emulated}" + (f". {nothing}" if saved.fence_s is None else "")
    if saved.stop_at_usd is not None:
        stop = usd(saved.stop_at_usd)
        yield "", f"the host stops it before it has cost {stop}, even without a connection"
    if saved.fence_s is not None:
        yield "", f"{by_activity}{nothing}"


def _limit(step: wire.StepSpec) -> str:
    text = duration(step.timeout_s) + (f" x {1 + step.retries}" if step.retries else "")
    return text + (" (optional)" if step.optional else " (if available)" if step.unavailable_ok else "")


def gate_text(gate: wire.GateSpec) -> str:
    """Its expression, when it applies, and whether it may stay undecided."""
    return gate.expr + (f"  when {gate.when}" if gate.when else "") + ("  (optional)" if gate.optional else "")


def _needs(needs: wire.Needs) -> str:
    gpu = f"GPU >= {needs.compute_capability}" if needs.compute_capability else "GPU" if needs.gpu else ""
    return ", ".join([*needs.tools, *([gpu] if gpu else [])])


_RATIO = re.compile(r"""against=["']([^"'/]*/)?([^"']+)["']\]\.ratio$""")


def progress_blocks(progress: Progress) -> Iterator[Block]:
    """One line per phase, and what is spent, planned and free."""
    rows: list[Line] = [_row(phase) for phase in progress.phases]
    if progress.other_usd:
        rows.append(("other costs", "", "", "", "", "", "", usd(progress.other_usd), ""))
    planned = sum(phase.planned_usd or 0.0 for phase in progress.phases)
    whole = ("total", "", "", "", "", "", usd(planned), usd(progress.spent_usd), usd(progress.left_usd))
    rows.append(tuple(Cell(text, kind="bold") if text else "" for text in whole))
    header = ("phase", "target", "best", "gap", "gates passed", "hours", "planned", "spent", "still planned")
    yield Grid(header, tuple(rows), "Phases", numbers=(5, 6, 7, 8), optional=(5, 4, 6), fold=(1,))
    if progress.cap_usd is not None and progress.free_usd is not None:
        free = usd(progress.free_usd) if progress.free_usd >= 0 else f"-{usd(-progress.free_usd)}"
        yield Text(f"Of the project's {usd(progress.cap_usd)}: {usd(progress.spent_usd)} spent, "
                   f"{usd(progress.left_usd)} planned, {free} free")  # fmt: skip
    for phase in progress.phases:
        yield from _open(phase)


def _row(phase: PhaseProgress) -> Line:
    main, met = phase.main, len(phase.goals) - len(phase.open_goals)
    hours = f"{phase.hours:.2f}" + (f" of {phase.planned_hours:g}" if phase.planned_hours is not None else "")
    best = Cell(value_text(main), href=f"/runs/{main.run_id}") if main and main.run_id else ""
    return (
        Cell(clean(phase.name, 24), "done" if phase.is_done else phase.state), target_text(main) if main else "", best,
        gap_text(main) if main else "", f"{met} of {len(phase.goals)}", hours,
        _dollars(phase.planned_usd), _dollars(phase.usd), _dollars(phase.left_usd),
    )  # fmt: skip


def _open(phase: PhaseProgress) -> Iterator[Block]:
    """The gates that runs decided and none met; those that no run decided are only counted."""
    missed = [goal for goal in phase.open_goals if goal.met is False]
    for goal in missed:
        yield Text(f"{clean(phase.name, 24)}: {target_text(goal)}: best {value_text(goal)}, {gap_text(goal)}"
                   f" ({goal.run_id})", style="notice")  # fmt: skip
    undecided = len(phase.open_goals) - len(missed)
    if undecided and phase.runs:
        yield Text(f"{clean(phase.name, 24)}: {plural(undecided, 'gate')} not decided by any run", style="soft")


def target_text(goal: Goal) -> str:
    """``p50 < 200 µs``, ``>= 7x baseline``, or the gate itself."""
    if goal.limit is None:
        return clean(goal.expr, 60)
    if goal.what.endswith("stats.p50"):
        return f"p50 {goal.op} {goal.limit:g} µs"
    if (match := _RATIO.search(goal.what)) and goal.limit > 0 and goal.op in ("<", "<="):
        return f"{goal.op.replace('<', '>')} {1 / goal.limit:g}x {clean(match[2], 24)}"
    return f"{clean(goal.what, 60)} {goal.op} {goal.limit:g}"


def value_text(goal: Goal) -> str:
    """The best value, in the words of the target."""
    if goal.best is None:
        return "" if goal.met is None else "met" if goal.met else "not met"
    if goal.what.endswith("stats.p50"):
        return f"{microseconds(goal.best)} µs"
    if _RATIO.search(goal.what) and goal.best > 0:
        return f"{significant(1 / goal.best)}x"
    return f"{goal.best:g}"


def gap_text(goal: Goal) -> str:
    """``met``, ``29 % over``, ``7.0x the target``, ``12 % under``, or nothing where it is not known."""
    if goal.met:
        return "met"
    if goal.gap is None:
        return "another gate of the step failed" if goal.beside_a_failure else ""
    if goal.op in (">", ">=") or (goal.op == "==" and (goal.best or 0.0) < (goal.limit or 0.0)):
        return f"{100 * goal.gap:.0f} % under"
    return f"{1 + goal.gap:.1f}x the target" if goal.gap >= 1 else f"{100 * goal.gap:.0f} % over"


def _dollars(amount: float | None) -> str:
    return "" if amount is None else usd(amount)
