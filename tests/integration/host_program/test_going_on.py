"""A run that goes on in another's working folder."""

from __future__ import annotations

import json
import shutil

import pytest

from fcctl_remote import wire
from tests.integration.host_program.agent_client import Agent, CallFailed, new_run_id, plan_of, step


def go_on(agent: Agent, first: str, *steps: wire.StepSpec, tree: str | None = None) -> str:
    """Submit ``steps`` as a run that goes on with ``first``: without a snapshot of its own."""
    plan_file = agent.host.run_dir(first) / "plan.json"
    known = json.loads(plan_file.read_text())["tree_sha256"] if plan_file.exists() else "0" * 64
    plan = plan_of(new_run_id(), *steps, tree_sha256=tree or known, resume_from=first)
    agent.call("submit", {"plan": wire.encode(plan)})
    return plan.run_id


def test_what_the_other_run_built_is_there_at_the_same_path(agent: Agent) -> None:
    first = agent.passed(step("build", 'mkdir -p out && pwd -P > out/where && echo a > "$FCCTL_ARTIFACTS/kept.txt"'))
    use = '[ "$(pwd -P)" = "$(cat out/where)" ] && grep -q a "$FCCTL_ARTIFACTS/kept.txt"'
    second = go_on(agent, first, step("use", use))
    assert agent.outcome(second).status == "passed"
    third = go_on(agent, second, step("again", "cat out/where"))
    assert agent.outcome(third).status == "passed", "also of one that had gone on itself"


def test_no_link_fifo_or_device_of_the_other_run_is_taken_over(agent: Agent) -> None:
    first = agent.passed(
        step("build", 'cd "$FCCTL_ARTIFACTS"; mkdir a; echo kept > a/kept.txt; mkfifo a/pipe; ln -s / a/l')
    )
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
    first = agent.passed(step("build", "true"))
    with pytest.raises(CallFailed, match=r"conflict: .* other source files"):
        go_on(agent, first, step("use", "true"), tree="1" * 64)


def test_a_run_that_goes_on_is_in_nobodys_way(agent: Agent) -> None:
    first = agent.submit(step("slow", "sleep 300"))
    with pytest.raises(CallFailed, match=r"conflict: .* has not ended"):
        go_on(agent, first, step("use", "true"))
