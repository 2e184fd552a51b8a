"""``fcctl ui`` as it is typed, and what its pages ask for again and again while a run is active."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from orchestrator.base.installation import to_install
from tests.support import reference_run
from tests.support.crowd import LAST, watch, watched_by
from tests.support.dashboard import Dashboard, dashboard
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    return Workspace(tmp_path / "ws", private_home)


def test_the_browser_gets_the_link_by_a_private_file(workspace: Workspace, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!{sys.executable}\nimport os, sys, urllib.parse as u\npath = u.urlsplit(sys.argv[1]).path\n'
                       f'mode = oct(os.stat(os.path.dirname(path)).st_mode)\n'
                       f'open({str(seen)!r} + ".new", "w").write(mode + " " + sys.argv[1] + " " + open(path).read())\n'
                       f'os.rename({str(seen)!r} + ".new", {str(seen)!r})\n')  # fmt: skip
    browser.chmod(0o755)
    process = workspace.start("ui", BROWSER=f"{browser} %s")
    try:
        wait_for(seen.exists)
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        mode, argument, content = seen.read_text().split(" ", 2)
        assert link in content
        assert link.partition("token=")[2] not in argument, "the code is on no command line"
        assert stat.S_IMODE(int(mode, 8)) == 0o700
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert not Path(argument.removeprefix("file://")).exists()
    finally:
        process.kill()
        process.communicate()


def test_a_port_that_is_taken_is_an_error_with_a_way_out(workspace: Workspace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = workspace.fcctl("ui", "--port", port, "--no-open", check=8)
    assert f"port {port} of 127.0.0.1 is not available" in done.stderr
    assert "--port 0" in done.stderr


def test_without_its_libraries_it_says_what_to_install(workspace: Workspace, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "starlette.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'starlette'\", name='starlette')"
    )
    path = workspace.env()["PYTHONPATH"]
    done = workspace.fcctl("ui", "--no-open", check=1, env={"PYTHONPATH": f"{blocked}:{path}"})
    assert f"hint:  {to_install('web')}\n" in done.stderr


def test_the_example_shows_the_published_runs_without_a_workspace(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.root / "fcctl.toml").unlink()
    process = workspace.start("ui", "--example", "--no-open", "--json")
    assert process.stdout is not None
    try:
        opened = Dashboard(process, json.loads(process.stdout.readline())["url"])
        opened.enter()
        first = opened.ask("/").text
        for words in ("H200", "H100", r"\d\.\d\d µs", r"\dx faster", r"passed (\d+) of \1\b", "Faster or slower"):
            assert re.search(words, first), words
        assert "No matching runs" not in opened.ask("/history?status=failed").text
    finally:
        process.terminate()
        process.communicate()


def test_a_workspace_without_runs(workspace: Workspace) -> None:
    """A first visit names three commands, what a browser has is not sent again, and a run that is none is an error."""
    with dashboard(workspace) as opened:
        opened.enter()
        first = opened.ask("/").text
        for command in ("fcctl doctor", "fcctl run preflight", "fcctl ui --example"):
            assert f"<code>{command}</code>" in first
        news = json.loads(opened.ask("/live").text)
        assert "No active runs" in news["html"]
        assert json.loads(opened.ask(f"/live?version={news['version']}").text) == {**news, "html": ""}
        for run_id in ("20261121t081530z-phase1-l4-3fa9c1", "nope"):
            assert opened.ask(f"/runs/{run_id}/live").status == 404


@pytest.mark.full
def test_a_module_of_the_workspace_is_never_run(workspace: Workspace) -> None:
    """The children that the dashboard starts in the workspace: its json.py is the user's, not Python's."""
    reference_run.install(workspace.root / "results")
    for name in ("json", "yaml", "orchestrator"):
        (workspace.root / f"{name}.py").write_text("raise SystemExit('the workspace was imported')")
    env = workspace.env()
    assert env["PYTHONPATH"]
    workspace.root.joinpath("elsewhere").mkdir()
    with dashboard(_from(workspace, workspace.root / "elsewhere")) as opened:
        opened.enter()
        assert opened.ask(f"/runs/{reference_run.H200.name}/report").status == 200
        assert opened.ask(f"/compare/answer?run=last&run={reference_run.H200.name}").status == 200


def _from(workspace: Workspace, folder: Path) -> Workspace:
    """The same workspace, typed from a folder below, so that the test's own ``python -m`` imports the real modules."""
    inner = Workspace.__new__(Workspace)
    inner.__dict__.update(workspace.__dict__, root=folder)
    return inner


def test_a_browser_that_comes_back_gets_what_it_missed_and_no_more(workspace: Workspace, tmp_path: Path) -> None:
    workspace.job(
        "two",
        "steps:\n  - id: first\n    run: |\n      echo one; printf '\\033[31mred\\r\\n'\n"
        f"      until [ -e {tmp_path / 'go'} ]; do sleep 0.1; done\n"
        "  - id: second\n    run: echo two\n",
    )
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


CLIENTS = 50
MOST_MB = 200


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_fifty_clients_watch_within_bounds(workspace: Workspace) -> None:
    told, memory_mb = watched_by(workspace, CLIENTS, 20_000, 120)
    assert max(memory_mb) < MOST_MB, f"{max(memory_mb):.0f} MiB"
    assert len(told) == CLIENTS
    for news in told:
        assert LAST in "".join(piece["text"] for one in news for piece in one["log"])
        assert any(one["html"] for one in news)
        assert news[-1]["home"]


@pytest.mark.full
def test_what_is_reserved_free_and_to_be_expected(workspace: Workspace) -> None:
    """The spending page has the numbers of ``cost budget``, and the first page those of ``ps``."""
    text = (workspace.root / "fcctl.toml").read_text().replace('kind = "local"', 'kind = "local"\nusd_per_hour = 3.6')
    (workspace.root / "fcctl.toml").write_text(text + "\n[budget]\nper_month_usd = 90\nper_day_usd = 80\n")
    workspace.job("nap", "steps:\n  - {id: nap, run: sleep 600, timeout: 1h}\n")
    run_id = workspace.fcctl("run", "nap", "--on", "here", "-d").stdout.strip()
    with dashboard(workspace) as site:
        site.enter()
        page = site.ask("/spending").text
        shown = [re.sub(r"<[^>]+>", "", row) for row in re.findall(r"<tr>.*?</tr>", page, re.S)]
        found = workspace.json("cost", "budget")
        (one,) = found["reservations"]
        assert one["reserved_usd"] == 3.6
        assert any(row.startswith("here$3.60$") and f"run {run_id}fcctl attach {run_id}" in row for row in shown), shown
        assert "this month$90.00$0.00-$3.60$86.40" in " ".join(shown)
        assert "reserved$3.60" in shown
        assert "with the cloud&#39;s records: fcctl hosts audit" in page
        assert f"total${found['forecast']['total_usd']:.2f}of $90.00" in shown
        wait_for(lambda: re.search(r"<strong>\$0\.[0-9]+</strong> today of \$80", site.ask("/").text))
    workspace.fcctl("cancel", run_id, "--grace", "0")
