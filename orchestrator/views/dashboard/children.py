"""Work that is not done in the server's process: fcctl's own commands, and drawing and comparing.

A comparison loads SciPy, a report a drawing engine: 100 MB that the server would hold ever after. A run outlives the
server. Both are children, a few at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.errors import (  # fmt: skip
    BudgetError,
    ConflictError,
    FcctlError,
    NotFoundError,
    RunNotFinished,
    RunNotFound,
    UsageError,
)

AT_ONCE = 2
TIMEOUT_S = 120.0
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

    async def fcctl(self, *args: str) -> Any:
        """One command with ``--json``; its document.

        Raises:
            FcctlError: what the command said went wrong.
        """
        done = await self._run([*self._fcctl, *args, "--json"], b"")
        return _document(*done)

    async def work(self, task: str, **arguments: Any) -> Any:
        """One of :mod:`orchestrator.views.dashboard.heavy`'s tasks.

        Raises:
            FcctlError: it failed.
        """
        request = json.dumps({"task": task, **arguments}).encode()
        done = await self._run([sys.executable, "-P", "-m", "orchestrator.views.dashboard.heavy"], request)
        return _document(*done)

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

    async def _run(self, argv: Sequence[str], given: bytes) -> tuple[int, bytes, bytes]:
        async with self._slots:
            child = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                cwd=self._root, env=_environment(), limit=MAX_OUTPUT_BYTES,
            )  # fmt: skip
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    out, err = await child.communicate(given)
            except TimeoutError:
                said = f"the command took longer than {TIMEOUT_S:.0f} s"
                raise FcctlError(said, hint="run it in a terminal") from None
            finally:
                if child.returncode is None:
                    child.kill()
                    await child.wait()
            return child.returncode or 0, out, err


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


#: Errors that are the browser's user's, by the code that a command gives them.
_KINDS: dict[Any, type[FcctlError]] = {
    kind.code: kind for kind in (NotFoundError, RunNotFound, RunNotFinished, UsageError, BudgetError, ConflictError)
}


def _told(text: str, code: int) -> FcctlError:
    """The error that a child reported, as JSON or as lines for people."""
    for line in reversed(text.strip().splitlines()):
        try:
            found = json.loads(line)["error"]
            kind = _KINDS.get(found.get("code"), FcctlError)
            return kind(str(found["message"]), cause=found.get("cause"), hint=found.get("hint"))
        except (ValueError, LookupError, TypeError):
            continue
    parts = {word: line.partition(":")[2].strip() for line in text.splitlines() if (word := line.partition(":")[0])}
    last = text.strip().splitlines()[-1:] or [f"the command ended with exit code {code}"]
    return FcctlError(parts.get("error") or last[0], cause=parts.get("cause"), hint=parts.get("hint"))
