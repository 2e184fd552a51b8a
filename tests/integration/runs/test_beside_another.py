"""Commands beside an fcctl that is at work on the same run, and beside runs whose hosts are away."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.launching import print_never_begun
from tests.support.link import LinkProxy
from tests.support.sshd import LoopbackSshd
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

COUNT = """
steps:
  - id: count
    run: |
      for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done
"""


@pytest.fixture
def slow_link(sshd: LoopbackSshd) -> LinkProxy:
    proxy = sshd.proxy()
    proxy.bytes_per_s = 1_000_000
    return proxy


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd, slow_link: LinkProxy) -> Workspace:
    made = Workspace(tmp_path / "w", private_home, sshd, port=slow_link.port)
    made.job("count", COUNT)
    made.job("endless", "steps:\n  - {id: wait, run: sleep 600}\n")
    made.job("hello", "steps:\n  - {id: say, run: echo hello}\n")
    return made


def test_a_host_that_is_away_keeps_no_other_run_from_coming_home(
    workspace: Workspace, sshd: LoopbackSshd, slow_link: LinkProxy
) -> None:
    slow_link.bytes_per_s = 0
    away = workspace.fcctl("run", "hello", "--on", "box", "-d").stdout.strip()
    near = workspace.fcctl("run", "hello", "--on", "here", "-d").stdout.strip()
    sshd.stop()
    told = workspace.json("pull-results", "--wait", check=6)
    assert (told["pulled"], told["active"]) == ([near], [away])
    assert told["error"]["code"] == "host_unreachable"
    near = workspace.fcctl("run", "endless", "--on", "here", "-d").stdout.strip()
    done = workspace.fcctl("cancel", "--all", "--grace", "0", check=6)
    assert f"{near}: cancelled" in done.stderr
    assert f"{away}: not cancelled" in done.stderr
    sshd.start()
    workspace.fcctl("pull-results", away)
    assert workspace.runs()[away]["status"] == "passed"


def test_pulled_by_several_at_once(workspace: Workspace, slow_link: LinkProxy) -> None:
    slow_link.bytes_per_s = 0
    run_id = workspace.fcctl("run", "hello", "--on", "box", "-d").stdout.strip()
    pulls = [workspace.start("pull-results", "--wait") for _ in range(3)]
    for pull in pulls:
        pull.communicate()
    assert 0 in {pull.returncode for pull in pulls} <= {0, 8}  # 8: another is following it
    assert list(workspace.runs()) == [run_id]


def test_a_closed_terminal_detaches(workspace: Workspace) -> None:
    go = workspace.root.parent / "go"
    workspace.job("held", f"steps:\n  - {{id: wait, run: 'until [ -e {go} ]; do sleep 0.1; done'}}\n")
    process = workspace.start("run", "held", "--on", "here")
    wait_for(workspace.active)
    folder = workspace.root / "results/active" / workspace.active()[0]
    wait_for(lambda: "submitted" in "".join(p.read_text() for p in folder.rglob("*journal*") if p.is_file()))
    process.send_signal(signal.SIGHUP)
    process.communicate()
    assert process.returncode == 129
    assert [run["state"] for run in workspace.json("ps", "--offline")["runs"]] == ["interrupted"]
    go.touch()
    workspace.fcctl("attach")


SEARCH = """
parameters: {P: [1, 2]}
build: 'true'
check: 'true'
bench: echo '{"us":1.5}' > $TUNE_OUT/b.json
metric: {reader: metrics, file: $TUNE_OUT/b.json, value: metrics.us}
"""


def test_ctrl_c_before_a_search_is_on_its_machine_says_that_nothing_runs(
    workspace: Workspace, slow_link: LinkProxy
) -> None:
    slow_link.bytes_per_s = 100_000
    workspace.write_search("sum", SEARCH)
    (workspace.root / "large.bin").write_bytes(os.urandom(3_000_000))
    running = workspace.start("tune", "sum", "--on", "box")
    journals = workspace.root / "results/active"
    wait_for(lambda: any('"sync"' in path.read_text() for path in journals.glob("*-tune-box-*/journal.jsonl")))
    running.send_signal(signal.SIGINT)
    slow_link.bytes_per_s = 0
    _, err = running.communicate()
    assert running.returncode == 130
    assert workspace.active() == []
    (search,) = workspace.runs()
    assert err[err.index("interrupted: ") :].splitlines() == [
        f"interrupted: run {search} had not started on box; none of its steps runs there",
        "  nothing to clean up; the same command starts a new run",
    ]


def test_what_is_left_of_a_search_that_had_not_begun_is_named_with_its_end() -> None:
    """A machine that helps it may be out of reach by then; one that it moved from has what was found."""
    said: list[str] = []
    cli: Any = SimpleNamespace(note=said.append)
    record: Any = SimpleNamespace(run_id="20261121t084030z-tune-b-3fa9c1", target="b")
    member: Any = SimpleNamespace(name="c", status="out of reach", run_id="20261121t084130z-tune-member-c-3fa9c1")
    store: Any = SimpleNamespace(active=lambda: [member.run_id], folder=lambda _: Path("/nowhere"))
    assert print_never_begun(cli, store, record, [member]) == said[0]
    assert said[0].splitlines()[1:] == [
        f"  c: out of reach  {member.run_id}",
        f"  not collected yet; to stop the rest:  fcctl cancel {member.run_id}",
    ]


def test_what_a_run_that_had_not_begun_was_to_go_on_with_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"plan": {"resume_from": "20261121t081030z-x-a-3fa9c1"}}))
    store: Any = SimpleNamespace(active=list, folder=lambda _: tmp_path)
    record: Any = SimpleNamespace(run_id="20261121t084030z-x-a-3fa9c1", target="a")
    cli: Any = SimpleNamespace(note=lambda _: None)
    assert print_never_begun(cli, store, record).endswith("fcctl run --resume 20261121t081030z-x-a-3fa9c1")
