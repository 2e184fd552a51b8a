"""Several real commands at one moment, under a cap that fits one of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import forked

MACHINES = 6
#: It goes on until all others have come to their end: what one did cost in the end may leave enough for another one.
JOB = """
job: hello
budget: {minutes: 10}
steps:
  - {id: greet, run: 'until [ -e "$WHEN" ]; do sleep 0.1; done'}
"""
#: Ten minutes are 36 dollars, and the day's cap pays for one.
LOCAL = '[targets.m{n}]\nkind = "local"\nusd_per_hour = 216.0\nroot = "{root}"\n'


def _workspace(folder: Path, targets: str, cap: float) -> None:
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs/hello.yaml").write_text(JOB.replace("$WHEN", str(folder.parent / "all-others-ended")))
    (folder / "fcctl.toml").write_text(f'[project]\nname = "ws"\n[budget]\nper_month_usd = {cap}\n{targets}')


def _at_once(commands: list[list[str]], folders: list[Path], home: Path) -> list[subprocess.CompletedProcess[str]]:
    """Start them all before any is waited for; a run may end once all others have."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FCCTL_", "XDG_"))}
    env = {**kept, "HOME": str(home), "PYTHONPATH": forked.PYTHON_PATH}
    started = [
        forked.start(["-C", str(folder), "--json", "--yes", *command], folder, env)
        for command, folder in zip(commands, folders, strict=True)
    ]
    limit = time.monotonic() + 240
    while sum(process.poll() is None for process in started) > 1 and time.monotonic() < limit:
        time.sleep(0.05)
    (folders[0].parent / "all-others-ended").touch()
    said = [process.communicate() for process in started]
    return [subprocess.CompletedProcess(p.args, p.returncode, *s) for p, s in zip(started, said, strict=True)]


def _one_started(done: list[subprocess.CompletedProcess[str]]) -> None:
    codes = sorted(one.returncode for one in done)
    assert codes == [0, *[5] * (len(done) - 1)], [(one.returncode, one.stderr[-300:]) for one in done]
    refused = [json.loads(one.stderr.splitlines()[-1])["error"] for one in done if one.returncode]
    assert all("of the month's cap of" in error["message"] for error in refused)


@pytest.mark.full
@pytest.mark.parametrize("checkouts", [1, 2])
def test_one_of_six_runs_starts(tmp_path: Path, private_home: Path, checkouts: int) -> None:
    """Also where the six are of two checkouts of one project."""
    for attempt in range(int(os.environ.get("RACES", "5"))):
        home = private_home / str(attempt)
        home.mkdir()
        places = [tmp_path / str(attempt) / str(number) for number in range(checkouts)]
        for place in places:
            targets = "".join(LOCAL.format(n=n, root=tmp_path / f"root-{attempt}-{n}") for n in range(MACHINES))
            _workspace(place, targets, 36.4)
        commands = [["run", "hello", "--on", f"m{number}"] for number in range(MACHINES)]
        _one_started(_at_once(commands, [places[n % checkouts] for n in range(MACHINES)], home))
