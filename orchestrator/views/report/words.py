"""What every form of a report says in the same words: figures, verdicts, and the next levers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.results.levers.levers import SHOWN, Finding
from orchestrator.results.timings import Ratio
from orchestrator.views.live.run import duration
from orchestrator.views.report.model import NO_GPU, Profiled, Report, Row, RunPart, Table
from orchestrator.views.report.profiles import DRAM_TARGET_PCT, TENSOR_TARGET_PCT
from orchestrator.views.tables.figures import microseconds

#: Statuses of a run or step that need no one's attention.
GOOD = ("passed", "met", "skipped")


#: Heads benchmarks that are of no common case: each has a name of its own, and which is fastest says little.
UNNAMED = "all timings"


@dataclass(frozen=True)
class Levers:
    """The findings for one kernel over all its profiled shapes: at most three, the largest impact first."""

    label: str
    shapes: tuple[str, ...]
    findings: tuple[tuple[str, Finding], ...]  # with the shape it was found on


def speedup(ratio: Ratio | None) -> str:
    """Their time over ours: ``2.27x``; above 1 we are faster; empty if not measured."""
    return "" if ratio is None or ratio.value <= 0 else f"{_significant(1 / ratio.value)}x"


def speedup_interval(ratio: Ratio | None) -> str:
    """``2.25 to 2.28``, the 95 % interval of :func:`speedup`, if it was measured in pairs."""
    if ratio is None or not ratio.low or not ratio.high or not 0 < ratio.low <= ratio.high:
        return ""
    return f"{_significant(1 / ratio.high)} to {_significant(1 / ratio.low)}"


def _significant(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def unit(table: Table) -> str:
    return "µs" if table.unit == "us" else table.unit


def heading(table: Table, report: Report | None = None) -> str:
    """``mission (1,8,512,64), hot``; whatever of it is known. With the machine, where ``report`` has several."""
    shape = next((r.shape for r in table.rows if r.shape), None)
    sizes = ",".join(str(shape[k]) for k in "BHSD") if shape else ""
    name = table.case if not sizes or table.case == sizes else f"{table.case} ({sizes})"
    machine = f"on {table.machine}" if report is not None and len(report.gpus) > 1 else ""
    return ", ".join(w for w in (name or UNNAMED, table.mode, machine) if w)


def reach(row: Row) -> str:
    """``21 % (tensor)``: how much of its time the nearest ceiling explains, and which that is."""
    if row.roofline_pct is None:
        return ""
    return f"{row.roofline_pct:.0f} %" + (f" ({row.roofline_bound})" if row.roofline_bound else "")


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


def target(value: float | None, least: float) -> str:
    """``56.0 %, met``: a profile's figure against its target; empty without the figure."""
    return "" if value is None else f"{value:.1f} %, {'met' if value >= least else 'not met'}"


def profile_cells(profile: Profiled) -> tuple[str, ...]:
    """A row of the table of NCU highlights, as :data:`PROFILE_HEADER` names its columns."""
    waits = ", ".join(f"{name.replace('_', ' ')} {share:.0f} %" for name, share in profile.top_stalls)
    registers = profile.metric("registers")
    return (
        profile.shape,
        target(profile.metric("tensor_active_pct"), TENSOR_TARGET_PCT),
        percent(profile.metric("sm_throughput_pct")),
        percent(profile.metric("occupancy_pct")),
        target(profile.metric("dram_throughput_pct"), DRAM_TARGET_PCT),
        percent(profile.metric("l2_hit_pct")),
        "" if registers is None else f"{registers:.0f}",
        waits,
    )


PROFILE_HEADER = (
    "kernel", "shape", f"tensor cores (target {TENSOR_TARGET_PCT:.0f} %)", "SM throughput", "occupancy",
    f"DRAM of peak (target {DRAM_TARGET_PCT:.0f} %)", "L2 hits", "registers", "warps wait for",
)  # fmt: skip


def levers(report: Report) -> list[Levers]:
    """For each profiled kernel its findings, the fastest kernel first; a rule is named once, where it weighs most."""
    order = list(dict.fromkeys(row.label for table in report.tables for row in table.ours))
    groups: dict[tuple[str, str], list[Profiled]] = {}
    for profile in report.profiles:
        groups.setdefault((profile.run, profile.label), []).append(profile)
    found = [_levers(label, members, run, len(report.runs) > 1) for (run, label), members in groups.items()]
    return sorted(found, key=lambda one: order.index(one.label) if one.label in order else len(order))


def _levers(label: str, members: list[Profiled], run: str, several: bool) -> Levers:
    heaviest: dict[str, tuple[str, Finding]] = {}
    for profile in members:
        for finding in profile.findings:
            known = heaviest.get(finding.rule)
            if known is None or finding.impact > known[1].impact:
                heaviest[finding.rule] = (profile.shape, finding)
    ranked = sorted(heaviest.values(), key=lambda pair: -pair[1].impact)[:SHOWN]
    name = f"{label} ({run[-6:]})" if several else label
    return Levers(name, tuple(p.shape for p in members if p.shape), tuple(ranked))


def verdict(report: Report) -> Iterator[str]:
    """The report's first sentences: what failed, the fastest kernel, whether to believe it, and the targets."""
    for run in report.runs:
        if run.status != "passed":
            why = f": {run.message}" if run.message else ""
            yield f"Run {run.run_id} ended as {run.status.replace('_', ' ')}{why}."
    table = report.headline
    if table is not None and table.ours:
        best = table.ours[0]
        said = _typical(table, best, heading(table, report))
        compared = [
            f"{speedup(best.against.get(key))} against {name}"
            for key, name in (("math", "SDPA math"), ("flash", "SDPA flash"))
            if best.against.get(key)
        ]
        yield said + (f": {' and '.join(compared)}." if compared else ".")
        yield f"Its results: {best.status}."
        if best.grade:
            yield f"Grade {best.grade.letter}. Next: {best.grade.next_step}."
    yield from (one.verdict for one in report.tunings)
    judged = [t for t in report.targets if t.verdict != "does not apply"]
    if judged:
        met = sum(t.verdict == "met" for t in judged)
        yield f"{met} of {len(judged)} targets met."


def _typical(table: Table, best: Row, place: str) -> str:
    """What the fastest takes, and of what: of a case, or of benchmarks that only share a program."""
    takes = f"takes {microseconds(best.typical)} {unit(table)}"
    if not place.startswith(UNNAMED):
        return f"{best.label} {takes} on {place}"
    among = f", the shortest of {len(table.ours)} timings," if len(table.ours) > 1 else ""
    return f"{best.label}{among} {takes}{place.removeprefix(UNNAMED)}"


def run_facts(run: RunPart) -> list[tuple[str, str]]:
    """Where and when a run was, as names and values."""
    price = f"${run.usd:.2f} at ${run.usd_per_hour:.2f} an hour" if run.usd else ""
    if price and run.emulated:
        price = f"would have been {price}; emulated, nothing was spent"
    facts = [
        ("run", run.run_id), ("job", f"{run.job}: {run.title}" if run.title else run.job), ("target", run.target),
        ("status", run.status.replace("_", " ")), ("started", run.started),
        ("took", duration(run.seconds) if run.seconds is not None else ""), ("cost", price),
        ("commit", run.commit), ("source tree", run.tree), *run.machine,
    ]  # fmt: skip
    return [(name, value) for name, value in facts if value]


def title(report: Report) -> str:
    jobs = ", ".join(dict.fromkeys(run.job for run in report.runs))
    where = dict.fromkeys(f"{run.target} ({NO_GPU})" if run.gpu == NO_GPU else run.gpu for run in report.runs)
    return f"{jobs} on {', '.join(where)}"
