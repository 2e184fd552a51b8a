"""Fifty browsers watch one run: what the server takes for it, and that each sees the end."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.support.dashboard import Dashboard, dashboard
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

CLIENTS = 50
MOST_MB = 200
LINES = 20_000


async def watch(opened: Dashboard, run_id: str) -> list[tuple[str, dict[str, str]]]:
    """All events of one stream until the run is home."""
    reader, writer = await asyncio.open_connection("127.0.0.1", opened.port, limit=8 * 1024 * 1024)
    head = f"GET /runs/{run_id}/live HTTP/1.1\r\nHost: 127.0.0.1:{opened.port}\r\nCookie: {opened.cookie}\r\n\r\n"
    writer.write(head.encode())
    events, name = [], ""
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


async def crowd(opened: Dashboard, run_id: str, peak: list[float]) -> list[list[tuple[str, dict[str, str]]]]:
    tasks = [asyncio.create_task(watch(opened, run_id)) for _ in range(CLIENTS)]
    while not all(task.done() for task in tasks):
        peak.append(opened.rss_mb())
        await asyncio.wait(tasks, timeout=0.5)
    return [task.result() for task in tasks]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_fifty_clients_stream_within_bounds(tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "ws", private_home)
    gate = tmp_path / "go"
    workspace.job(
        "chatty",
        "steps:\n  - id: talk\n    run: |\n"
        f"      until [ -e {gate} ]; do sleep 0.1; done\n"
        f"      seq -f 'line %06.0f of the log, as long as such lines are' {LINES}\n"
        "      sleep 2\n      echo the last line\n",
    )
    with dashboard(workspace) as opened:
        opened.enter()
        workspace.fcctl("run", "chatty", "--on", "here", "-d")
        (run_id,) = workspace.active()
        wait_for(lambda: "talk" in opened.ask(f"/runs/{run_id}").text)
        gate.touch()
        peak: list[float] = []
        streams = asyncio.run(asyncio.wait_for(crowd(opened, run_id, peak), 120))
        assert opened.process.poll() is None
    assert max(peak) < MOST_MB, f"{max(peak):.0f} MiB"
    for events in streams:
        text = "".join(data["text"] for name, data in events if name == "log")
        assert "the last line" in text
        assert any(name == "state" for name, _ in events)
        assert events[-1][0] == "home"
