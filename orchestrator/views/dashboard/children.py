"""Work that is not done in the server's process: fcctl's own commands, and drawing and comparing.

A comparison loads SciPy, a report a drawing engine: 100 MB that the server would hold ever after, so a child does both,
and ends when nobody has asked for a minute. A run outlives the server. A few children at a time. A child is this module
as a program: a request as JSON in a line of standard input, the part of a page in a line of standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orchestrator.base.errors import (
    BudgetError,
    ConflictError,
    FcctlError,
    NotFoundError,
    RunNotFinished,
    RunNotFound,
    UsageError,
)
from orchestrator.results.documents import load
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

AT_ONCE = 2
TIMEOUT_S, IDLE_S = 120.0, 60.0
#: Answers that are kept.
KEPT = 24
MAX_OUTPUT_BYTES = 32 * 1024 * 1024
#: How long the page waits for the id of a new run, seconds.
LAUNCH_S = 20.0
_MODULES = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)  # noqa: PTH100  as Python itself has it


class Children:
    """Starts them, and never more than :data:`AT_ONCE` that somebody waits for."""

    def __init__(self, fcctl: Sequence[str], root: Path) -> None:
        self._fcctl = list(fcctl)
        self._root = root
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._idle: list[Process] = []
        self._warming: asyncio.Task[None] | None = None
        self._answers: OrderedDict[tuple[str, bytes], asyncio.Task[str]] = OrderedDict()

    async def fcctl(self, *args: str) -> Any:
        """One command with ``--json``; its document.

        Raises:
            FcctlError: what the command said went wrong.
        """
        return _document(*await self._run([*self._fcctl, *args, "--json"]))

    async def work(self, task: str, as_of: str = "", **arguments: Any) -> str:
        """The part of a page that one of :mod:`orchestrator.views.dashboard.children`'s tasks makes. The answer to the
        same request ``as_of`` the same state of the results is kept.

        Raises:
            FcctlError: it failed.
        """
        key = (as_of, json.dumps({"task": task, **arguments}).encode())
        if key not in self._answers:
            self._answers[key] = asyncio.create_task(self._ask(key[1]))
            while len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        try:
            return await asyncio.shield(self._answers[key])
        except FcctlError:
            self._answers.pop(key, None)
            raise

    def warm(self) -> None:
        """Start a worker, if none is there, which imports what draws: the first chart that is asked for comes at
        once."""
        if not self._idle and (self._warming is None or self._warming.done()):
            self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        with suppress(FcctlError, OSError):
            await self._ask(b'{"task": "warm"}')

    async def _ask(self, request: bytes) -> str:
        """One line to a worker, one line back. What it has imported it need not import for the next one."""
        async with self._slots:
            worker = self._idle.pop() if self._idle else await self._worker()
            answer = b""
            try:
                async with _limited():
                    cast("StreamWriter", worker.stdin).write(request + b"\n")
                    answer = await cast("StreamReader", worker.stdout).readline()
            finally:
                if not answer:
                    await _ended(worker)
            if not answer:
                message = f"the process that draws this page ended with exit code {worker.returncode}"
                raise FcctlError(message, hint="load the page again; if this repeats, restart fcctl ui")
            self._idle.append(worker)
            asyncio.get_running_loop().call_later(IDLE_S, self._retire, worker)
        told = json.loads(answer)
        if "error" in told:
            raise _known(told["error"])
        return str(told["html"])

    async def _worker(self) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "orchestrator.views.dashboard.children", stdin=PIPE, stdout=PIPE,
            stderr=DEVNULL, cwd=self._root, env=_environment(), limit=MAX_OUTPUT_BYTES,
        )  # fmt: skip

    def _retire(self, worker: Process) -> None:
        """End it, unless it works: then it is retired a minute after."""
        if worker in self._idle and worker.stdin is not None:
            self._idle.remove(worker)
            worker.stdin.close()

    async def launch(self, *args: str) -> str | None:
        """Start ``fcctl run ...``, which then needs nobody; the new run's id, None if that took too long to learn.

        Raises:
            FcctlError: it ended before there was a run, and why.
        """
        with tempfile.TemporaryFile() as said:
            # Not asyncio's: a loop that ends kills the children it still has, and a run outlives the server.
            child = subprocess.Popen(
                [*self._fcctl, *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                cwd=self._root, env=_environment(), start_new_session=True,
            )  # fmt: skip
            threading.Thread(target=child.wait, name=f"reap {child.pid}", daemon=True).start()
            for _ in range(int(LAUNCH_S / 0.1)):
                over = child.poll() is not None
                text = os.pread(said.fileno(), 64 * 1024, 0).decode(errors="replace")
                run_id = _run_id(text)
                if run_id or over:
                    break
                await asyncio.sleep(0.1)
            else:
                return None
        if run_id is None:
            raise _told(text, child.returncode or 1)
        return run_id

    async def _run(self, argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        async with self._slots:
            child = await asyncio.create_subprocess_exec(
                *argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=self._root, env=_environment(),
            )  # fmt: skip
            try:
                async with _limited():
                    out, err = await child.communicate()
            finally:
                await _ended(child)
            return child.returncode or 0, out, err


@asynccontextmanager
async def _limited() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    except TimeoutError:
        raise FcctlError(f"the command took longer than {TIMEOUT_S:.0f} s", hint="run it in a terminal") from None


async def _ended(child: Process) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _environment() -> dict[str, str]:
    """This process's, and the way to these very modules: never through the workspace, whose files are not fcctl's
    (hence ``-P`` above, too)."""
    return {**os.environ, "PYTHONPATH": _MODULES}


def _run_id(text: str) -> str | None:
    """``run <id>`` is what ``fcctl run`` says once there is a run."""
    from orchestrator.base.run_id import is_valid

    for line in text.splitlines():
        word = line.strip().removeprefix("note: ").removeprefix("run ")
        if word != line.strip().removeprefix("note: ") and is_valid(word):
            return word
    return None


def _document(code: int, out: bytes, err: bytes) -> Any:
    try:
        return json.loads(out)
    except ValueError:
        raise _told(err.decode(errors="replace"), code) from None


#: HTTP's status for errors that are the browser's user's; and these by the code that a command gives them.
STATUS: dict[type[FcctlError], int] = {
    NotFoundError: 404, RunNotFound: 404, RunNotFinished: 409, ConflictError: 409, BudgetError: 409, UsageError: 400,
}  # fmt: skip
_KINDS: dict[Any, type[FcctlError]] = {kind.code: kind for kind in STATUS}


def _known(error: dict[str, Any]) -> FcctlError:
    kind = _KINDS.get(error.get("code"), FcctlError)
    return kind(str(error["message"]), cause=error.get("cause"), hint=error.get("hint"))


def _told(text: str, code: int) -> FcctlError:
    """The error that a child reported, as JSON or as lines for people."""
    for line in reversed(text.strip().splitlines()):
        try:
            return _known(json.loads(line)["error"])
        except (ValueError, LookupError, TypeError):
            continue
    parts = {word: line.partition(":")[2].strip() for line in text.splitlines() if (word := line.partition(":")[0])}
    last = text.strip().splitlines()[-1:] or [f"the command ended with exit code {code}"]
    return FcctlError(parts.get("error") or last[0], cause=parts.get("cause"), hint=parts.get("hint"))


#: Rows of a comparison's picture: on a run's page, and on its own.
BARS, FULL = 8, 12


def report(run: str, version: str) -> str:
    """The HTML report of the run in this folder."""
    from orchestrator.views.report import outputs
    from orchestrator.views.report.build import build
    from orchestrator.views.report.charts import charts

    made = build([_shown(run)])
    return outputs.render(made, charts(made), made_by=f"fcctl {version}", back=f"../{made.runs[0].run_id}")


def pictures(run: str) -> str:
    """The pictures of the report of the run in this folder."""
    from orchestrator.views.blocks import Picture
    from orchestrator.views.html import fragment
    from orchestrator.views.report.build import build
    from orchestrator.views.report.charts import charts

    return fragment((Picture(chart) for chart in charts(build([_shown(run)]))), level=3)


def trend(results: str, root: str, base: str, benchmark: str, variant: str, ends: list[str]) -> str:
    """The trends of a benchmark, of the runs between two if they are given. Paths begin with ``base``."""
    from orchestrator.results.compare.history import history, source_changes, subjects
    from orchestrator.results.look import tags_of
    from orchestrator.views.html import fragment
    from orchestrator.views.tables.history import page_blocks

    between, store = (min(ends), max(ends)) if ends else None, _store(results)
    trends = history(
        store, benchmark, variant=variant or None, between=between, commits=source_changes, root=Path(root)
    )
    known = subjects(Path(root), (point.git_commit for trend in trends for point in trend.series.points))
    return fragment(page_blocks(trends, known, tags_of(store)), base)


def compare(results: str, root: str, base: str, names: list[str], bars_only: bool) -> str:
    """Sides of the store in ``results`` against the first of them. Paths begin with ``base``."""
    from orchestrator.results.compare.compare import compare_all
    from orchestrator.results.compare.history import source_changes
    from orchestrator.views.blocks import Block, Folded, closed
    from orchestrator.views.html import fragment
    from orchestrator.views.tables.compare import all_blocks, answer, forest

    reports = compare_all(_store(results), names, history=source_changes, root=Path(root))
    picture = forest(reports, BARS if bars_only else FULL)
    bars: list[Block] = [picture] if picture.bars else []
    if bars_only:
        return fragment([*answer(reports), *bars], base)
    legend, *rest = all_blocks(reports)
    figures = [block for block in rest if not isinstance(block, Folded)]
    folds: list[Block] = [Folded("Figures of all benchmarks", tuple(figures))] if figures else []
    folds += [block for block in rest if isinstance(block, Folded)]
    middle: list[Block] = [legend, *bars] if len(reports) > 1 else [*bars, legend]
    return fragment([*answer(reports), *middle, *closed(folds)], base)


def warm() -> str:
    """Nothing, with all that the other tasks import."""
    from orchestrator.results.compare import compare, history  # noqa: F401
    from orchestrator.views.report import machine_charts
    from orchestrator.views.tables import compare as _  # noqa: F401

    return machine_charts.inline_svg({"mark": "point", "data": {"values": []}})


TASKS: dict[str, Callable[..., str]] = {
    "compare": compare, "pictures": pictures, "report": report, "trend": trend, "warm": warm,
}  # fmt: skip


def _store(results: str) -> FileStore:
    from orchestrator.base.clock import SystemClock
    from orchestrator.results.store.store import FileStore

    return FileStore(Path(results), SystemClock(), note=lambda _: None)


def _shown(folder: str) -> Shown:
    path = Path(folder)
    record = RunRecord.model_validate_json((path / "run.json").read_bytes())
    return Shown(record, path, load(record, path))


def main() -> None:
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"html": TASKS[request.pop("task")](**request)}
        except Exception as error:  # noqa: BLE001 - told to the parent, which tells the browser
            told = {key: getattr(error, key, None) for key in ("cause", "code", "hint")}
            answer = {"error": {"message": str(error) or type(error).__name__, **told}}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
