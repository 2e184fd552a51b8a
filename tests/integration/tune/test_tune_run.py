"""A stranger's kernel tuned on Dask, with all the trouble there can be: kills, crashes, hangs, daemons."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")
pytest.importorskip("distributed")

from tests.support.living import is_running, started_with
from tests.support.shadows import shadow_stdlib
from tests.support.waiting import wait_for

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[3]

#: The "kernel": what it does is chosen by its parameters.
KERNEL = r"""
case $P in
  2) kill -SEGV $$;;
  3) trap '' TERM; while :; do sleep 600; done;;
  4) echo max err 3; exit 1;;
  5) setsid sleep 600 & echo $! >> "$MARKS/daemons";;
  6) [ -e "$MARKS/killed" ] || { touch "$MARKS/killed"; kill -KILL $PPID; sleep 600; };;
esac
"""
SPEC = {
    "tune": "stranger",
    "parameters": {"P": [1, 2, 3, 4, 5, 6, 7, 8, 9]},
    "constraints": ["P != 9"],
    "build": "until [ $P != 7 -o -e $MARKS/go ]; do sleep 0.1; done; [ $P != 8 ] && echo $P >> $MARKS/built",
    "check": ". ./kernel.sh",
    "bench": 'echo $P $TUNE_CASE >> $MARKS/benched; echo "{\\"us\\": $((10 - P)).5}" > $TUNE_OUT/b.json',
    "metric": {"reader": "metrics", "file": "$TUNE_OUT/b.json", "value": "metrics.us"},
    "cases": ["a"],
    "held_out": ["b"],
    "timeouts": {"build": 60, "check": 4, "bench": 60},
    "trials": 20,
    "elites": 1,
}


class Search:
    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.marks = folder / "marks"
        self.marks.mkdir()
        (folder / "kernel.sh").write_text(KERNEL)
        (folder / "spec.json").write_text(json.dumps(SPEC))
        path = os.pathsep.join(filter(None, [str(ROOT / "remote"), os.environ.get("PYTHONPATH")]))
        self.env = {**os.environ, "PYTHONPATH": path, "MARKS": str(self.marks), "CUDA_VISIBLE_DEVICES": ""}
        self.env.pop("FCCTL_OUT", None)

    def start(self, *more: str) -> subprocess.Popen[str]:
        argv = [
            sys.executable,
            "-P",
            "-m",
            "fcctl_tune",
            "run",
            "spec.json",
            "--out",
            "out",
            "--strategy",
            "exhaustive",
            *more,
        ]
        return subprocess.Popen(
            argv, cwd=self.folder, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def log(self, name: str = "tune_log.csv") -> list[dict[str, str]]:
        with (self.out / name).open(encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    def told(self) -> list[int]:
        """Numbers of trials in the journal."""
        numbers = []
        for line in (self.out / "journal.log").read_text().splitlines():
            record = json.loads(line).get("user_attr", {}).get("record")
            numbers += [record["number"]] if record else []
        return numbers

    def ours(self) -> list[int]:
        """Living processes that a search started."""
        return [pid for pid, _ in started_with(f"MARKS={self.marks}") if is_running(pid)]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_a_search_outlives_its_kernels_its_workers_and_itself(tmp_path: Path) -> None:
    search = Search(tmp_path)

    # Killed outright, in the middle: nothing of it goes on.
    with search.start() as first:
        for line in first.stdout:
            if line.startswith("trial "):
                break
        first.kill()
    wait_for(lambda: not search.ours())
    before = search.told()
    assert before

    # Told to stop: it ends with everything written.
    with search.start() as second:
        said = [second.stdout.readline()]
        second.send_signal(signal.SIGTERM)
        said += second.stdout
        assert second.wait() == 143, said
    assert not search.ours()
    assert said[-1].startswith("stopped: SIGTERM")
    assert set(before) <= set(search.told())

    # And to its end.
    (search.marks / "go").touch()
    with search.start() as last:
        said_last = last.communicate()[0]
    assert last.returncode == 0, said_last
    assert not search.ours()
    _look_at(search, said_last)
    assert (search.marks / "built").read_text().split().count("1") == 1  # the default was built once, by the first


def _look_at(search: Search, said: str) -> None:
    assert sorted(search.told()) == list(range(8))  # 8 legal configurations, each told once
    states = {row["P"]: row["state"] for row in search.log()}
    assert states["1"] == "complete"
    assert {p: states[p] for p in "2348"} == {"2": "crashed", "3": "hung", "4": "wrong", "8": "build_failed"}
    assert {states[p] for p in "567"} <= {"complete", "pruned"}
    assert (search.marks / "killed").exists()  # its worker died with it once, and it was tried again
    daemons = [int(pid) for pid in (search.marks / "daemons").read_text().split()]
    assert daemons
    assert not any(map(is_running, daemons))
    document: dict[str, Any] = json.loads((search.out / "tuning.json").read_text())
    assert document["complete"] is True
    assert document["gpu"] is None
    best = document["final"][0]
    assert (best["params"], best["verdict"]) == ({"P": 7}, "faster")
    assert best["ratio"] == pytest.approx(3.5 / 9.5, abs=1e-4)
    assert best["held_out"]["ratio"] == pytest.approx(3.5 / 9.5, abs=1e-4)
    assert best["per_case"]["a"]["us"] == 3.5
    assert json.loads((search.out / "topk.json").read_text())["final"][0]["params"] == {"P": 7}
    assert "elite 1: trial 6 faster" in said


def changed(folder: Path, **change: Any) -> Search:
    search = Search(folder)
    (folder / "spec.json").write_text(json.dumps({**SPEC, "build": "true", **change}))
    return search


def test_elites_that_are_wrong_elsewhere_give_way_to_the_next_best(tmp_path: Path) -> None:
    search = changed(tmp_path, check='[ "$TUNE_CASE" = a -o "$P" -lt 6 ]', elites=2)
    with search.start("--compare", "random") as process:
        said = process.communicate()[0]
    assert process.returncode == 0, said
    document = json.loads((search.out / "tuning.json").read_text())
    assert [e["params"]["P"] for e in document["elites"]] == [5, 4]
    found = {e["params"]["P"]: e["verdict"] for e in document["final"]}
    assert found == {5: "faster", 4: "faster", 8: "failed", 7: "failed", 6: "failed"}
    best = pytest.approx(5.5 / 9.5, abs=1e-4)  # the others are no good
    assert (document["summary"]["best"], document["curve"][-1]) == (best, best)
    states = {row["P"]: (row["state"], row["reason"]) for row in search.log()}
    assert states["8"] == ("wrong", "the last measurement: b: exit code 1")
    (control,) = document["controls"]
    assert control["best"] >= document["summary"]["best"]
    assert sorted(row["P"] for row in search.log("tune_log-random.csv")) == sorted("12345678")


def test_what_kept_a_search_from_going_on_is_in_its_document(tmp_path: Path) -> None:
    search = changed(tmp_path, check="echo max err 3; [ $P != 1 ]")
    shadow_stdlib(tmp_path)  # here, since each measurement of a longer search copies these 300 files
    with search.start() as process:
        said = process.communicate()[0]
    assert process.returncode == 1, said
    document = json.loads((search.out / "tuning.json").read_text())
    assert document["fault"] == "the default configuration does not work: wrong: exit code 1: max err 3"
    assert not document["complete"]


@pytest.mark.parametrize("phase", ["build", "bench"])
def test_what_kills_its_worker_costs_none_of_those_that_waited_for_it(tmp_path: Path, phase: str) -> None:
    search = Search(tmp_path)
    kill = "[ $KILLS = no ] || kill -KILL $PPID\n"
    bench = 'echo "{\\"us\\": $P}" > $TUNE_OUT/b.json'
    spec = {
        **SPEC, "parameters": {"P": [5, 3, 7], "KILLS": ["no", "yes"]}, "constraints": ["KILLS == 'no' or P < 7"],
        "build": "true", "check": "true", "bench": bench, "held_out": [],
    }  # fmt: skip
    spec[phase] = kill + str(spec[phase])
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    with search.start() as running:
        said = running.communicate()[0]
    assert running.returncode == 0, said
    states = {(row["P"], row["KILLS"]): row["state"] for row in search.log()}
    assert {key for key, state in states.items() if state == "lost"} == {("5", "yes"), ("3", "yes")}
    assert len(states) == 5
    assert "although no other trial ran" in said
    assert not search.ours()
