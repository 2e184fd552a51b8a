"""Many browsers at one dashboard, without the browsers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.support.dashboard import Dashboard, dashboard
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

Events = list[tuple[str, dict[str, str]]]
LAST = "the last line"


async def watch(opened: Dashboard, run_id: str) -> Events:
    """All events of one stream until the run is home."""
    reader, writer = await asyncio.open_connection("127.0.0.1", opened.port, limit=8 * 1024 * 1024)
    path = f"{opened.root}/runs/{run_id}/live"
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{opened.port}\r\nCookie: {opened.cookie}\r\n\r\n"
    writer.write(head.encode())
    events: Events = []
    name = ""
    try:
        async for raw in reader:
            line = raw.decode().strip()
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                events.append((name, json.loads(line[6:])))
                if name == "home":
                    break
    finally:
        writer.close()
    return events


async def _crowd(opened: Dashboard, run_id: str, clients: int, memory_mb: list[float]) -> list[Events]:
    tasks = [asyncio.create_task(watch(opened, run_id)) for _ in range(clients)]
    while not all(task.done() for task in tasks):
        memory_mb.append(opened.rss_mb())
        await asyncio.wait(tasks, timeout=0.5)
    return [task.result() for task in tasks]


def stream_to(workspace: Workspace, clients: int, lines: int, seconds: float) -> tuple[list[Events], list[float]]:
    """``clients`` watch a run that writes ``lines``: what each got, and the server's memory over time, MiB.

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
    with dashboard(workspace) as opened:
        opened.enter()
        workspace.fcctl("run", "chatty", "--on", "here", "-d")
        (run_id,) = workspace.active()
        wait_for(lambda: "talk" in opened.ask(f"/runs/{run_id}").text)
        gate.touch()
        streams = asyncio.run(asyncio.wait_for(_crowd(opened, run_id, clients, memory_mb), seconds))
        assert opened.process.poll() is None
    return streams, memory_mb
