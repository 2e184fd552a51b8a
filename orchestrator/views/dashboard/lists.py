"""The first page; the list of runs, with search, filters and order; and the comparison of those chosen in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fcctl_remote.wire import RUN_ENDINGS
from orchestrator.base.errors import FcctlError, UsageError
from orchestrator.base.sanitize import clean
from orchestrator.leases.session_rules import money, underway
from orchestrator.results.compare.compare import MOST_SIDES
from orchestrator.results.compare.history import branches, subjects, with_subject
from orchestrator.results.look import headlines, named
from orchestrator.results.records import IMPORTED, RunRecord, RunRow
from orchestrator.results.store.rows import ORDERS, Search
from orchestrator.runs.cost.outlook import Outlook, outlook
from orchestrator.runs.progress import target_of
from orchestrator.runs.services import Services
from orchestrator.schedules.due import upcoming
from orchestrator.sessions.session import SessionStatus
from orchestrator.views.blocks import Block, Cell, Grid, Heading, Section, Text
from orchestrator.views.figures import age, local, usd
from orchestrator.views.tables.hosts import session_line
from orchestrator.views.tables.money import caps_bars
from orchestrator.views.tables.plan import gap_text, target_text, value_text
from orchestrator.views.tables.run import reason
from orchestrator.views.tables.runs import (
    FAILURES,
    by_job,
    failures,
    jobs_grid,
    last_and_best,
    run_link,
    runs_grid,
    sentence,
)

if TYPE_CHECKING:
    from orchestrator.views.dashboard.site import DashboardContext

#: Rows of a page; and the newest runs, which can be ordered by result, and whose jobs, targets and commits are offered.
ROWS, RANKED = 50, 1000
FASTEST = "fastest"
#: Words of a search, and characters of it.
WORDS, TEXT = 6, 200

Options = list[tuple[str, str]]


def options(names: Sequence[str], everything: str = "all") -> Options:
    return [("", everything), *((name, clean(name, 80).replace("_", " ")) for name in names)]


async def part(site: DashboardContext, task: str, **arguments: Any) -> HTMLResponse:
    """A part of a page that a child makes from the results as they are now."""
    runs = site.store.root / "runs"
    html = await site.children.work(
        task, as_of=str(runs.stat().st_mtime_ns) if runs.is_dir() else "", results=str(site.store.root),
        root=str(site.backend.root), base=site.access.root, **arguments,
    )  # fmt: skip
    return HTMLResponse(html)


@dataclass(frozen=True)
class Listed:
    """What is asked of a list of runs, as its address says it."""

    text: str
    filters: dict[str, str | None]
    order: str
    page: int

    @classmethod
    def of(cls, request: Request) -> Listed:
        given = request.query_params
        filters = {key: given.get(key) or None for key in ("job", "target", "status")}
        number, order = given.get("page", "1"), given.get("sort", "newest")
        page = min(max(1, int(number)), 10_000) if number.isdigit() and len(number) < 9 else 1
        return cls(given.get("q", "")[:TEXT].strip(), filters, order if order in (*ORDERS, FASTEST) else "newest", page)

    def rows(self, site: DashboardContext) -> tuple[list[RunRow], bool]:
        """One page of them, and whether there are more."""
        words = tuple(self.text.split()[:WORDS])
        commits = tuple(with_subject(site.backend.root, words))
        search = Search(words, commits, self.order if self.order in ORDERS else "newest")
        first, last = (self.page - 1) * ROWS, self.page * ROWS
        limit = RANKED if self.order == FASTEST else last + 1
        rows = site.store.search(search, limit=limit, **self.filters)
        if self.order == FASTEST:
            heads = headlines(site.store, rows)
            rows = sorted((row for row in rows if row.run_id in heads), key=lambda row: heads[row.run_id].p50)
        return rows[first:last], len(rows) > last

    def older(self) -> str:
        given = {"q": self.text, "sort": self.order, **self.filters}
        return urlencode({**{key: value for key, value in given.items() if value}, "page": self.page + 1})


def _list(site: DashboardContext, request: Request, chosen: Sequence[str]) -> dict[str, Any]:
    """The values of the list's template: those chosen first, then what is asked for."""
    asked = Listed.of(request)
    rows, more = asked.rows(site)
    recent = site.store.rows(limit=RANKED)
    above = [row for run_id in chosen for row in site.store.rows(run_id=run_id)]
    shown = [*above, *(row for row in rows if row.run_id not in chosen)]
    known = subjects(site.backend.root, (row.git_commit for row in shown))
    caption = f"Finished runs, {asked.order} first"
    heads = headlines(site.store, {row.run_id: row for row in (*recent, *shown)}.values())
    grid = runs_grid(shown, heads, known, site.now(), caption, frozenset(chosen), recent)
    names = {key: sorted({getattr(row, key) for row in recent}) for key in ("job", "target")}
    filters = [
        (key, given or "", options(names.get(key, (*RUN_ENDINGS, IMPORTED)))) for key, given in asked.filters.items()
    ]
    orders = ("sort", asked.order, [(name, f"{name} first") for name in (*ORDERS, FASTEST)])
    none = (
        "No matching runs."
        if recent
        else "No finished runs yet. To start one: fcctl run JOB; to list jobs: fcctl jobs ls"
    )
    blocks: list[Block] = [grid] if shown else [Text(none)]
    commits = {row.git_commit for row in recent}
    others = [*site.store.tags(), *(name for name, sha in branches(site.backend.root).items() if sha in commits)]
    return {
        "filters": [*filters, orders], "text": asked.text, "blocks": blocks, "chosen": chosen,
        "others": options(others, "none"), "older": asked.older() if more else "", "most": MOST_SIDES,
    }  # fmt: skip


async def history(site: DashboardContext, request: Request) -> Response:
    """All finished runs."""
    site.children.warm()
    values = await asyncio.to_thread(_list, site, request, ())
    return site.page("list", request, **values)


def _chosen(site: DashboardContext, request: Request) -> list[str]:
    """The names asked for, each once; the runs among them the oldest first unless ``first`` names one."""
    given = dict.fromkeys(name.strip()[:TEXT] for name in request.query_params.getlist("run") if name.strip())
    if any(name.startswith("-") for name in given):
        raise UsageError("a run's name cannot begin with a dash", hint="choose one from the list")
    first = request.query_params.get("first", "")
    newest = {name: max(named(site.store, name, site.backend.root)) for name in given}
    return sorted(given, key=lambda name: (name != first, newest[name]))


async def compare(site: DashboardContext, request: Request) -> Response:
    """The chosen runs compared with the first of them, above the list to choose from."""
    names = await asyncio.to_thread(_chosen, site, request)
    problem = f"{len(names)} runs are chosen; at most {MOST_SIDES} can be compared." if len(names) > MOST_SIDES else ""
    runs = [name for name in names if site.store.is_complete(name)]
    values = await asyncio.to_thread(_list, site, request, runs)
    can = 2 <= len(names) <= MOST_SIDES
    links = [(name, urlencode([("first", name), *(("run", one) for one in names)])) for name in names] if can else []
    return site.page("compare", request, problem=problem, names=names, links=links, **values)


async def compare_answer(site: DashboardContext, request: Request, *, bars_only: bool) -> Response:
    """What the comparison says, for its page; ``bars_only`` its picture, for a run's page."""
    names = await asyncio.to_thread(_chosen, site, request)
    if not 2 <= len(names) <= MOST_SIDES:
        raise UsageError(f"2 to {MOST_SIDES} runs can be compared", hint="choose them from the list")
    return await part(site, "compare", names=names, bars_only=bars_only)


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
        header, caption = ("run", "status", "when", "message"), "Jobs whose newest run on a target did not pass"
        yield Grid(header, tuple(lines), caption, numbers=(2,))


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
