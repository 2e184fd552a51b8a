"""Fifty browsers watch one run: what the server takes for it, and that each sees the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.crowd import LAST, stream_to
from tests.support.workspace import Workspace

CLIENTS = 50
MOST_MB = 200


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_fifty_clients_stream_within_bounds(tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "ws", private_home)
    streams, memory_mb = stream_to(workspace, CLIENTS, 20_000, 120)
    assert max(memory_mb) < MOST_MB, f"{max(memory_mb):.0f} MiB"
    assert len(streams) == CLIENTS
    for events in streams:
        text = "".join(data["text"] for name, data in events if name == "log")
        assert LAST in text
        assert any(name == "state" for name, _ in events)
        assert events[-1][0] == "home"
