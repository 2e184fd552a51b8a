"""What ``collect`` reads also goes home: the step's own log, and files of the snapshot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.workspace import Workspace

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'softmax' for 'sm_89'
ptxas info    : Function properties for softmax
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 376 bytes cmem[0]
"""
JOB = """
steps:
  - id: log
    run: cat ptxas.txt
    collect: [{reader: ptxas, file: "@log"}]
    gates:
      - max(build.kernels[*].registers) == 24
  - id: file
    run: |
      mkdir -p deep
      echo '{"speed": 3.5}' > deep/numbers.json
      echo '{"speed": 4.5}' > "$FCCTL_OUT/more.json"
    collect:
      - {reader: metrics, file: deep/numbers.json}
      - {reader: metrics, file: $FCCTL_OUT/more.json}
    gates: ["metrics.metrics.speed > 3"]
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    (made.root / "ptxas.txt").write_text(PTXAS)
    made.job("read", JOB)
    return made


Failed = Callable[[str], tuple[list[dict[str, Any]], str]]


@pytest.fixture
def failed(workspace: Workspace) -> Failed:
    """Runs these steps, which do not pass: their records, and what was printed."""

    def run(steps: str) -> tuple[list[dict[str, Any]], str]:
        workspace.job("job", f"steps:\n{steps}")
        shown = workspace.fcctl("run", "job", "--on", "here", check=100)
        return workspace.only_run()["steps"], shown.stderr

    return run


def test_log_and_files_become_documents_and_come_home(workspace: Workspace) -> None:
    workspace.fcctl("run", "read", "--on", "here")
    folder, record = workspace.only_folder(), workspace.only_run()
    assert [[d["kind"] for d in s["documents"]] for s in record["steps"]] == [["build"], ["metrics", "metrics"]]
    assert (folder / "steps/log/log.txt").read_text() == PTXAS
    assert '"speed": 3.5' in (folder / "steps/file/out/numbers.json").read_text()
    assert len(list((folder / "steps/file/out").glob("more*"))) == 1, "what goes home anyway is not copied"


def test_a_step_that_printed_no_figures_passes_and_says_what_to_print(workspace: Workspace) -> None:
    collect = "[{reader: times, file: '@log', optional: true}, {reader: rates, file: '@log', optional: true}]"
    workspace.job(
        "quiet", f"steps:\n  - {{id: no, run: echo, collect: {collect}}}\n"
        f"  - {{id: one, run: echo 3 GB/s, collect: {collect}}}\n",
    )  # fmt: skip
    shown = workspace.fcctl("run", "quiet", "--on", "here")
    assert "no measured values: print a line" in shown.stderr
    assert "no measured values: print a line" in workspace.fcctl("results", "show").stdout
    no, one = workspace.only_run()["steps"]
    assert (no["status"], one["status"], one["message"]) == ("passed", "passed", None)
    assert no["message"].startswith("no measured values: print a line such as 'softmax n=1024: 12.5 us'")


def test_a_failed_step_s_reports_come_home_too_and_change_nothing(failed: Failed) -> None:
    """Which test failed stands in the report of a program that ends with 1."""
    case = '<testcase classname="t" name="a"/><testcase classname="t" name="b"><failure message="off"/></testcase>'
    (step,), _ = failed(f"""
  - id: test
    run: |
      echo '<testsuite tests="2" failures="1">{case}</testsuite>' > junit.xml
      exit 3
    collect:
      - {{reader: junit, file: junit.xml}}
      - {{reader: metrics, file: absent.json}}
    gates: ["correctness.summary.failed == 0"]
""")
    assert (step["status"], step["exit_code"]) == ("failed", 3)
    assert step["message"].startswith("exit code 3")
    assert [d["kind"] for d in step["documents"]] == ["correctness"]
    assert [(g["verdict"], g["value"]) for g in step["gates"]] == [("fail", 1)]


def test_a_file_in_another_folder_is_pointed_to(failed: Failed) -> None:
    (step,), _ = failed("""
  - id: test
    run: |
      echo '{"speed": 1}' > "$FCCTL_OUT/speed.json"
    collect: [{reader: metrics, file: speed.json}]
""")
    assert (step["message"], step["hint"]) == (
        "collect: no file matches 'speed.json'", "did you mean file: $FCCTL_OUT/speed.json?",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file", "into"), [("@log", "/dev/null"), ("$FCCTL_OUT/b.log", "$FCCTL_OUT/b.log"), ("b.log",) * 2]
)
def test_a_file_that_cannot_be_read_is_told_once_and_as_the_job_names_it(failed: Failed, file: str, into: str) -> None:
    (step,), _ = failed(f"""
  - id: build
    run: echo nothing was compiled | tee "{into}"
    collect: [{{reader: ptxas, file: "{file}"}}]
""")
    assert step["message"] == f"{file}: contains no resource line of ptxas"


def test_a_gate_s_value_is_told_without_the_noise_of_its_arithmetic(failed: Failed) -> None:
    (step,), shown = failed("""
  - id: time
    run: echo 'a 1939.9 us'; echo 'a 2185.3 us'
    collect: [{reader: times, file: "@log"}]
    gates: ["min(benchmark.benchmarks[*].stats.p50) < 50"]
""")
    assert step["message"] == "gate failed: min(benchmark.benchmarks[*].stats.p50) < 50 (2062.6)"
    assert "(value: 2062.6)" in shown


def test_unavailable_is_forgiven_and_failure_is_not(failed: Failed) -> None:
    steps, _ = failed("""
  - {id: cannot, run: "true", needs: {tools: [no-such-tool]}, optional: unavailable}
  - {id: fails, run: "false", optional: unavailable}
  - {id: never, run: "true"}
""")
    assert [s["status"] for s in steps] == ["unavailable", "failed", "skipped"]
