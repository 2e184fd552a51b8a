"""Active and recent runs; one run, active or finished; its logs; cancel and run again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from orchestrator.base import safe_paths
from orchestrator.base.errors import FcctlError, RunNotFound, plural
from orchestrator.base.run_id import is_valid
from orchestrator.base.sanitize import clean, clean_text
from orchestrator.results.compare.history import subjects
from orchestrator.results.documents import label
from orchestrator.results.look import Shown, headlines, in_common, lineage, show
from orchestrator.results.records import RunRecord, RunRow
from orchestrator.views.blocks import Block, Cell, Facts, Folded, Grid, Heading, Section, Text, closed, more
from orchestrator.views.dashboard.children import BARS
from orchestrator.views.dashboard.lists import TEXT
from orchestrator.views.live_runs import LiveRun
from orchestrator.views.report.build import build, gpu_of
from orchestrator.views.report.outputs import POLICY as REPORT_POLICY
from orchestrator.views.report.sections import sections
from orchestrator.views.tables.compare import expected
from orchestrator.views.tables.documents import section
from orchestrator.views.tables.run import failed_steps, log_end
from orchestrator.views.tables.runs import answer, compared, earlier, lineage_grid

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore
    from orchestrator.views.dashboard.site import DashboardContext

#: Earlier runs of the job among which the best is looked for, and the report's sections that come first on a page.
EARLIER = 200
FIRST = ("results", "tuning", "steps", "gates", "machine")
#: Of a run that did not pass.
FAILED_FIRST = ("gates", "steps", "results", "machine")
#: Facts of a report that a page has in its first lines.
ABOVE = ("run", "job", "target", "status", "commit")
LOG_BYTES, FOLDED_LINES = 512 * 1024, 500


def routes(site: DashboardContext) -> Sequence[Route]:
    pages = _Runs(site)
    return [
        Route("/live", pages.live), Route("/runs/{run_id}", pages.one), Route("/runs/{run_id}/live", pages.follow),
        Route("/runs/{run_id}/log/{step}", pages.log), Route("/runs/{run_id}/files/{path:path}", pages.file),
        Route("/runs/{run_id}/report", pages.report), Route("/runs/{run_id}/charts", pages.charts),
        Route("/runs/{run_id}/again", pages.plan_again),
        Route("/runs/{run_id}/again", pages.run_again, methods=["POST"]),
        Route("/runs/{run_id}/cancel", pages.cancel, methods=["POST"]),
    ]  # fmt: skip


class _Runs:
    def __init__(self, site: DashboardContext) -> None:
        self._site = site
        #: What became of the cancels asked for here, by run id.
        self._cancels: dict[str, str] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self._rendered: tuple[int, str] = (-1, "")

    # -------------------------------------------------------------------------------------------- all of them
    async def live(self, request: Request) -> Response:
        """The list of active runs, made once for each version; without it for a browser that has this version."""
        runs, version = await self._site.live.now(), self._site.live.version
        if self._rendered[0] != version:
            self._rendered = (version, self._site.render("live_runs", **self._site.live_values(runs)))
        known = request.query_params.get("version") == str(version)
        return JSONResponse({"version": version, "html": "" if known else self._rendered[1]})

    # -------------------------------------------------------------------------------------------- one of them
    async def one(self, request: Request) -> Response:
        run_id = await self._resolve(request)
        await asyncio.to_thread(_require, self._site.store, run_id)
        if await asyncio.to_thread(self._site.store.is_complete, run_id):
            return self._site.page("run", request, **await asyncio.to_thread(self._finished, run_id))
        run = await self._site.live.await_run(run_id)
        if run is None:  # it finished meanwhile, or its machine does not answer
            return see(request.url.path if self._site.store.is_complete(run_id) else "/")
        return self._site.page("live_run", request, run=run, **self._of(run))

    def _finished(self, run_id: str) -> dict[str, Any]:
        """The page of a finished run: its answer first, then what it rests on."""
        shown = show(self._site.store, run_id)
        row, before, heads = earlier(self._site.store, run_id, shown.record.job, EARLIER)
        report = build([shown])
        before_id = next((head.run_id for head in compared(before, heads) if run_id in heads), "")
        order = FIRST if shown.record.status == "passed" else FAILED_FIRST
        parts = [
            replace(part, blocks=[*closed(map(_not_above, part.blocks))]) for part in sections(report, order=order)
        ]
        found = [Text(search.verdict, style="answer") for search in report.tunings]
        return {
            "run": shown.record, "gpu": gpu_of(shown), "ends": _ends(shown),
            "answer": [*answer(run_id, before, heads), *found],
            "subject": subjects(self._site.backend.root, [shown.record.source.git_commit]),
            "before": before_id, "expected": expected(in_common(self._site.store, run_id, before_id), BARS),
            "parts": [*(part for part in parts if report.headline or part.id != "results"),
                      *_lineage(self._site.store, row), *_numbers(shown), *_files(shown)],
        }  # fmt: skip

    def _of(self, run: LiveRun) -> dict[str, Any]:
        cap = self._site.backend.config.budget.per_run_usd
        return {"cap": cap, "cancel": self._cancels.get(run.run_id, "")}

    async def follow(self, request: Request) -> Response:
        """State and log of a run since the ``version`` and the place (``at``) that the browser has; ``home`` once all
        of it is there."""
        run_id, given, store = await self._resolve(request), request.query_params, self._site.store
        _require(store, run_id)
        complete = store.is_complete(run_id)
        await self._site.live.now()
        run, version, known = self._site.live.find(run_id), self._site.live.version, given.get("at", "")
        at = int(known) if known.isdigit() and len(known) < 16 else 0
        chunks, over = self._site.logs.since(run_id, at)
        fresh = run if given.get("version") != str(version) else None
        return JSONResponse({
            "version": version, "at": chunks[-1].end if chunks else at, "home": complete and over,
            "html": self._site.render("live_state", run=fresh, **self._of(fresh)) if fresh else "",
            "log": [{"step": chunk.step, "text": chunk.text} for chunk in chunks],
        })  # fmt: skip

    # -------------------------------------------------------------------------------------------- what it left
    async def log(self, request: Request) -> Response:
        run_id = await self._resolve(request)
        record = await asyncio.to_thread(self._site.store.get, run_id)
        step = next((s for s in record.steps if s.id == request.path_params["step"]), None)
        content = safe_paths.tail(self._site.store.folder(run_id), step.log, LOG_BYTES) if step and step.log else None
        if step is None or content is None:
            raise HTTPException(404, "no such log")
        if request.query_params.get("raw") is not None:
            return PlainTextResponse(content.data, headers={"content-disposition": "inline"})
        lines = list(enumerate(clean_text(content.data.decode(errors="replace")).splitlines(), 1))
        words = request.query_params.get("q", "")[:TEXT].strip()
        found = [line for line in lines if words.lower() in line[1].lower()]
        parts = [found[i : i + FOLDED_LINES] for i in range(0, len(found), FOLDED_LINES)]
        return self._site.page(
            "log", request, run=record, step=step, parts=parts, cut=content.cut, words=words,
            found=f"{len(found)} of {plural(len(lines), 'line')}",
        )  # fmt: skip

    async def file(self, request: Request) -> Response:
        """A file that the run left: text and pictures are shown, others are downloaded."""
        path, folder = request.path_params["path"], self._site.store.folder(await self._resolve(request))
        try:
            stream, size = await asyncio.to_thread(safe_paths.open_result, folder, path)
        except (OSError, ValueError):
            raise HTTPException(404, "no such file") from None
        kind = OPENED.get(Path(path).suffix.lower())
        headers = {"content-disposition": "inline" if kind else "attachment", "content-length": str(size)}
        return StreamingResponse(_content(stream), headers=headers, media_type=kind or "application/octet-stream")

    async def report(self, request: Request) -> Response:
        policy = f"{REPORT_POLICY}; frame-ancestors 'none'"
        html = await self._drawn(request, "report", version=self._site.backend.version)
        return HTMLResponse(html, headers={"content-security-policy": policy})

    async def charts(self, request: Request) -> Response:
        """The report's pictures, for the run's page."""
        return HTMLResponse(await self._drawn(request, "pictures"))

    async def _drawn(self, request: Request, task: str, **arguments: str) -> str:
        run_id = await self._resolve(request)
        await asyncio.to_thread(self._site.store.get, run_id)
        return await self._site.children.work(task, run=str(self._site.store.folder(run_id)), **arguments)

    # -------------------------------------------------------------------------------------------- actions
    async def plan_again(self, request: Request) -> Response:
        """What running it again would do and could cost, before anybody agrees."""
        record = await self._complete(request)
        plan = await self._site.children.fcctl(*_again(record), "--dry-run")
        return self._site.page("again", request, run=record, plan=plan)

    async def run_again(self, request: Request) -> Response:
        await self._site.require_token(request)
        record = await self._complete(request)
        run_id = await self._site.children.launch(*_again(record), "--yes", "--color=never")
        if run_id:
            await self._begun(run_id)
        return see(f"/runs/{run_id}" if run_id else "/")

    async def _begun(self, run_id: str) -> None:
        """Return once the store knows the run: its command names it a moment before."""
        store = self._site.store
        for _ in range(100):
            if store.has(run_id):
                return
            await asyncio.sleep(0.1)

    async def cancel(self, request: Request) -> Response:
        await self._site.require_token(request)
        run_id = await self._resolve(request)
        if not self._site.store.is_complete(run_id) and self._cancels.get(run_id) != "cancelling":
            self._cancels[run_id] = "cancelling"
            task = asyncio.create_task(self._cancel(run_id))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)
        return see(f"/runs/{run_id}")

    async def _cancel(self, run_id: str) -> None:
        try:
            answer = await self._site.children.fcctl("cancel", run_id)
        except FcctlError as error:
            self._cancels[run_id] = f"not cancelled: {error.message}"
            return
        failed = not_cancelled(answer)
        if failed:  # a search on several machines, of which one is away
            self._cancels[run_id] = f"not cancelled: {failed}"
        else:
            self._cancels.pop(run_id, None)

    async def _complete(self, request: Request) -> RunRecord:
        return await asyncio.to_thread(self._site.store.get, await self._resolve(request))

    async def _resolve(self, request: Request) -> str:
        """The run of the address: a whole id, so that a name from it never means more than one run."""
        run_id: str = request.path_params["run_id"]
        if not is_valid(run_id):
            raise RunNotFound("the address has no valid run id", hint="choose one in the list of runs")
        return run_id


def _require(store: FileStore, run_id: str) -> None:
    """Raises RunNotFound: the run is neither active nor complete."""
    if not store.has(run_id):
        raise RunNotFound(f"no run {run_id}", hint="choose one in the list of runs")


def _not_above(block: Block) -> Block:
    """Without the facts that a run's page begins with."""
    if not isinstance(block, Facts):
        return block
    return Facts(tuple(pair for pair in block.pairs if pair[0] not in ABOVE))


def see(path: str) -> RedirectResponse:
    """Go to ``path`` with a GET, whatever the request was."""
    return RedirectResponse(path, 303)


def not_cancelled(answer: Any) -> str:
    """Which of the runs that ``fcctl cancel --json`` speaks of it could not cancel, and why; empty if there is none."""
    rows = [row for row in answer["runs"] if row.get("error")]
    return "; ".join(f"{row['run_id']}: {row['error']}" for row in rows)


def _again(record: RunRecord) -> list[str]:
    """The command that does the same once more, with the source as it is now."""
    settings = [word for key, value in record.settings.items() for word in ("--set", f"{key}={value}")]
    return ["run", record.job, "--on", record.target, *settings]


def _lineage(store: FileStore, row: RunRow) -> Iterator[Section]:
    before, after = lineage(store, row.run_id)
    known = {one.run_id: one for name in (*before, *after) for one in store.rows(run_id=name)} | {row.run_id: row}
    if grids := [*lineage_grid(row, before, after, known, headlines(store, known.values()))]:
        yield Section("lineage", "Lineage", grids)


def _numbers(shown: Shown) -> Iterator[Section]:
    """The documents of the steps as tables, folded: those of one kind and step together."""
    groups: dict[str, list[Block]] = {}
    for document in shown.documents.items:
        if found := section(document):
            blocks = groups.setdefault(f"{found[0]} (step {clean(document.step, 40)})", [])
            blocks += [Heading(clean(name, 60))] if (name := label(document)) else []
            blocks += found[1]
    if groups:
        yield Section("numbers", "Documents of the steps", [Folded(name, tuple(some)) for name, some in groups.items()])


_TEXT = ".txt .log .json .jsonl .csv .md .yaml .yml .toml .cu .cuh .cpp .h .ptx .sass .py .sh"
#: Files that a browser shows: no page or script is among them.
OPENED = {**dict.fromkeys(_TEXT.split(), "text/plain; charset=utf-8"), ".png": "image/png"}
#: Files of a run that its page lists.
MAX_FILES = 300


def _content(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while part := stream.read(1 << 16):
            yield part


def _files(shown: Shown) -> Iterator[Section]:
    """What the steps left, to open or to download."""
    files = [path for top in ("artifacts", "steps") for path in sorted((shown.folder / top).rglob("*"))
             if path.is_file() and not path.is_symlink()]  # fmt: skip
    rows = tuple((_file(shown, path), f"{path.stat().st_size:,}") for path in files[:MAX_FILES])
    if rows:
        grid = Grid(("file", "bytes"), rows, "Files of the steps", numbers=(1,))
        yield Section("files", "Files", [Folded(plural(len(files), "file"), (grid, *more(files, MAX_FILES)))])


def _file(shown: Shown, path: Path) -> Cell:
    name = path.relative_to(shown.folder).as_posix()
    return Cell(clean(name, 200), href=f"/runs/{shown.record.run_id}/files/{quote(name)}")


def _ends(shown: Shown) -> list[tuple[str, str]]:
    """The last lines of the logs of the steps that stopped the run, by step."""
    ends = [(step.id, log_end(shown.folder, step.log)) for step in failed_steps(shown.record)]
    return [(step, "\n".join(lines)) for step, lines in ends if lines]
