from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.adapters.store import FileStore
from tests.support.stores import RealClock


@pytest.fixture
def notes() -> list[str]:
    """What the store had to say."""
    return []


@pytest.fixture
def store(tmp_path: Path, notes: list[str]) -> FileStore:
    return FileStore(tmp_path / "results", RealClock(), note=notes.append)
