"""The streams of server-sent events: where they begin, what a browser that comes back gets, how they end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dashboard import Dashboard, dashboard
from tests.support.workspace import Workspace

Event = tuple[str, str, dict[str, str]]


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "ws", private_home)
    gate = tmp_path / "go"
    made.job(
        "two",
        "steps:\n  - id: first\n    run: |\n      echo one; printf '\\033[31mred\\r\\n'\n"
        f"      until [ -e {gate} ]; do sleep 0.1; done\n"
        "  - id: second\n    run: echo two\n",
    )
    return made


def stream(opened: Dashboard, path: str, last: str = "") -> Iterator[Event]:
    """(id, name, data) of each event."""
    with socket.create_connection(("127.0.0.1", opened.port), timeout=240) as connection:
        head = [f"GET {opened.root}{path} HTTP/1.1", f"Host: 127.0.0.1:{opened.port}", f"Cookie: {opened.cookie}"]
        head += ["Connection: close", *([f"Last-Event-ID: {last}"] if last else []), "\r\n"]
        connection.sendall("\r\n".join(head).encode())
        number, name = "", ""
        for raw in connection.makefile("rb"):
            line = raw.decode().strip()
            if line.startswith("id: "):
                number = line[4:]
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield number, name, json.loads(line[6:])


def test_a_browser_that_comes_back_gets_what_it_missed_and_no_more(workspace: Workspace, tmp_path: Path) -> None:
    with dashboard(workspace) as opened:
        opened.enter()
        workspace.fcctl("run", "two", "--on", "here", "-d")
        (run_id,) = workspace.active()
        path = f"/runs/{run_id}/live"
        seen, last = "", ""
        for number, name, data in stream(opened, path):
            seen += data["text"] if name == "log" else ""
            last = number or last
            if "red\n" in seen:
                break
        assert seen == "one\nred\n", "escapes of a host are gone"
        (tmp_path / "go").touch()
        rest = list(stream(opened, path, last))
        assert [data["text"] for _, name, data in rest if name == "log"] == ["two\n"]
        assert [data["step"] for _, name, data in rest if name == "log"] == ["second"]
        assert rest[-1][1] == "home"
        assert workspace.runs()[run_id]["status"] == "passed"
        assert [name for _, name, _ in stream(opened, path)][-1] == "home", "also for one that comes too late"


def test_a_stream_of_nothing_is_an_error(workspace: Workspace) -> None:
    with dashboard(workspace) as opened:
        opened.enter()
        assert opened.ask("/runs/20261121t081530z-phase1-l4-3fa9c1/live").status == 404
        assert opened.ask("/runs/nope/live").status == 404


def test_it_ends_although_somebody_watches(workspace: Workspace) -> None:
    with dashboard(workspace) as opened:
        opened.enter()
        events = stream(opened, "/live")
        assert next(events)[1] == "runs"
        opened.process.terminate()
        assert opened.process.wait() == 143
