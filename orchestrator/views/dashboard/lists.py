"""The list of runs, with search, filters and order; and the comparison of those that are chosen in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fcctl_remote.wire import RUN_ENDINGS
from orchestrator.base.errors import UsageError
from orchestrator.base.sanitize import clean
from orchestrator.results.compare.compare import MOST_SIDES
from orchestrator.results.compare.history import branches, subjects, with_subject
from orchestrator.results.look import headlines, named
from orchestrator.results.records import IMPORTED, RunRow
from orchestrator.results.store.rows import ORDERS, Search
from orchestrator.views.blocks import Block, Text
from orchestrator.views.tables.runs import runs_grid

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
