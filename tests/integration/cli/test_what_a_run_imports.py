"""What ``fcctl run`` on an SSH target loads: the host is kept waiting by every module that is not needed for it.

A module more in one of these lists is a decision, to be made with ``make bench`` beside it: its row "warm round trip
over SSH" is what a user feels of it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace

PROBE = """
import json, os, sys
from orchestrator.cli.entry import entry
from orchestrator.machines.connect.reconnect import Link

def to_stderr(when):
    print(when, json.dumps(sorted(sys.modules)), file=sys.stderr)

def open_soon(link, begin=Link.open_soon):
    to_stderr("before-login")
    begin(link)

def leave(code, end=os._exit):
    to_stderr("at-the-end")
    sys.stderr.flush()
    end(code)

Link.open_soon, os._exit = open_soon, leave
entry()
"""

#: Before the first byte goes to the host.
BEFORE_LOGIN = """
    adapters adapters.hosts adapters.hosts.connector adapters.hosts.known_hosts adapters.hosts.ssh
    adapters.hosts.ssh_auth adapters.hosts.ssh_config adapters.hosts.ssh_library adapters.hosts.ssh_link
    adapters.hosts.transport adapters.logging_setup adapters.machine_book adapters.price_file adapters.replace_file
    adapters.system_clock
    adapters.workspace app
    cli cli.amounts cli.commands cli.context cli.entry cli.failures cli.interrupts cli.launching cli.main cli.options
    cli.output cli.run
    domain domain.budget domain.config domain.endpoint domain.model_config domain.notify domain.problems domain.run_id
    domain.schedule domain.target domain.toml_lines
    errors reports reports.live reports.sanitize workflows workflows.link
"""
#: From then to the end of a run that passed, whose one changed file went with a call.
LATER = """
    adapters.gcp adapters.gcp.watched adapters.git_source adapters.hosts.agent adapters.hosts.bootstrap
    adapters.hosts.frames adapters.hosts.inline adapters.hosts.program adapters.hosts.replies adapters.job_files
    adapters.notifier adapters.runner_archive adapters.sightings adapters.source_hashes
    adapters.store adapters.store.active adapters.store.beneath adapters.store.durable adapters.store.incoming
    adapters.store.index adapters.store.intake adapters.store.journal adapters.store.lock adapters.store.measured
    adapters.store.names adapters.store.rows adapters.store.schema adapters.store.sessions adapters.store.store
    domain.built_in domain.cuda_arch domain.duration domain.ending domain.guard domain.job domain.lifecycle
    domain.measurement domain.paths domain.plan domain.records domain.saved_fleet domain.saved_plan domain.yaml_lines
    ports ports.books ports.cloud ports.host ports.store ports.tunnels
    workflows.account workflows.collect workflows.drive workflows.follow workflows.lease workflows.moves
    workflows.prepare workflows.prewake workflows.resume workflows.run workflows.sync workflows.tell workflows.tidy
    workflows.waking workflows.watchers
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
            argv, cwd=workspace.root, env=workspace.env(), capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" ", 1) for line in done.stderr.splitlines())
    return {when: set(json.loads(names)) for when, names in found.items()}


def ours(modules: set[str]) -> set[str]:
    return {name.removeprefix("orchestrator.") for name in modules if name.startswith("orchestrator.")}


def test_the_login_waits_for_no_module_that_it_can_do_without(loaded: dict[str, set[str]]) -> None:
    assert ours(loaded["before-login"]) - set(BEFORE_LOGIN.split()) == set()
    assert loaded["before-login"] & BEFORE_LOGIN_NEVER == set()
    assert not any(name.startswith("fcctl_remote") for name in loaded["before-login"])


def test_a_run_loads_nothing_of_clouds_prices_schedules_searches_and_the_web(loaded: dict[str, set[str]]) -> None:
    assert ours(loaded["at-the-end"]) - set(BEFORE_LOGIN.split()) - set(LATER.split()) == set()
    assert loaded["at-the-end"] & NEVER == set()


def test_the_lists_name_no_module_that_is_not_loaded(loaded: dict[str, set[str]]) -> None:
    """Else they would let it creep back."""
    assert set(BEFORE_LOGIN.split()) - ours(loaded["before-login"]) == set()
    assert set(LATER.split()) - ours(loaded["at-the-end"]) == set()
