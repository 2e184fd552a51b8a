from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.app import SystemClock
from orchestrator.results.store.store import FileStore

CONFIG = '[project]\nname = "demo"\n\n[targets.local]\nkind = "local"\n'


@pytest.fixture
def workspace_store(tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    """The empty store of the workspace that commands are typed in."""
    (tmp_path / "fcctl.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return FileStore(tmp_path / "results", SystemClock())
