"""Work that is not done in the server's process: fcctl's own commands, and drawing and comparing.

A comparison loads SciPy, a report a drawing engine: 100 MB that the server would hold ever after, so a child does both,
and ends when nobody has asked for a minute. A run outlives the server. A few children at a time.
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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

from orchestrator.base.errors import (
    BudgetError,
    ConflictError,
    FcctlError,
    NotFoundError,
    RunNotFinished,
    RunNotFound,
    UsageError,
)

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
        """The part of a page that one of :mod:`orchestrator.views.dashboard.heavy`'s tasks makes. The answer to the
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
                raise FcctlError(f"the drawing process ended with exit code {worker.returncode}")
            self._idle.append(worker)
            asyncio.get_running_loop().call_later(IDLE_S, self._retire, worker)
        told = json.loads(answer)
        if "error" in told:
            raise _known(told["error"])
        return str(told["html"])

    async def _worker(self) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "orchestrator.views.dashboard.heavy", stdin=PIPE, stdout=PIPE, stderr=DEVNULL,
            cwd=self._root, env=_environment(), limit=MAX_OUTPUT_BYTES,
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
