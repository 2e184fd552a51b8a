"""A stranger's C program is tuned on two machines at once: a link is cut, a machine is killed, then the fcctl is.

Nothing of this needs a GPU. Trials wait for a file to go, so that what happens when is the test's to say.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.test_tune import SUM_C, until
from tests.support.sshd import LoopbackSshd, end_processes_of
from tests.support.workspace import Workspace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("cc") is None or shutil.which("tmux") is None, reason="needs cc and tmux"),
]

TUNE = """\
tune: sum
title: passes over the data
env: {HOLD: %s}
parameters:
  PASSES: [12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
build: cc -O1 -DPASSES=$PASSES sum.c -o $TUNE_OUT/sum
check: $TUNE_OUT/sum check
bench: >
  if [ $PASSES != 12 ]; then while [ -e $HOLD ]; do sleep 0.05; done; fi;
  $TUNE_OUT/sum bench $TUNE_CASE $TUNE_REPEATS > $TUNE_OUT/bench.json
metric: {reader: metrics, file: $TUNE_OUT/bench.json, value: metrics.us}
cases: [20000]
timeouts: {bench: 5m}
trials: 12
elites: 1
adopt: tuned.json
"""


@pytest.fixture
def other() -> Iterator[LoopbackSshd]:
    server = LoopbackSshd()
    try:
        yield server.start()
    finally:
        server.close()


def secrets_below(*folders: Path) -> list[Path]:
    """Files with a private key that a search made; Dask's own tests, which travel with it, have one too."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and "bundles" not in path.parts)
    return [path for path in files if b"PRIVATE KEY" in path.read_bytes()]


def test_two_machines_search_whatever_is_killed(
    tmp_path: Path, private_home: Path, sshd: LoopbackSshd, other: LoopbackSshd
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    workspace = Workspace(tmp_path / "theirs", private_home, sshd)
    link = other.proxy()
    workspace.add_ssh("b", other, port=link.port)
    (workspace.root / "tune").mkdir()
    (workspace.root / "tune/sum.yaml").write_text(TUNE % hold)
    (workspace.root / "sum.c").write_text(SUM_C)
    runs, others_runs = sshd.home / ".fcctl/runs", other.home / ".fcctl/runs"
    started = workspace.start("tune", "sum", "--on", "box", "--on", "b", "--seed", "1")

    def says(text: str, times: int = 1, folder: Path = runs) -> Callable[[], bool]:
        def seen() -> bool:
            logs = [log.read_text(errors="replace") for log in folder.glob("*/steps/*/log.txt")]
            return started.poll() is not None or any(log.count(text) >= times for log in logs)

        return seen

    until(says("\nhost b: 1 x cpu"), "the other machine does not come", runs)
    link.reset()
    until(says("joined the search", 2, others_runs), "a cut link is not made anew", others_runs)
    other.stop()
    end_processes_of(other.home)  # whatever it had been doing
    until(says("\nhost b: lost"), "the search does not notice", runs)
    other.start()
    until(says("\nhost b: back"), "the other machine does not come back", others_runs)
    assert secrets_below(others_runs), "while it searches it has the key"
    started.kill()
    _, first_said = started.communicate()
    assert started.returncode == -signal.SIGKILL, first_said
    assert "note: host b: lost, started again" in first_said
    search_id, member_id = sorted(workspace.active(), key=lambda run: "-tune-member-" in run)
    joined = others_runs / member_id / "steps/member/log.txt"
    started = workspace.start("tune", "--resume", search_id)
    until(says("joined the search", 2, others_runs), joined.read_text(), others_runs)
    hold.unlink()
    _, stderr = started.communicate(timeout=300)
    assert started.returncode == 0, stderr

    found = workspace.runs()
    search = found[search_id]
    members = sorted((run for run in found.values() if run["job"] == "tune-member"), key=lambda run: run["created"])
    assert [run["status"] for run in (search, *members)] == ["passed", "lost", "passed"]
    assert members[1]["run_id"] == member_id, "what was there went on"
    folder = workspace.root / "results/runs" / search_id
    document = json.loads((folder / "steps/tune/out/tuning.json").read_text())
    assert [t["number"] for t in document["trials"]] == list(range(12)), "none is lost, none is tried twice"
    assert {t["worker"].split("/")[0] for t in document["trials"]} == {"box", "b"}
    assert {t["state"] for t in document["trials"]} <= {"complete", "pruned"}
    assert document["elites"][0]["params"] == {"PASSES": 1}
    assert not secrets_below(sshd.home, other.home, workspace.root, private_home)
    assert workspace.active() == []
