"""A stranger's C program is tuned on two machines at once: a link is cut, a machine is killed, then fcctl is.

Nothing of this needs a GPU. Once the default is through, trials wait for a file to go, so that what happens when is the
test's to say; until then none of them may keep the default from the machine's one GPU.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_tune import SUM_C, until
from tests.support.sshd import LoopbackSshd, end_processes_of
from tests.support.workspace import Workspace

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("cc") is None or shutil.which("tmux") is None, reason="needs cc and tmux"),
]

TUNE = """\
title: passes over the data
env: {HOLD: %s}
parameters:
  PASSES: [12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
build: cc -O1 -DPASSES=$PASSES sum.c -o $TUNE_OUT/sum
check: $TUNE_OUT/sum check
bench: >
  case $PASSES in 12) ;; *)
  touch $HOLD-$(dirname $FCCTL_TUNE_WORKER); found=$FCCTL_ARTIFACTS/tune/journal.log;
  while [ -e $HOLD ] && { [ ! -e $found ] || grep -q '"record":{"number":0,' $found; }; do sleep 0.05; done; esac;
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


class Search:
    """``fcctl tune sum`` on two machines, box and b, of which b is behind a link that can be cut."""

    def __init__(self, folder: Path, home: Path, box: LoopbackSshd, other: LoopbackSshd) -> None:
        self.hold = folder / "hold"
        self.hold.touch()
        self.workspace = Workspace(folder / "theirs", home, box)
        self.link = other.proxy()
        self.workspace.add_ssh("b", other, port=self.link.port)
        self.workspace.write_search("sum", TUNE % self.hold)
        (self.workspace.root / "sum.c").write_text(SUM_C)
        self.runs = {"box": box.home / ".fcctl/runs", "b": other.home / ".fcctl/runs"}
        self.started = self.workspace.start("tune", "sum", "--on", "box", "--on", "b", "--seed", "1")

    def until_it_says(self, text: str, on: str = "box", times: int = 1) -> None:
        """Wait until a log on that machine has ``text`` so often."""
        folder = self.runs[on]

        def seen() -> bool:
            logs = ["\n" + log.read_text(errors="replace") for log in folder.glob("*/steps/*/log.txt")]
            return self.started.poll() is not None or any(log.count(text) >= times for log in logs)

        until(seen, f"{on} does not say {text!r}", folder)
        assert self.started.poll() is None, self.started.communicate()

    def words_on_b(self) -> list[str]:
        """What the search on box said of host b, a word each: ``1``, ``lost``, ``back``."""
        logs = "".join("\n" + log.read_text(errors="replace") for log in self.runs["box"].glob("*/steps/*/log.txt"))
        return re.findall(r"\nhost b: (\w+)", logs)

    def until_it_says_of_b(self, is_it: Callable[[list[str]], bool], what: str) -> None:
        def seen() -> bool:
            return self.started.poll() is not None or is_it(self.words_on_b())

        until(seen, what, self.runs["box"])
        assert self.started.poll() is None, self.started.communicate()

    def ends(self) -> str:
        """Its standard error, once nothing holds it any more."""
        self.hold.unlink()
        _, said = self.started.communicate()
        assert self.started.returncode == 0, said
        return str(said)

    def trials(self, run_id: str) -> list[dict[str, Any]]:
        path = self.workspace.root / "results/runs" / run_id / "steps/tune/out/tuning.json"
        document = json.loads(path.read_text())
        assert document["elites"][0]["params"]["PASSES"] <= 3, "a busy machine may mistake 1 for 2"
        found: list[dict[str, Any]] = document["trials"]
        assert [trial["number"] for trial in found] == list(range(12)), "none is lost, none is tried twice"
        assert {trial["state"] for trial in found} <= {"complete", "pruned"}
        return found


def by_age(workspace: Workspace, job: str) -> list[dict[str, Any]]:
    return sorted((r for r in workspace.runs().values() if r["job"] == job), key=lambda run: run["created"])


def test_two_machines_search_whatever_is_killed(
    tmp_path: Path, private_home: Path, sshd: LoopbackSshd, other: LoopbackSshd
) -> None:
    search = Search(tmp_path, private_home, sshd, other)
    workspace = search.workspace
    search.until_it_says("\nhost b: 1 x cpu")
    search.link.reset()
    search.until_it_says("joined the search", on="b", times=2)
    search.until_it_says_of_b(lambda words: words[-1] == "back", "b is not back")
    assert secrets_below(search.runs["b"]), "while it searches it has the key"
    other.stop()
    end_processes_of(other.home)  # whatever it had been doing
    search.until_it_says_of_b(lambda words: words[-1] == "lost", "b is not lost")
    other.start()
    until(lambda: len(workspace.active()) == 1, "b's run has not ended", search.runs["b"])
    search.started.kill()
    _, said = search.started.communicate()
    assert search.started.returncode == -signal.SIGKILL, said
    (search_id,) = workspace.active()
    assert len(by_age(workspace, "tune-member")) == 1
    search.started = workspace.start("attach", search_id)
    search.ends()

    assert [run["status"] for run in by_age(workspace, "tune")] == ["passed"]
    assert [run["status"] for run in by_age(workspace, "tune-member")] == ["lost"]
    search.trials(search_id)
    assert not secrets_below(sshd.home, workspace.root, private_home)
    assert workspace.active() == []


def test_a_search_whose_first_machine_was_rebooted_is_resumed_on_it(
    tmp_path: Path, private_home: Path, sshd: LoopbackSshd, other: LoopbackSshd
) -> None:
    search = Search(tmp_path, private_home, sshd, other)
    workspace = search.workspace
    search.until_it_says("trial   0 of 12")
    search.until_it_says("\nhost b: 1 x cpu")
    end_processes_of(sshd.home)  # sshd is there again, and nothing else
    sshd.restart()
    _, said = search.started.communicate()
    (lost,) = by_age(workspace, "tune")
    assert (lost["target"], lost["status"]) == ("box", "lost"), said
    assert [run["status"] for run in by_age(workspace, "tune-member")] == ["cancelled"], said
    search.started = workspace.start("run", "--resume", lost["run_id"])
    search.until_it_says("already done)")
    search.ends()
    _, passed = by_age(workspace, "tune")
    assert (passed["target"], passed["status"]) == ("box", "passed")
    search.trials(passed["run_id"])
    assert not secrets_below(other.home, workspace.root, private_home)
    assert workspace.active() == []
