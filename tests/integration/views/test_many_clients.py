"""Fifty browsers watch one run: what the server takes for it, and that each sees the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.crowd import LAST, watched_by
from tests.support.workspace import Workspace

CLIENTS = 50
MOST_MB = 200


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_fifty_clients_watch_within_bounds(tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "ws", private_home)
    told, memory_mb = watched_by(workspace, CLIENTS, 20_000, 120)
    assert max(memory_mb) < MOST_MB, f"{max(memory_mb):.0f} MiB"
    assert len(told) == CLIENTS
    for news in told:
        assert LAST in "".join(piece["text"] for one in news for piece in one["log"])
        assert any(one["html"] for one in news)
        assert news[-1]["home"]
