"""What every form of a report says in the same words: figures, verdicts, and the next levers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.base.sanitize import clean
from orchestrator.results.levers import Finding
from orchestrator.results.records import GateRecord, StepRecord
from orchestrator.results.timings import Ratio, shape_text
from orchestrator.views.figures import against, commit_text, duration, interval, microseconds, minute, unit_name
from orchestrator.views.report import charts
from orchestrator.views.report.model import NO_GPU, Profiled, Report, RunPart, Table
from orchestrator.views.tables.compare import answer

#: Heads benchmarks that are of no common case: each has a name of its own, and which is fastest says little.
UNNAMED = "all timings"
#: Findings shown of one kernel.
SHOWN = 3


@dataclass(frozen=True)
class Levers:
    """The findings for one kernel over all its profiled shapes: at most three, the largest impact first."""

    label: str
    findings: tuple[tuple[str, Finding], ...]  # with the shape it was found on


def bounds(ratio: Ratio | None) -> str:
    """``[2.25, 2.28]``, its 95 % interval, if it was measured in pairs."""
    if ratio is None or not ratio.low or not ratio.high or not 0 < ratio.low <= ratio.high:
        return ""
    return interval(ratio.value, ratio.low, ratio.high)


def undecided(ratio: Ratio) -> bool:
    """Whether its interval contains 1: neither of the two is known to be faster."""
    return bool(bounds(ratio)) and (ratio.low or 0.0) <= 1 <= (ratio.high or 0.0)


def than(ratio: Ratio, name: str) -> str:
    """``2.31x faster than PyTorch``, if that was measured."""
    return f"no measured difference to {name}" if undecided(ratio) else against(ratio.value, name)


def heading(table: Table, report: Report | None = None) -> str:
    """``mission (1,8,512,64), hot``; whatever of it is known. With the machine, where ``report`` has several."""
    sizes = shape_text(next((r.shape for r in table.rows if r.shape), None))
    name = table.case if not sizes or table.case == sizes else f"{table.case} ({sizes})"
    machine = f"on {table.machine}" if report is not None and len(report.gpus) > 1 else ""
    return ", ".join(w for w in (name or UNNAMED, table.mode, machine) if w)


def levers(report: Report) -> list[Levers]:
    """For each profiled kernel its findings, the fastest kernel first; a rule is named once, where it weighs most."""
    order = list(dict.fromkeys(row.label for table in report.tables for row in table.ours))
    groups: dict[tuple[str, str], list[Profiled]] = {}
    for profile in report.profiles:
        groups.setdefault((profile.run, profile.label), []).append(profile)
    by_kernel = [_levers(label + report.suffix(run), members) for (run, label), members in groups.items()]
    return sorted(by_kernel, key=lambda one: order.index(one.label) if one.label in order else len(order))


def _levers(label: str, members: list[Profiled]) -> Levers:
    heaviest: dict[str, tuple[str, Finding]] = {}
    for profile in members:
        for finding in profile.findings:
            known = heaviest.get(finding.rule)
            if known is None or finding.impact > known[1].impact:
                heaviest[finding.rule] = (profile.shape, finding)
    return Levers(label, tuple(sorted(heaviest.values(), key=lambda pair: -pair[1].impact)[:SHOWN]))


def verdict(report: Report) -> Iterator[str]:
    """The report's first sentences: what failed, which run is faster, the fastest kernel, whether to believe it, and
    the targets."""
    for run in report.runs:
        if (status := run.record.status) != "passed":
            why = f": {clean(run.record.message, 600)}" if run.record.message else ""
            yield f"Run {run.run_id} ended with status {status.replace('_', ' ')}{why}."
    for one in report.comparison:
        pair = " against ".join(side.first.run_id[-6:] for side in (one.new, one.old))
        yield f"{pair}: {next(answer([one])).text}."
    for goal in report.goals:
        yield f"Target {'met' if goal.met else 'not met'}: {goal.text}."
        known = next((one for one in levers(report) if one.label == goal.label and one.findings), None)
        if not goal.met and known is not None:
            found = [finding for _, finding in known.findings]
            yield f"Top bottlenecks: {'; '.join(f.bottleneck for f in found)}."
            yield f"Next levers: {'; '.join(f.lever for f in found)}."
    table = report.headline
    sizes = sized(report)
    if sizes:
        yield charts.verdict(sizes)
    elif table is not None and table.ours:
        best = table.ours[0]
        compared = [
            than(best.against[key], name)
            for key, name in (("best", f"the fastest {table.rival}"), ("math", "SDPA math"), ("flash", "SDPA flash"))
            if key in best.against
        ]
        among = f", the shortest of {len(table.ours)} timings," if not table.case and len(table.ours) > 1 else ""
        takes = f"{best.label}{among} takes {microseconds(best.typical)} {unit_name(table.unit)}{on(table, report)}"
        yield takes + (f": {', '.join(compared)}." if compared else ".")
        yield f"Its results: {best.status}."
        if best.grade:
            yield f"Grade {best.grade.letter}. Next: {best.grade.next_step}."
    yield from (one.verdict for one in report.tunings)
    if judged := [gate for run in report.runs for gate in run.record.judged]:
        yield f"{sum(gate.verdict == 'pass' for gate in judged)} of {len(judged)} gates passed."


def sized(report: Report) -> list[Table]:
    """The tables of the headline's sizes, where it is of one of several."""
    head = report.headline
    if head is None or not any(row.sized for row in head.rows):
        return []
    return next((tables for tables in charts.groups(report) if head in tables), [])


def on(table: Table, report: Report) -> str:
    """`` on mission (1,8,512,64), hot``; ``, hot`` of benchmarks that only share a program."""
    place = heading(table, report)
    return place.removeprefix(UNNAMED) if place.startswith(UNNAMED) else f" on {place}"


def run_facts(run: RunPart) -> list[tuple[str, str]]:
    """Where and when a run was, as names and values."""
    record, cost = run.record, run.record.cost
    price = f"${cost.usd:.2f} at ${cost.usd_per_hour:.2f} an hour" if cost.usd else ""
    if price and cost.emulated:
        price = f"would have been {price}; emulated, nothing was spent"
    job, source = clean(record.job, 60), record.source
    facts = [
        ("run", run.run_id), ("job", f"{job}: {clean(record.title, 200)}" if record.title else job),
        ("target", clean(record.target, 40)), ("status", record.status),
        ("started", f"{minute(record.started or record.created)} UTC"),
        ("duration", duration(run.record.seconds) if run.record.seconds is not None else ""), ("cost", price),
        ("commit", commit_text(source.git_commit, dirty=source.dirty)), ("source tree", clean(source.tree_sha256[:12])),
        *run.machine,
    ]  # fmt: skip
    return [(name, value) for name, value in facts if value]


def title(report: Report) -> str:
    jobs = ", ".join(dict.fromkeys(clean(run.record.job, 60) for run in report.runs))
    where = dict.fromkeys(
        f"{clean(run.record.target, 40)} ({NO_GPU})" if run.gpu == NO_GPU else run.gpu for run in report.runs
    )
    return f"{jobs} on {', '.join(where)}"


def gates(report: Report) -> Iterator[tuple[RunPart, StepRecord, GateRecord]]:
    """Each gate of the jobs."""
    yield from ((run, step, gate) for run in report.runs for step in run.record.steps for gate in step.gates)


def expression(gate: GateRecord) -> str:
    return clean(gate.expr, 300) + (" (optional)" if gate.optional else "")
