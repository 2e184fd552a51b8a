"""What a page of an active run asks for again and again: what a browser that comes back gets, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.crowd import watch
from tests.support.dashboard import dashboard
from tests.support.workspace import Workspace


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


def test_a_browser_that_comes_back_gets_what_it_missed_and_no_more(workspace: Workspace, tmp_path: Path) -> None:
    with dashboard(workspace) as opened:
        opened.enter()
        workspace.fcctl("run", "two", "--on", "here", "-d")
        (run_id,) = workspace.active()
        seen = ""
        for news in watch(opened, run_id):
            seen += "".join(piece["text"] for piece in news["log"])
            if "red\n" in seen:
                break
        assert seen == "one\nred\n", "escapes of a host are gone"
        (tmp_path / "go").touch()
        rest = list(watch(opened, run_id, news))
        assert [piece for one in rest for piece in one["log"]] == [{"step": "second", "text": "two\n"}]
        assert workspace.runs()[run_id]["status"] == "passed"
        late = list(watch(opened, run_id))
        assert late[-1]["home"], "also for one that comes too late"


def test_what_a_browser_has_is_not_sent_again(workspace: Workspace) -> None:
    with dashboard(workspace) as opened:
        opened.enter()
        news = json.loads(opened.ask("/live").text)
        assert "No active runs" in news["html"]
        assert json.loads(opened.ask(f"/live?version={news['version']}").text) == {**news, "html": ""}


@pytest.mark.parametrize("run_id", ["20261121t081530z-phase1-l4-3fa9c1", "nope"])
def test_a_run_that_is_none_is_an_error(workspace: Workspace, run_id: str) -> None:
    with dashboard(workspace) as opened:
        opened.enter()
        assert opened.ask(f"/runs/{run_id}/live").status == 404
