"""``fcctl ui`` as it is typed: what it prints, what it opens, how it ends."""

from __future__ import annotations

import json
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from orchestrator.base.installation import to_install
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
    from tests.support.dashboard import Dashboard

    (workspace.root / "fcctl.toml").unlink()
    process = workspace.start("ui", "--example", "--no-open", "--json")
    assert process.stdout is not None
    try:
        opened = Dashboard(process, json.loads(process.stdout.readline())["url"])
        opened.enter()
        first = opened.ask("/").text
        for words in ("NVIDIA H200", "NVIDIA H100", "4.27 µs", "2.31x faster", "passed 8 of 8", "Faster or slower?"):
            assert words in first, words
        assert "No matching runs" not in opened.ask("/history?status=failed").text
    finally:
        process.terminate()
        process.communicate()


def test_a_first_visit_names_three_commands(workspace: Workspace) -> None:
    from tests.support.dashboard import dashboard

    with dashboard(workspace) as opened:
        opened.enter()
        first = opened.ask("/").text
    assert all(
        f"<code>{command}</code>" in first for command in ("fcctl doctor", "fcctl run preflight", "fcctl ui --example")
    )


@pytest.mark.full
def test_a_module_of_the_workspace_is_never_run(workspace: Workspace) -> None:
    """The children that the dashboard starts in the workspace: its json.py is the user's, not Python's."""
    from tests.support import reference_run
    from tests.support.dashboard import dashboard

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
