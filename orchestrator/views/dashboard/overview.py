"""The first page: is my kernel better, what runs and costs now, what wants a look, what starts next."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from orchestrator.base.errors import FcctlError
from orchestrator.base.sanitize import clean
from orchestrator.leases.session_rules import money, underway
from orchestrator.results.look import headlines
from orchestrator.results.records import RunRecord, RunRow
from orchestrator.runs.cost.outlook import Outlook, outlook
from orchestrator.runs.progress import target_of
from orchestrator.runs.services import Services
from orchestrator.schedules.due import upcoming
from orchestrator.sessions.session import SessionStatus
from orchestrator.views.blocks import Block, Cell, Grid, Heading, Section, Text
from orchestrator.views.figures import age, local, usd
from orchestrator.views.tables.hosts import session_line
from orchestrator.views.tables.money import caps_bars
from orchestrator.views.tables.progress import gap_text, target_text, value_text
from orchestrator.views.tables.run import reason
from orchestrator.views.tables.runs import FAILURES, by_job, failures, jobs_grid, last_and_best, run_link, sentence

if TYPE_CHECKING:
    from orchestrator.views.dashboard.site import DashboardContext

#: Runs looked at for the best figure of each job, and firings shown.
RUNS, FIRINGS = 300, 5
#: What a new user types first, and what each does.
FIRST = (
    ("fcctl doctor", "check this computer and the targets"),
    ("fcctl run preflight", "run a first job on this computer"),
    ("fcctl ui --example", "open these pages with published runs of an H100 and an H200"),
)


async def overview(site: DashboardContext, request: Request) -> Response:
    site.children.warm()
    runs = await site.live.now()
    above, below = await asyncio.to_thread(_sections, site, sum(run.usd_per_hour for run in runs))
    return site.page("overview", request, above=above, below=below, **site.live_values(runs))


def _sections(site: DashboardContext, usd_per_hour: float) -> tuple[list[Section], list[Section]]:
    """What stands above the active runs, and below them."""
    rows, now = site.store.rows(limit=RUNS), site.now()
    above = []
    if not rows:
        lines = tuple((Cell(command, kind="code"), what) for command, what in FIRST)
        above.append(
            Section("first", "No runs yet: three commands to start with", [Grid(("command", "what it does"), lines)])
        )
    heads = headlines(site.store, rows)
    if groups := by_job(rows, heads):
        gates = {last.run_id: _gates(site, last) for last, *_ in groups.values()}
        newest = next(iter(groups.values()))
        last, best, _ = last_and_best(newest, heads)
        name = f"{clean(newest[0].job, 40)} on {clean(newest[0].gpu or newest[0].target, 30)}"
        text = Text(
            f"{name}, {age(newest[0].created, now)} ago: {sentence(last, ('the previous best', best))}", style="answer"
        )
        above.append(Section("jobs", "Faster or slower?", [text, jobs_grid(rows, heads, gates, now)]))
    below = [
        Section("sessions", "Open sessions", list(open_sessions(site.backend.services))[1:]),
        Section("failures", "Failures to check", list(_failures(site, rows, now))),
        Section("money", "Money", list(_money(outlook_of(site), usd_per_hour))),
        Section("next", "Next scheduled runs", list(_firings(site, now))),
    ]
    return above, [section for section in below if section.blocks]


def open_sessions(services: Services) -> Iterator[Block]:
    """A line for each machine that a session keeps on; asks no machine."""
    now, found = services.clock.now(), list(underway(services.sessions))
    if found:
        yield Heading("Open sessions")
    for one in found:
        yield Text(session_line(SessionStatus(one, money(one.saved, one.machine, now)), now))
        yield Text(f"to stop it: {one.how_to_stop}", style="soft")


def _record(site: DashboardContext, row: RunRow) -> RunRecord | None:
    try:
        return site.store.get(row.run_id)
    except FcctlError:
        return None


def _gates(site: DashboardContext, row: RunRow) -> Cell:
    """``passed 11 of 11``, ``failed 2 of 11``, or ``incomplete 1 of 11`` had no value, with the run's target and the
    gap to it; empty without gates."""
    record = _record(site, row)
    judged = record.judged if record else []
    counts = Counter(gate.verdict for gate in judged)
    known = (("failed", counts["fail"]), ("incomplete", counts["unavailable"]), ("passed", len(judged)))
    text = next((f"{what} {count} of {len(judged)}" for what, count in known if count), "")
    target = target_of(record) if record else None
    return Cell(text, f"{target_text(target)}: {value_text(target)}, {gap_text(target)}" if target else "", "status")


def _failures(site: DashboardContext, rows: list[RunRow], now: float) -> Iterator[Block]:
    lines = []
    for row in islice(failures(rows), FAILURES):
        record = _record(site, row)
        step, why, hint = reason(record) if record else ("", "", "")
        what = Cell(f"step {step}: {why}" if step else why, hint and f"hint: {hint}")
        lines.append((run_link(row), Cell(row.status, kind="status"), f"{age(row.created, now)} ago", what))
    if lines:
        yield Grid(("run", "status", "when", "message"), tuple(lines), "Jobs whose newest run on a target did not pass")


def outlook_of(site: DashboardContext) -> Outlook:
    return site.reused("outlook", lambda: outlook(site.backend.services))


def _money(found: Outlook, usd_per_hour: float) -> Iterator[Block]:
    yield from caps_bars(found, usd_per_hour)
    if found.forecast.total:
        yield Text(f"Forecast to the end of the month: {usd(found.forecast.total)}", style="soft")


def _firings(site: DashboardContext, now: float) -> Iterator[Block]:
    """The next time of each schedule that is on, the soonest first."""
    moment = datetime.fromtimestamp(now, UTC)
    due = [
        (times[0].timestamp(), name, one)
        for name, one in site.backend.config.schedules.items()
        if one.enabled and (times := upcoming(one, moment, 1))
    ]
    lines = tuple(
        (name, local(at), f"{clean(one.job, 40)} on {clean(one.on, 40)}") for at, name, one in sorted(due)[:FIRINGS]
    )
    if lines:
        yield Grid(("schedule", "next", "job"), lines, "Times are in this computer's time zone")
