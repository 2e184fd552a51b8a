"""fcctl calling fcctl: a firing in a process of its own, which outlives the tick that began it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.base.files import disk_errors
from orchestrator.money.firings import FIRING
from orchestrator.schedules.due import Schedule
from orchestrator.schedules.fire import RunJob

#: With -P, a module of the workspace is not taken for one of Python's.
_FCCTL = (sys.executable, "-P", "-m", "orchestrator.cli.entry")


def launch(workspace: Path, arguments: Sequence[str], log: Path) -> None:
    """Start ``fcctl ARGUMENTS`` and let it go; what it prints is appended to ``log``."""
    with disk_errors("start a firing", log.parent), log.open("ab") as out:
        subprocess.Popen(
            [*_FCCTL, "-C", str(workspace), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=workspace,
        )


def run_job(workspace: Path) -> RunJob:
    """``fcctl run`` of a schedule's job: its record, or the error's object."""

    def run(schedule: Schedule, firing: str) -> Mapping[str, Any]:
        argv = [*_FCCTL, "-C", str(workspace), "--json", "--yes", "run", schedule.job, "--on", schedule.on]
        for key, value in schedule.settings.items():
            argv += ["--set", f"{key}={value}"]
        env = {**os.environ, FIRING: firing}
        if schedule.budget_usd is not None:
            env["FCCTL_BUDGET_PER_RUN_USD"] = repr(schedule.budget_usd)
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=env, cwd=workspace)
        return _object(done.stdout) or _object(done.stderr) or _nothing(done)

    return run


def _object(output: bytes) -> Mapping[str, Any] | None:
    for line in reversed(output.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return None


def _nothing(done: subprocess.CompletedProcess[bytes]) -> Mapping[str, Any]:
    said = done.stderr.decode(errors="replace").strip()[-500:]
    return {"error": {"message": f"fcctl run ended with code {done.returncode} and no result", "cause": said or None,
                      "exit_code": done.returncode}}  # fmt: skip
