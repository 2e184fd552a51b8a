"""Steps that were carried out elsewhere, and runs that live no longer than the connection they came over."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from tests.integration.host_program.agent_client import Agent, CallFailed, Host, step
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
