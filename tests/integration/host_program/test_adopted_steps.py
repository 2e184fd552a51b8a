"""Runs that take over steps that another machine ran, or another run's working folder; and runs that end when the
connection does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from tests.integration.host_program.agent_client import Agent, CallFailed, Host, new_run_id, plan_of, step
from tests.support.waiting import wait_for


def finished(step_id: str, *documents: dict[str, Any]) -> wire.FinishedStep:
    refs = [wire.DocumentRef(d["kind"], f"steps/{step_id}/out/{d['kind']}.json") for d in documents]
    return wire.FinishedStep(wire.StepResult(step_id, "passed", exit_code=0, documents=refs), list(documents))


def build(registers: int) -> dict[str, Any]:
    return {"kind": "build", "schema_version": 1, "kernels": [{"name": "k", "registers": registers}]}


def test_gates_see_the_documents_of_adopted_steps(agent: Agent) -> None:
    gates = ["max(build.kernels[*].registers) == 40", 'steps.compile.status == "passed"']
    gates.append("max(steps.compile.build.kernels[*].registers) == 40")
    script = 'grep -q registers "$FCCTL_RUN_DIR/steps/compile/out/build.json"'
    run_id = agent.submit(
        step("look", script, gates=[wire.GateSpec(g) for g in gates]), adopted=[finished("compile", build(40))]
    )
    outcome = agent.outcome(run_id)
    assert [g.verdict for g in outcome.steps[0].gates] == ["pass", "pass", "pass"], outcome
    assert [s.id for s in outcome.steps] == ["look"]


def test_another_machine_is_not_the_host(agent: Agent) -> None:
    laptop = {"kind": "environment", "schema_version": 1, "checks": [], "os": {"name": "elsewhere"}}
    gate = wire.GateSpec('host.os.name == "elsewhere"')
    run_id = agent.submit(step("look", "true", gates=[gate]), adopted=[finished("probe", laptop)])
    assert agent.outcome(run_id).steps[0].gates[0].verdict != "pass"


@pytest.mark.parametrize(
    "wrong",
    [
        finished("look", build(1)),
        finished("../x", build(1)),
        wire.FinishedStep(wire.StepResult("a", "passed", documents=[wire.DocumentRef("build", "steps/a/../b.json")]),
                          [build(1)]),
        wire.FinishedStep(wire.StepResult("a", "passed", documents=[wire.DocumentRef("build", "outcome.json")]),
                          [build(1)]),
        wire.FinishedStep(wire.StepResult("a", "passed", documents=[wire.DocumentRef("build", "steps/a/out/b.json")])),
    ],
)  # fmt: skip
def test_what_cannot_be_adopted_is_refused(agent: Agent, wrong: wire.FinishedStep) -> None:
    with pytest.raises(CallFailed, match="bad_request"):
        agent.submit(step("look", "true"), adopted=[wrong])


def test_an_attached_run_needs_no_tmux_and_ends_by_itself(host: Host, agent: Agent) -> None:
    run_id = agent.submit(step("one", "echo hi; readlink /proc/self/fd/0 || true"), attached=True)
    _, log = agent.follow(run_id, log_step="one")
    assert log.decode().split()[0] == "hi"
    assert b"pipe" not in log
    assert agent.outcome(run_id).status == "passed"
    assert host.tmux("ls").returncode != 0


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_an_attached_run_ends_with_its_connection(host: Host, agent: Agent, how: str) -> None:
    run_id = agent.started(step("long", "trap '' TERM; sleep 600 & wait"), attached=True)
    if how == "killed":
        agent.process.send_signal(signal.SIGKILL)
    else:
        agent.close()
    place = Path(host.run_dir(run_id)) / "outcome.json"
    wait_for(place.exists)
    wait_for(lambda: not host.processes(f"FCCTL_RUN_ID={run_id}"))
    outcome = json.loads(place.read_bytes())
    assert (outcome["status"], outcome["steps"][0]["status"]) == ("cancelled", "cancelled")
    assert "has ended" in outcome["message"]


def test_an_attached_run_whose_supervisor_is_killed_too_is_settled_by_the_next_agent(host: Host, agent: Agent) -> None:
    run_id = agent.started(step("long", "setsid sleep 600 & sleep 600"), attached=True)
    time.sleep(0.1)
    supervisor = host.supervisor(run_id)
    os.kill(supervisor, signal.SIGKILL)
    agent.process.kill()
    later = host.agent()
    wait_for(lambda: later.call("status", {"run_ids": [run_id]})["runs"][0]["status"] == "lost")
    assert not host.processes(f"FCCTL_RUN_ID={run_id}")


def submit_in_folder_of(agent: Agent, first: str, *steps: wire.StepSpec, tree: str | None = None) -> str:
    """Submit a run of ``steps`` that uses the working folder of the run ``first`` instead of a snapshot of its own."""
    plan_file = agent.host.run_dir(first) / "plan.json"
    known = json.loads(plan_file.read_text())["tree_sha256"] if plan_file.exists() else "0" * 64
    plan = plan_of(new_run_id(), *steps, tree_sha256=tree or known, resume_from=first)
    agent.call("submit", {"plan": wire.encode(plan)})
    return plan.run_id


def test_what_the_other_run_built_is_there_at_the_same_path(agent: Agent) -> None:
    first = agent.passed(step("build", 'mkdir -p out && pwd -P > out/where && echo a > "$FCCTL_ARTIFACTS/kept.txt"'))
    use = '[ "$(pwd -P)" = "$(cat out/where)" ] && grep -q a "$FCCTL_ARTIFACTS/kept.txt"'
    second = submit_in_folder_of(agent, first, step("use", use))
    assert agent.outcome(second).status == "passed"
    third = submit_in_folder_of(agent, second, step("again", "cat out/where"))
    assert agent.outcome(third).status == "passed", "also of one that had gone on itself"


def test_a_run_in_whose_folder_another_works_is_not_deleted_before_it(host: Host, agent: Agent) -> None:
    first = agent.passed(step("build", "echo built > made"))
    busy = agent.started(step("busy", "sleep 300"))
    second = submit_in_folder_of(agent, first, step("use", "cat made"))  # it waits for the other one
    with pytest.raises(CallFailed, match=f"conflict: run {second} works in the folder of run {first}"):
        agent.call("forget", {"run_id": first})
    agent.call("cancel", {"run_id": busy, "reason": "x", "grace_s": 0})
    assert agent.outcome(second).status == "passed"
    for run_id in (second, first):
        agent.call("forget", {"run_id": run_id})
        assert not host.run_dir(run_id).exists()


def test_no_link_fifo_or_device_of_the_other_run_is_taken_over(agent: Agent) -> None:
    first = agent.passed(
        step("build", 'cd "$FCCTL_ARTIFACTS"; mkdir a; echo kept > a/kept.txt; mkfifo a/pipe; ln -s / a/l')
    )
    use = 'cd "$FCCTL_ARTIFACTS/a"; grep -q kept kept.txt && [ ! -e pipe ] && [ -L l ]'
    second = submit_in_folder_of(agent, first, step("use", use))
    assert agent.outcome(second).status == "passed"
    artifacts = agent.host.run_dir(second) / "artifacts"
    shutil.rmtree(artifacts)
    artifacts.symlink_to("/usr")
    third = submit_in_folder_of(agent, second, step("use", '[ -z "$(ls "$FCCTL_ARTIFACTS")" ]'))
    assert agent.outcome(third).status == "passed"


def test_of_a_run_that_is_not_here_nothing_is_left(agent: Agent) -> None:
    with pytest.raises(CallFailed, match="conflict: this host no longer has the files of run"):
        submit_in_folder_of(agent, "20261121t081530z-job-deleted-3fa9c1", step("use", "true"))


def test_no_two_runs_go_on_with_the_same_one(agent: Agent) -> None:
    """Of two who resume a run at the same time, each sees only then that the other one does, too."""
    first = agent.passed(step("build", "true"))
    second = submit_in_folder_of(agent, first, step("use", "true"))
    with pytest.raises(CallFailed, match=f"conflict: run {second} has already resumed run {first}"):
        submit_in_folder_of(agent, first, step("use", "true"))
    agent.outcome(second)
    assert agent.outcome(submit_in_folder_of(agent, second, step("use", "true"))).status == "passed"


def test_another_source_is_another_run(agent: Agent) -> None:
    first = agent.passed(step("build", "true"))
    with pytest.raises(CallFailed, match=r"conflict: .* other source files"):
        submit_in_folder_of(agent, first, step("use", "true"), tree="1" * 64)


def test_a_run_that_goes_on_is_in_nobodys_way(agent: Agent) -> None:
    first = agent.submit(step("slow", "sleep 300"))
    with pytest.raises(CallFailed, match=r"conflict: .* has not ended"):
        submit_in_folder_of(agent, first, step("use", "true"))
