"""A run that leaves its GPU idle is ended by the host itself: real tmux, supervisor and telemetry, an nvidia-smi that
says what a file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fcctl_remote import wire
from fcctl_remote.run import control
from tests.integration.host_program.agent_client import Agent, Host, step
from tests.support.fake_nvidia_smi import fake_nvidia_smi

RULE = wire.GpuIdle(below_pct=5.0, seconds=1.0, steps=["train"])


def samples(count: int) -> str:
    """Shell: wait for so many samples more."""
    lines = 'cat "$FCCTL_RUN_DIR/telemetry.jsonl" 2>/dev/null | wc -l'
    return f'n=$({lines} || :); until [ "$({lines} || :)" -ge $((n + {count})) ]; do sleep 0.1; done'


def falls_idle(used: Path) -> str:
    """Shell: from now on the GPU does nothing. The file is whole at any time."""
    return f"echo 0 > {used}.new; mv {used}.new {used}"


@pytest.fixture
def used(host: Host) -> Path:
    """The file with the GPU's utilisation, percent."""
    return fake_nvidia_smi(host.base / "bin")


@pytest.fixture
def agent(host: Host, used: Path) -> Agent:
    # The windows' PATH is the tmux server's, which starts with the first run.
    return host.agent(PATH=f"{used.parent}:{host.env['PATH']}")


def test_it_ends_as_idle_with_what_it_has(host: Host, agent: Agent, used: Path) -> None:
    """Nobody follows it meanwhile. The time begins when the GPU falls idle, not with the step."""
    used.write_text("90")
    busy = 'until grep -qs \'"util_pct":90\' "$FCCTL_RUN_DIR/telemetry.jsonl"; do sleep 0.1; done'
    script = f"echo begun; echo 1 > $FCCTL_ARTIFACTS/model; {busy}; {falls_idle(used)}; sleep 600"
    run_id = agent.submit(step("train", script), step("after", "true"), idle=RULE)
    outcome = agent.outcome(run_id)
    assert (outcome.status, outcome.exit_code) == ("idle", 5)
    assert outcome.message == "GPU utilisation below 5 % for 1 s in step 'train'"
    train, after = outcome.steps
    assert (train.status, after.status) == ("cancelled", "skipped")
    assert "uses_gpu: false" in (train.hint or "")
    assert (host.run_dir(run_id) / "artifacts/model").read_text() == "1\n"
    host.wait_until_closed(run_id)
    samples = [json.loads(line) for line in (host.run_dir(run_id) / "telemetry.jsonl").read_text().splitlines()]
    assert {gpu["util_pct"] for sample in samples for gpu in sample["gpus"]} == {90, 0}


def test_a_step_gets_its_notice(host: Host, agent: Agent, used: Path) -> None:
    used.write_text("90")
    notice = 'trap "echo saved > $FCCTL_ARTIFACTS/state; exit 0" TERM'
    script = f"{notice}; {falls_idle(used)}; while :; do sleep 0.1; done"
    run_id = agent.submit(step("train", script), idle=RULE)
    assert agent.outcome(run_id).status == "idle"
    assert (host.run_dir(run_id) / "artifacts/state").read_text() == "saved\n"


@pytest.mark.parametrize(("name", "percent"), [("build", 0), ("train", 50)])
def test_a_step_that_needs_no_gpu_and_a_busy_gpu_end_nothing(agent: Agent, used: Path, name: str, percent: int) -> None:
    used.write_text(str(percent))
    outcome = agent.outcome(agent.submit(step(name, samples(22), timeout_s=60), idle=RULE))
    assert outcome.status == "passed"
    assert outcome.steps[0].duration_s > RULE.seconds + 2 * control.LOOK_S, "long enough to be ended"


@pytest.mark.full
def test_without_telemetry_of_a_gpu_nothing_is_ended(host: Host) -> None:
    plain = host.agent()
    outcome = plain.outcome(plain.submit(step("train", samples(5), timeout_s=60), idle=RULE))
    assert outcome.status == "passed"
    assert outcome.steps[0].duration_s > RULE.seconds + 2 * control.LOOK_S, "long enough to be ended"
