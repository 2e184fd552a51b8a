from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from orchestrator.app import SystemClock
from orchestrator.cli.main import main
from orchestrator.results.store.store import FileStore
from tests.support.command import Outcome

CONFIG = '[project]\nname = "demo"\n\n[targets.local]\nkind = "local"\n'


class Typed(Protocol):
    def __call__(self, *words: str, code: int = 0) -> Outcome:
        """What a command printed, whose exit code was ``code``."""


@pytest.fixture
def workspace_store(tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    """The empty store of the workspace that commands are typed in."""
    (tmp_path / "fcctl.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return FileStore(tmp_path / "results", SystemClock())


@pytest.fixture
def fcctl(capfd: pytest.CaptureFixture[str]) -> Typed:
    """``fcctl("results", "ls")``, in this process and in the current folder."""

    def typed(*words: str, code: int = 0) -> Outcome:
        capfd.readouterr()
        found = main(list(words))
        out, err = capfd.readouterr()
        assert found == code, (words, out, err)
        return Outcome(found, out, err)

    return typed


@pytest.fixture
def results(fcctl: Typed) -> Typed:
    """``results("ls")``: the same of ``fcctl results``."""

    def typed(*words: str, code: int = 0) -> Outcome:
        return fcctl("results", *words, code=code)

    return typed
