"""``fcctl preflight``'s call to the host program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fcctl_remote.agent.calls import Calls
from fcctl_remote.base.layout import Layout
from fcctl_remote.probe import document, printed


def test_the_targets_env_counts_as_it_does_in_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def collect(env: dict[str, str]) -> dict[str, Any]:
        seen.update(env)
        return {"summary": {"status": "warn"}}

    monkeypatch.setattr(document, "collect", collect)
    monkeypatch.setattr(printed, "render", lambda _document: "all is well")
    monkeypatch.setenv("FCCTL_PYTHON", "/usr/bin/python3")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    calls = Calls(Layout(str(tmp_path)), [], "")
    answer, _ = calls.probe({"env": {"FCCTL_PYTHON": "/opt/torch/bin/python"}}, b"")
    assert (seen["FCCTL_PYTHON"], seen["OMP_NUM_THREADS"]) == ("/opt/torch/bin/python", "3")
    assert (answer["exit_code"], answer["text"]) == (1, "all is well")
    calls.probe({}, b"")
    assert seen["FCCTL_PYTHON"] == "/usr/bin/python3"
