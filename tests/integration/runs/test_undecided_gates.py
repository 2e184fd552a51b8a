"""A required gate that could not be decided: the run is incomplete, exit code 104, wherever a run's end is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.sshd import LoopbackSshd
from tests.support.workspace import REPOSITORY, Workspace

GATE = "benchmark.speedup > 2"
REQUIRED = f"steps:\n  - {{id: bench, run: 'true', gates: [{GATE}]}}\n  - {{id: later, run: 'true'}}\n"
LINE = (
    f"step 'bench': gate without a value: {GATE}: 'benchmark' does not exist here; add a step that measures this "
    f"value; or set 'optional: true' on the gate, if the run may pass without the value"
)
OPTIONAL = f"steps:\n  - id: bench\n    run: 'true'\n    gates: [{{expr: {GATE}, optional: true}}]\n"
FALSE = "steps:\n  - id: bench\n    run: 'true'\n    gates: [{expr: step.duration_s < 0, optional: true}]\n"
#: It was left open on this computer; the machine's steps follow, and then the run is incomplete.
HERE = """
steps:
  - {id: compile, where: controller, run: 'true', optional: %s, gates: [build.registers < 9]}
  - {id: bench, run: 'true'}
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> Workspace:
    made = Workspace(tmp_path / "w", private_home, sshd)
    made.job("required", REQUIRED)
    made.job("optional", OPTIONAL)
    return made


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("target", ["here", "box"])
def test_the_run_ends_with_104_and_says_which_gate_and_what_to_do(workspace: Workspace, target: str) -> None:
    done = workspace.fcctl("run", "required", "--on", target, check=104)
    assert LINE in flat(done.stdout)
    assert f"required on {target} ◐ incomplete" in flat(done.stdout)
    record = workspace.only_run()
    assert (record["status"], record["exit_code"], record["message"]) == ("incomplete", 104, LINE)
    assert [step["status"] for step in record["steps"]] == ["unavailable", "skipped"]
    assert record["steps"][0]["gates"][0]["optional"] is False
    (row,) = workspace.json("results", "ls", "--status", "incomplete")["runs"]
    assert (row["status"], row["exit_code"]) == ("incomplete", 104)
    assert workspace.json("results", "ls", "--status", "passed")["runs"] == []
    assert workspace.json("results", "show", "last")["run"]["status"] == "incomplete"
    assert (
        f"Run {row['run_id']} ended with status incomplete" in workspace.json("results", "report", "last")["verdict"][0]
    )
    refused = workspace.fcctl("run", "--resume", "last", check=8)
    assert "it ended as incomplete" in refused.stderr


def test_an_optional_gate_may_be_undecided_but_not_false(workspace: Workspace) -> None:
    done = workspace.fcctl("run", "optional", "--on", "here")
    assert f"○ unavailable {GATE} optional" in flat(done.stdout)
    record = workspace.only_run()
    assert (record["status"], record["exit_code"], record["message"]) == ("passed", 0, None)
    [gate] = record["steps"][0]["gates"]
    assert (gate["verdict"], gate["optional"]) == ("unavailable", True)
    workspace.job("wrong", FALSE)
    workspace.fcctl("run", "wrong", "--on", "here", check=100)


@pytest.mark.parametrize(
    ("optional", "code", "status", "steps"),
    [
        ("unavailable", 104, "incomplete", ["unavailable", "passed"]),
        ("false", 104, "incomplete", ["unavailable", "skipped"]),
        ("true", 0, "passed", ["unavailable", "passed"]),
    ],
)
def test_steps_on_this_computer(workspace: Workspace, optional: str, code: int, status: str, steps: list[str]) -> None:
    workspace.job("two", HERE % optional)
    workspace.fcctl("run", "two", "--on", "box", check=code)
    record = workspace.only_run()
    assert (record["status"], [step["status"] for step in record["steps"]]) == (status, steps)
    if code:
        assert record["message"].startswith("step 'compile': gate without a value: build.registers < 9: ")


def test_what_it_measured_is_compared_and_the_run_keeps_its_code(workspace: Workspace) -> None:
    samples = ", ".join(str(10 + i % 3) for i in range(40))
    document = '{"kind": "benchmark", "benchmarks": [{"name": "k", "unit": "us", "stats": {"n": 40, "p50": 11}, '
    emit = f"""echo '{document}"samples": [{samples}]}}]}}' > "$FCCTL_OUT/b.json" """
    workspace.job(
        "timed", f"steps:\n  - id: bench\n    run: |\n      {emit}\n    gates: [metrics.metrics.speedup > 2]\n"
    )
    workspace.fcctl("run", "timed", "--on", "here", check=104)
    told = workspace.json("run", "timed", "--on", "here", "--compare", "last", check=104)
    assert [one["name"] for one in told["comparison"]["benchmarks"]] == ["k"]
    assert told["comparison"]["new"]["runs"][0]["status"] == "incomplete"


def test_registers_are_asked_here_only_of_a_computer_that_can_compile(workspace: Workspace) -> None:
    steps = yaml.safe_load((REPOSITORY / "jobs/phase1.yaml").read_text())["steps"]
    registers = next(step for step in steps if step["id"] == "registers")
    compiling: dict[str, object] = {
        "id": "compile", "where": "controller", "optional": "unavailable",
        "run": """echo '{"kind": "build", "kernels": [{"name": "k", "registers": 121}]}' > "$FCCTL_OUT/b.json" """,
    }  # fmt: skip
    host = {"id": "there", "run": "true"}
    workspace.job("can", yaml.safe_dump({"steps": [compiling, registers, host]}))
    workspace.job(
        "cannot", yaml.safe_dump({"steps": [{**compiling, "needs": {"tools": ["no-such"]}}, registers, host]})
    )
    workspace.fcctl("run", "cannot", "--on", "here")
    [gate] = workspace.only_run()["steps"][1]["gates"]
    assert gate["verdict"] == "not_applicable"
    workspace.fcctl("run", "can", "--on", "here", check=100)
