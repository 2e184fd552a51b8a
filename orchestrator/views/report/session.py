"""What a session did, made so that somebody else can go on: Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.base.clock import iso
from orchestrator.base.errors import ConfigError, FcctlError, NotFoundError, plural
from orchestrator.base.sanitize import clean
from orchestrator.leases.session_rules import SessionRecord
from orchestrator.results.look import Headline, headlines, show
from orchestrator.results.records import CostLine, RunRow
from orchestrator.runs.cost.spending import lines
from orchestrator.runs.progress import Goal, Progress
from orchestrator.runs.services import Services
from orchestrator.views.blocks import Block, Cell, Findings, Grid, Heading, Text, markdown_page
from orchestrator.views.blocks import markdown as as_markdown
from orchestrator.views.figures import commit_text, duration, minute, usd
from orchestrator.views.report.build import build
from orchestrator.views.report.words import Levers
from orchestrator.views.report.words import levers as levers_of
from orchestrator.views.tables.plan import gap_text, target_text, value_text
from orchestrator.views.tables.run import reason
from orchestrator.views.tables.runs import against, by_job, compared, time_text
from orchestrator.workspace.workspace import Workspace

#: Earlier runs of a job that the best is compared with, the newest ones.
EARLIER = 300
#: Commands to start with.
MOST_COMMANDS = 6


@dataclass(frozen=True)
class Ran:
    """One run of the session. ``figure``: its headline; empty if it measured nothing."""

    run_id: str
    job: str
    target: str
    status: str
    seconds: float
    usd: float
    commit: str
    dirty: bool
    figure: str = ""
    against: str = ""


@dataclass(frozen=True)
class Best:
    """The best figure of a job in the session, and before it."""

    job: str
    run_id: str
    figure: str
    against: str
    before: str = ""
    before_run: str = ""


@dataclass(frozen=True)
class Failed:
    run_id: str
    status: str
    step: str
    message: str
    hint: str


@dataclass(frozen=True)
class Next:
    """A command to start with, and why."""

    command: str
    why: str


@dataclass(frozen=True)
class SessionReport:
    record: SessionRecord
    runs: tuple[Ran, ...]
    #: Runs whose results are not in this store.
    uncollected: tuple[str, ...]
    best: tuple[Best, ...]
    failed: tuple[Failed, ...]
    costs: tuple[CostLine, ...]
    emulated: bool
    #: Phase and gate, of each that no run met yet.
    gaps: tuple[tuple[str, Goal], ...]
    levers: tuple[Levers, ...]
    next: tuple[Next, ...]

    def as_json(self) -> dict[str, Any]:
        findings = [
            {"label": one.label, "shape": shape, "bottleneck": f.bottleneck, "lever": f.lever, "impact": f.impact}
            for one in self.levers
            for shape, f in one.findings
        ]
        gaps = [{"phase": phase, **asdict(goal), "gap": goal.gap} for phase, goal in self.gaps]
        parts = ("runs", "best", "failed", "next")
        return {
            "session": self.record.model_dump(mode="json"),
            **{name: [asdict(one) for one in getattr(self, name)] for name in parts},
            "costs": [cost.model_dump() for cost in self.costs],
            "uncollected": list(self.uncollected), "emulated": self.emulated, "gaps": gaps, "levers": findings,
        }  # fmt: skip

    def files(self) -> dict[str, bytes]:
        """``report.md`` and ``report.json``."""
        whole = json.dumps({"schema_version": 1, **self.as_json()}, indent=1)
        return {"report.md": markdown(self).encode(), "report.json": whole.encode()}


# ------------------------------------------------------------------------------------------------ what there is to say
def session_report(services: Services, record: SessionRecord, progress: Progress | None) -> SessionReport:
    """Reads the store and the ledger; asks no machine and no cloud. ``progress``: None if the project has no phases."""
    store = services.store
    listed = (row for run_id in record.runs for row in store.rows(run_id=run_id))
    rows = sorted(listed, key=lambda row: (row.created, row.run_id))  # ids of one second are in no order
    heads = headlines(store, rows)
    here = {row.run_id for row in rows}
    entries = [line for line in lines(services, until_now=True) if line.run_id in {*record.runs, record.session_id}]
    costs: dict[str, CostLine] = {}
    for line in entries:
        seconds, usd = (known.seconds, known.usd) if (known := costs.get(line.activity)) else (0.0, 0.0)
        costs[line.activity] = CostLine(activity=line.activity, seconds=seconds + line.seconds, usd=usd + line.usd)
    best, failed = tuple(_best(services, rows, heads)), tuple(_failed(services, rows))
    uncollected = tuple(run_id for run_id in record.runs if run_id not in here)
    gaps = [(phase.name, goal) for phase in (progress.phases if progress else ()) for goal in phase.open_goals]
    return SessionReport(
        record=record, runs=tuple(_ran(row, heads.get(row.run_id)) for row in rows), uncollected=uncollected, best=best,
        failed=failed, costs=tuple(sorted(costs.values(), key=lambda one: -one.usd)),
        emulated=any(line.emulated for line in entries),
        gaps=tuple((name, goal) for name, goal in gaps if goal.met is False), levers=tuple(_levers(services, rows)),
        next=tuple(_next(record, rows, best, failed, uncollected, progress is not None))[:MOST_COMMANDS],
    )  # fmt: skip


def report_of(workspace: Workspace, services: Services, record: SessionRecord) -> SessionReport:
    """The report with the targets of the workspace's phases, if it has any."""
    try:
        progress = workspace.progress(services)
    except (NotFoundError, ConfigError):
        progress = None
    return session_report(services, record, progress)


def _ran(row: RunRow, head: Headline | None) -> Ran:
    return Ran(
        row.run_id, clean(row.job, 60), clean(row.target, 40), row.status, row.duration_s, row.usd,
        clean(row.git_commit or "", 64), row.dirty, *((time_text(head.p50, head.unit), against(head)) if head else ()),
    )  # fmt: skip


def _best(services: Services, rows: Sequence[RunRow], heads: dict[str, Headline]) -> Iterator[Best]:
    for (job, gpu), runs in by_job(rows, heads).items():
        first = min(compared(runs, heads), key=lambda head: head.p50, default=None)
        if first is None:  # a fast wrong kernel is worth nothing
            continue
        earlier = [
            row
            for row in services.store.rows(job=job, limit=EARLIER)
            if row.created < runs[0].created and (row.gpu or row.target) == gpu
        ]
        others = compared(earlier, headlines(services.store, [*earlier, *runs]))
        same = [head for head in others if (head.benchmark, head.mode) == (first.benchmark, first.mode)]
        known = min(same, key=lambda head: head.p50, default=None)
        before = (time_text(known.p50, known.unit), known.run_id) if known else ()
        yield Best(clean(job, 60), first.run_id, time_text(first.p50, first.unit), against(first), *before)


def _failed(services: Services, rows: Iterable[RunRow]) -> Iterator[Failed]:
    for row in rows:
        if row.status == "passed":
            continue
        try:
            record = services.store.get(row.run_id)
        except FcctlError as error:
            yield Failed(row.run_id, row.status, "", error.message, error.hint or "")
            continue
        yield Failed(row.run_id, row.status, *reason(record))


def _levers(services: Services, rows: Sequence[RunRow]) -> Iterator[Levers]:
    """Those of the newest run that was profiled."""
    for row in reversed(rows):
        try:
            found = levers_of(build([show(services.store, row.run_id)]))
        except FcctlError:
            continue
        if any(one.findings for one in found):
            yield from found
            return


def _next(
    record: SessionRecord, rows: Sequence[RunRow], best: Sequence[Best], failed: Sequence[Failed],
    uncollected: Sequence[str], phases: bool,
) -> Iterator[Next]:  # fmt: skip
    if uncollected:
        yield Next("fcctl pull-results", f"collect {plural(len(uncollected), 'run')} of this session")
    newest = {row.run_id: row for row in rows}
    for one in failed[-1:]:
        if one.status in ("over_budget", "preempted", "cancelled", "lost", "idle"):
            yield Next(f"fcctl run --resume {one.run_id}", f"the run was interrupted: {one.status.replace('_', ' ')}")
        else:
            step = f" --step {one.step}" if one.step else ""
            yield Next(f"fcctl logs {one.run_id}{step}", f"the last run that did not pass: {one.message}")
    for champion in best:
        row = newest[champion.run_id]
        if row.git_commit and not row.dirty:
            again = f"fcctl run {row.job} --rev {row.git_commit[:12]} --on {row.target}"
            yield Next(again, f"run the best of {champion.job} again ({champion.figure})")
        else:
            yield Next(f"fcctl results show {row.run_id}", f"the best of {champion.job} ({champion.figure})")
    if phases:
        yield Next("fcctl progress", "show the open targets and the remaining budget")
    yield Next(f"fcctl session start --on {record.target} --budget {record.budget_usd:g}", "start the next session")


# ------------------------------------------------------------------------------------------------ how it is said
def markdown(report: SessionReport) -> str:
    """The whole report."""
    return markdown_page(f"Session {report.record.session_id}", as_markdown(blocks(report)))


def blocks(report: SessionReport) -> Iterator[Block]:
    """Each part that has something to say."""
    yield Text(_summary(report))
    if report.runs:
        yield Heading("Runs")
        yield Grid(
            ("run", "job", "status", "result", "duration", "cost", "commit"),
            tuple((Cell(r.run_id), r.job, Cell(r.status, kind="status"), f"{r.figure} {r.against}".strip(),
                   duration(r.seconds), usd(r.usd), commit_text(r.commit, dirty=r.dirty))
                  for r in report.runs),
            "Runs, the oldest first", numbers=(4, 5),
        )  # fmt: skip
    if report.best:
        yield Heading("Best")
        rows = tuple((b.job, f"{b.figure} {b.against}".strip(), b.run_id, f"{b.before} {b.before_run}".strip() or "-")
                     for b in report.best)  # fmt: skip
        yield Grid(("job", "best", "run", "previous best"), rows, "The fastest of each job")
    if report.failed:
        yield Heading("Runs that did not pass")
        yield Grid(
            ("run", "status", "step", "why", "hint"),
            tuple((f.run_id, Cell(f.status, kind="status"), f.step, f.message, f.hint) for f in report.failed),
            "Each run that did not pass, with its first reason",
        )
    yield from _money(report)
    if report.gaps:
        yield Heading("Open targets")
        gaps = tuple((name, target_text(goal), value_text(goal), gap_text(goal)) for name, goal in report.gaps)
        yield Grid(("phase", "target", "best so far", "gap"), gaps, "Targets that runs measured and did not meet")
    for one in report.levers:
        if one.findings:
            yield Heading("Next levers", one.label)
            yield Findings(one.findings)
    yield Heading("Next commands")
    commands = tuple((Cell(one.command, kind="code"), one.why) for one in report.next)
    yield Grid(("command", "why"), commands, "Type them in this order")


def _summary(report: SessionReport) -> str:
    record = report.record
    counts = [(status, sum(r.status == status for r in report.runs)) for status in dict.fromkeys(
        r.status for r in report.runs)]  # fmt: skip
    ran = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts) or "no run collected"
    times = [minute(iso(moment)) for moment in (record.created, record.ended)]
    money = f"{usd(record.usd)} of {usd(record.budget_usd)}" + (" (emulated)" if report.emulated else "")
    until = "until now" if record.how == "open" else f"to {times[1]} UTC"
    more = f"; {len(report.uncollected)} not collected" if report.uncollected else ""
    return f"On {clean(record.target, 40)} from {times[0]} {until}: {clean(record.reason, 200)}. {money}. {ran}{more}."


def _money(report: SessionReport) -> Iterator[Block]:
    if not report.costs:
        return
    yield Heading("Cost")
    total = sum(one.usd for one in report.costs) or 1.0
    rows = tuple((one.activity, duration(one.seconds), usd(one.usd), f"{100 * one.usd / total:.0f} %")
                 for one in report.costs)  # fmt: skip
    yield Grid(("activity", "time", "dollars", "share"), rows, "Cost by activity", numbers=(1, 2, 3))
