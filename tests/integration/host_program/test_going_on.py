"""A run that goes on in another's working folder, and a machine that is turned off soon after its last run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from fcctl_remote.base.layout import Layout
from fcctl_remote.run import shutdown_timer
from fcctl_remote.run.shutdown_timer import LeaseKeeper
from tests.integration.host_program.agent_client import Agent, CallFailed, new_run_id, plan_of, step


def go_on(agent: Agent, first: str, *steps: wire.StepSpec, tree: str | None = None) -> str:
    """Submit ``steps`` as a run that goes on with ``first``: without a snapshot of its own."""
    plan_file = agent.host.run_dir(first) / "plan.json"
    known = json.loads(plan_file.read_text())["tree_sha256"] if plan_file.exists() else "0" * 64
    plan = plan_of(new_run_id(), *steps, tree_sha256=tree or known, resume_from=first)
    agent.call("submit", {"plan": wire.encode(plan)})
    return plan.run_id


def test_what_the_other_run_built_is_there_at_the_same_path(agent: Agent) -> None:
    first = agent.submit(step("build", 'mkdir -p out && pwd -P > out/where && echo a > "$FCCTL_ARTIFACTS/kept.txt"'))
    agent.outcome(first)
    use = '[ "$(pwd -P)" = "$(cat out/where)" ] && grep -q a "$FCCTL_ARTIFACTS/kept.txt"'
    second = go_on(agent, first, step("use", use))
    assert agent.outcome(second).status == "passed"
    third = go_on(agent, second, step("again", "cat out/where"))
    assert agent.outcome(third).status == "passed", "also of one that had gone on itself"


def test_no_link_fifo_or_device_of_the_other_run_is_taken_over(agent: Agent) -> None:
    first = agent.submit(
        step("build", 'cd "$FCCTL_ARTIFACTS"; mkdir a; echo kept > a/kept.txt; mkfifo a/pipe; ln -s / a/l')
    )
    agent.outcome(first)
    use = 'cd "$FCCTL_ARTIFACTS/a"; grep -q kept kept.txt && [ ! -e pipe ] && [ -L l ]'
    second = go_on(agent, first, step("use", use))
    assert agent.outcome(second).status == "passed"
    artifacts = agent.host.run_dir(second) / "artifacts"
    shutil.rmtree(artifacts)
    artifacts.symlink_to("/usr")
    third = go_on(agent, second, step("use", '[ -z "$(ls "$FCCTL_ARTIFACTS")" ]'))
    assert agent.outcome(third).status == "passed"


def test_of_a_run_that_is_not_here_nothing_is_left(agent: Agent) -> None:
    with pytest.raises(CallFailed, match="conflict: this host no longer has the files of run"):
        go_on(agent, "20261121t081530z-nobody-here-3fa9c1", step("use", "true"))


def test_another_source_is_another_run(agent: Agent) -> None:
    first = agent.submit(step("build", "true"))
    agent.outcome(first)
    with pytest.raises(CallFailed, match=r"conflict: .* different source"):
        go_on(agent, first, step("use", "true"), tree="1" * 64)


def test_a_run_that_goes_on_is_in_nobodys_way(agent: Agent) -> None:
    first = agent.submit(step("slow", "sleep 300"))
    with pytest.raises(CallFailed, match=r"conflict: .* has not ended"):
        go_on(agent, first, step("use", "true"))


@pytest.fixture
def timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Layout, Path]:
    """A host's root, and the log of what its ``shutdown`` was asked."""
    log = tmp_path / "asked"
    for name, body in (("shutdown", f'echo "$@" >> {log}'), ("sudo", '[ "$1" = -n ] && shift\nexec "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(shutdown_timer, "IDLE_PATIENCE_S", 0.0)
    layout = Layout(str(tmp_path / "root"))
    layout.ensure()
    return layout, log


def lease(layout: Layout, **given: Any) -> wire.Lease:
    return LeaseKeeper(layout).handle(wire.LeaseRequest(**given))


def test_the_timer_is_moved_only_earlier_and_never_made(timer: tuple[Layout, Path]) -> None:
    layout, _ = timer
    assert not shutdown_timer.stop_soon(layout, "x", 900), "nobody armed one: the machine is not ours"
    now = lease(layout, op="arm", deadline=4e9, dry=False).deadline
    assert shutdown_timer.stop_soon(layout, "x", 900)
    moved = lease(layout, op="show").deadline
    assert moved < now
    assert not shutdown_timer.stop_soon(layout, "x", 9e9)
    assert lease(layout, op="show").deadline == moved


def test_a_start_makes_older_timers_void(timer: tuple[Layout, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    layout, _ = timer
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "first")
    lease(layout, op="arm", deadline=4e9, dry=False, token="theirs")
    assert lease(layout, op="show", fresh=True).armed, "of this very boot"
    monkeypatch.setenv("FCCTL_EMULATOR_BOOT_ID", "second")
    assert not lease(layout, op="show", fresh=True).armed
    assert json.loads(Path(layout.lease).read_text())["lease"]["boot_id"] == "second"
