"""What ``fcctl run`` on an SSH target loads: the host is kept waiting by every module that is not needed for it.

A module more in one of these lists is a decision, to be made with ``make bench`` beside it: its row "warm round trip
over SSH" is what a user feels of it.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace

ROOT = Path(__file__).resolve().parents[3]
PROBE = """
import json, os, sys
from orchestrator.cli.entry import entry
from orchestrator.machines.connect.reconnect import ReconnectingHost

def to_stderr(when):
    print(when, json.dumps(sorted(sys.modules)), file=sys.stderr)

def open_soon(link, begin=ReconnectingHost.open_soon):
    to_stderr("before-login")
    begin(link)

def leave(code, end=os._exit):
    to_stderr("at-the-end")
    sys.stderr.flush()
    end(code)

ReconnectingHost.open_soon, os._exit = open_soon, leave
entry()
"""

#: Before the first byte goes to the host.
BEFORE_LOGIN = """
    app
    base.clock base.errors base.files base.log_file base.models base.observer base.run_id base.safe_paths base.sanitize
    base.toml
    cli.context cli.entry cli.failures cli.interrupts cli.launching cli.main cli.verbs.run
    machines.cache machines.connect.reconnect machines.connect.ssh.auth
    machines.connect.ssh.config machines.connect.ssh.connection
    machines.connect.ssh.paramiko_lean machines.connect.ssh.ssh machines.connect.transport
    machines.provision.endpoint machines.targets
    money.caps
    runs.job.phase runs.notices
    schedules.due
    views.figures views.live_run
    workspace.config workspace.root workspace.workspace
"""
#: From then to the end of a run that passed, whose one changed file went with a call.
LATER = """
    base.git base.journal base.json_text base.yaml_lines hosts.recover leases.session_files
    machines.connect.agent machines.connect.bootstrap machines.connect.framing machines.interfaces
    machines.shutdown_timer money.prices.rates providers.registry results.records results.store.active
    results.store.index results.store.intake results.store.names results.store.rows results.store.store results.timings
    runs.actions runs.job.files runs.job.gate_fields runs.job.job runs.job.plan runs.job.prepare runs.job.saved_plan
    runs.lifecycle runs.local_steps runs.machine.left_on runs.record runs.reopen runs.run runs.services
    runs.source runs.git_source runs.transfer
"""
#: Of other people's, and of Python's own, what fcctl took pains to do without: mail and package metadata, archives,
#: asyncio, colours for a terminal that is none.
NEVER = {"asyncio", "email", "google", "importlib.metadata", "invoke", "numpy", "rich", "tarfile", "zipfile"}
BEFORE_LOGIN_NEVER = NEVER | {"sqlite3", "yaml"}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """All modules of a warm run, at both moments."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "home").mkdir()
    server = LoopbackSshd()
    try:
        workspace = Workspace(folder / "ws", folder / "home", server.start())
        workspace.job("trivial", "steps:\n  - {id: hello, run: echo hello}\n")
        run = ["run", "trivial", "--on", "box", "-q"]
        workspace.fcctl(*run)
        (workspace.root / "main.cu").write_text("// edited\n")
        argv = [sys.executable, "-c", PROBE, *run]
        done = subprocess.run(
            argv, cwd=workspace.root, env=workspace.env(), capture_output=True, text=True, check=False
        )
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" ", 1) for line in done.stderr.splitlines())
    return {when: set(json.loads(names)) for when, names in found.items()}


def ours(modules: set[str]) -> set[str]:
    """Without the packages, whose ``__init__.py`` holds no code."""
    packages = {name.rpartition(".")[0] for name in modules}
    return {
        name.removeprefix("orchestrator.")
        for name in modules
        if name.startswith("orchestrator.") and name not in packages
    }


def test_packages_hold_no_code() -> None:
    """But the one at the top, which has the functions for scripts and loads nothing before they are called."""
    inits = list((ROOT / "orchestrator").glob("*/**/__init__.py"))
    assert len(inits) > 20
    assert [path for path in inits if [n for n in ast.parse(path.read_text()).body if not is_docstring(n)]] == []


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_the_login_waits_for_no_module_that_it_can_do_without(loaded: dict[str, set[str]]) -> None:
    assert ours(loaded["before-login"]) - set(BEFORE_LOGIN.split()) == set()
    assert loaded["before-login"] & BEFORE_LOGIN_NEVER == set()
    of_the_host = {name for name in loaded["before-login"] if name.startswith("fcctl_remote.")}
    wanted = "base base.durations base.files base.strict_json record"
    assert of_the_host == {f"fcctl_remote.{name}" for name in wanted.split()}


def test_a_run_loads_nothing_of_clouds_prices_schedules_searches_and_the_web(loaded: dict[str, set[str]]) -> None:
    assert ours(loaded["at-the-end"]) - set(BEFORE_LOGIN.split()) - set(LATER.split()) == set()
    assert loaded["at-the-end"] & NEVER == set()


def test_the_lists_name_no_module_that_is_not_loaded(loaded: dict[str, set[str]]) -> None:
    """Else they would let it creep back."""
    assert set(BEFORE_LOGIN.split()) - ours(loaded["before-login"]) == set()
    assert set(LATER.split()) - ours(loaded["at-the-end"]) == set()
