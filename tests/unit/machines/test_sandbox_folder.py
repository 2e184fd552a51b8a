"""Where the sandbox keeps its state."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from orchestrator.machines.sandbox import Sandbox


@pytest.mark.parametrize(("system", "state"), [(MacOS, ".local/state/fcctl/sandbox"), (Unix, "state/fcctl/sandbox")])
def test_the_sandbox_s_folder_has_no_blank_in_its_path(
    system: type[MacOS | Unix], state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state") if system is Unix else "")
    monkeypatch.setattr(platformdirs, "user_state_dir", lambda name, appauthor: system(name, appauthor).user_state_dir)
    assert Sandbox().folder == tmp_path / state
