"""fcctl calling fcctl: what the other process is given, and what is made of its answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.schedules import fire
from orchestrator.schedules.due import Schedule

PLAN = Schedule.model_validate({"job": "bench", "on": "l4", "cron": "@daily", "settings": {"SIZE": "a b", "N": "2"}})
#: Answers with what it was given.
ECHO = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "cap": os.environ.get("FCCTL_BUDGET_PER_RUN_USD"), "cwd": os.getcwd(),
                  "firing": os.environ.get("FCCTL_FIRING"), "leads": os.getsid(0) == os.getpid()}), flush=True)
"""


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("FCCTL_BUDGET_PER_RUN_USD", raising=False)

    def run(script: str, budget_usd: float | None = None) -> Mapping[str, Any]:
        monkeypatch.setattr(fire, "_FCCTL", (sys.executable, "-c", script))
        plan = PLAN.model_copy(update={"budget_usd": budget_usd})
        return fire.run_job(tmp_path)(plan, "ws/nightly@1.0 /results")

    return run


def test_a_run_is_asked_for_as_the_schedule_says(answer: Any, tmp_path: Path) -> None:
    given = answer(ECHO)
    assert given["argv"] == [
        "-C", str(tmp_path), "--json", "--yes", "run", "bench", "--on", "l4", "--set", "SIZE=a b", "--set", "N=2",
    ]  # fmt: skip
    assert (given["cap"], given["cwd"]) == (None, str(tmp_path))
    assert given["firing"] == "ws/nightly@1.0 /results"


def test_the_firing_s_budget_replaces_no_cap_of_a_run(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCCTL_BUDGET_PER_RUN_USD", "7")
    given = answer(ECHO, 9.5)
    assert (given["argv"][-2:], given["cap"]) == (["--budget", "9.5"], "7")
    assert "--budget" not in answer(ECHO)["argv"]


def test_the_last_object_that_it_prints_counts(answer: Any) -> None:
    assert answer("""print('{"a": 1}\\n{"b": 2}\\n[3]\\nnote')""") == {"b": 2}
    assert answer("""import sys; sys.stderr.write('warning\\n{"error": {"message": "no"}}\\n')""") == {
        "error": {"message": "no"}
    }


def test_one_that_prints_nothing_ended_with_an_error(answer: Any) -> None:
    died = answer("import sys; sys.stderr.write('x' * 600 + 'the end\\n'); sys.exit(70)")["error"]
    assert died["message"] == "fcctl run ended with exit code 70 and printed no result"
    assert died["exit_code"] == 70
    assert died["cause"] == "x" * 493 + "the end"
    assert answer("")["error"]["cause"] is None


def test_a_launched_firing_is_in_a_session_of_its_own_and_leaves_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the tick, with all that is in its session, does not end the firing."""
    monkeypatch.setattr(fire, "_FCCTL", (sys.executable, "-c", ECHO))
    log = tmp_path / "log"
    log.write_text("before\n")
    started = []
    begin = subprocess.Popen

    def popen(*args: Any, **given: Any) -> Any:
        started.append(begin(*args, **given))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    fire.launch(tmp_path, ["schedule", "fire", "nightly"], log)
    started[0].wait()
    before, printed = log.read_text().splitlines()
    assert before == "before"
    given = json.loads(printed)
    assert given["argv"] == ["-C", str(tmp_path), "schedule", "fire", "nightly"]
    assert (given["cwd"], given["leads"]) == (str(tmp_path), True)
