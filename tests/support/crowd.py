"""Many browsers at one dashboard, without the browsers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.dashboard import Dashboard, dashboard
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

News = dict[str, Any]
LAST = "the last line"
EVERY_S = 0.5


def watch(opened: Dashboard, run_id: str, known: News | None = None) -> Iterator[News]:
    """What a page of the run is told at each look, until the run is home; ``known``: what was told last."""
    while not (known and known["home"]):
        query = urlencode({key: known[key] for key in ("version", "at")} if known else {})
        known = json.loads(opened.ask(f"/runs/{run_id}/live?{query}").text)
        yield known
        time.sleep(0 if known["home"] else EVERY_S)


def watched_by(workspace: Workspace, clients: int, lines: int, seconds: float) -> tuple[list[list[News]], list[float]]:
    """``clients`` watch a run that writes ``lines``: what each was told, and the server's memory over time, MiB.

    Raises:
        TimeoutError: it took longer than ``seconds``.
    """
    gate = Path(workspace.home) / "go"
    workspace.job(
        "chatty",
        "steps:\n  - id: talk\n    run: |\n"
        f"      until [ -e {gate} ]; do sleep 0.1; done\n"
        f"      seq -f 'line %06.0f of the log, as long as such lines are' {lines}\n"
        f"      sleep 2\n      echo {LAST}\n",
    )
    memory_mb: list[float] = []
    with dashboard(workspace) as opened, ThreadPoolExecutor(clients) as pool:
        opened.enter()
        workspace.fcctl("run", "chatty", "--on", "here", "-d")
        (run_id,) = workspace.active()
        wait_for(lambda: "talk" in opened.ask(f"/runs/{run_id}").text)
        gate.touch()
        tasks = [pool.submit(lambda: list(watch(opened, run_id))) for _ in range(clients)]
        end = time.monotonic() + seconds
        while wait(tasks, timeout=0.5).not_done:
            memory_mb.append(opened.rss_mb())
            if time.monotonic() > end:
                opened.process.kill()
                raise TimeoutError
        assert opened.process.poll() is None
        return [task.result() for task in tasks], memory_mb
