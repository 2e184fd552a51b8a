"""A stranger's C program is tuned by `fcctl tune` over SSH, without Python of theirs and without a GPU.

Its search file is written from docs/tune.md alone. Among its six configurations one does not compile, one crashes, one
is wrong and one hangs; and the fcctl that started the search is killed in the middle of it.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.shadows import shadow_stdlib
from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("cc") is None or shutil.which("tmux") is None, reason="needs cc and tmux"),
]

SUM_C = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef NOCOMPILE
#error this configuration does not compile
#endif

static volatile double sink;

/* The sum of n terms, PASSES times over: a caller cannot tell but by the clock. */
static double sum(int n) {
  double s = 0;
  for (int p = 0; p < PASSES; ++p) {
    s = 0;
    for (int i = 1; i <= n; ++i) s += 1.0 / i;
    sink = s;
  }
  return s;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* what else runs on this machine is no part of it */
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "check")) {
#ifdef CRASH
    *(volatile int *)0 = 1;
#endif
#ifdef HANG
    for (;;) pause();
#endif
    double off = sum(1000) - 7.485470860550343;
#ifdef WRONG
    off += 1;
#endif
    return off * off > 1e-20;
  }
  int n = atoi(argv[2]), repeats = atoi(argv[3]);
  double least = 1e30;
  for (int r = 0; r < repeats; ++r) {
    double start = now();
    sum(n);
    double took = now() - start;
    if (took < least) least = took;
  }
  printf("{\\"us\\": %.3f}\\n", least);
  return 0;
}
"""
TUNE = """\
tune: sum
title: passes over the data
env: {CFLAGS: -O1}
parameters:
  PASSES: [4, 1]
  FLAW: [NONE, NOCOMPILE, CRASH, WRONG, HANG]
constraints: ['FLAW == "NONE" or PASSES == 4']
build: cc $CFLAGS -DPASSES=$PASSES -D$FLAW sum.c -o $TUNE_OUT/sum
check: $TUNE_OUT/sum check
bench: $TUNE_OUT/sum bench $TUNE_CASE $TUNE_REPEATS > $TUNE_OUT/bench.json
metric: {reader: metrics, file: $TUNE_OUT/bench.json, value: metrics.us}
cases: [20000]
held_out: [40000]
timeouts: {check: 6s}
trials: 16
elites: 1
adopt: tuned.json
"""
FLAWS = {"NOCOMPILE": "build_failed", "CRASH": "crashed", "WRONG": "wrong", "HANG": "hung"}


def lean_python(folder: Path) -> Path:
    """A Python that has numpy and psutil, and nothing else of what a search needs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in ("numpy", "psutil"):
        found = Path(sys.modules[name].__file__ or "") if name in sys.modules else Path(__import__(name).__file__)
        for place in found.parent.parent.glob(f"{name}*"):
            (site / place.name).symlink_to(place)
    return folder / "bin" / "python3"


def until(seen: Callable[[], object], what: str, runs: Path, seconds: float = 240.0) -> None:
    """Wait for it; if it does not come, say what the step printed."""
    deadline = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > deadline:
            logs = [path.read_text(errors="replace") for path in runs.glob("*/steps/*/log.txt")]
            raise AssertionError("\n".join([what, *logs]))
        time.sleep(0.05)


def test_a_strangers_program_is_tuned(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> None:
    python = lean_python(tmp_path / "lean")
    workspace = Workspace(tmp_path / "theirs", private_home, sshd)
    with (workspace.root / "fcctl.toml").open("a") as stream:
        stream.write(f"\n[targets.box.env]\nFCCTL_PYTHON = '{python}'\n")
    (workspace.root / "tune").mkdir()
    (workspace.root / "tune/sum.yaml").write_text(TUNE)
    (workspace.root / "sum.c").write_text(SUM_C)
    shadow_stdlib(workspace.root)

    started = workspace.start("tune", "sum", "--on", "box", "--seed", "1")
    runs = sshd.home / ".fcctl/runs"
    written = "*/artifacts/tune/tune_log.csv"
    until(lambda: started.poll() is not None or list(runs.glob(written)), "the search does not begin to write", runs)
    started.kill()  # with SIGKILL, in the middle
    _, said = started.communicate()
    assert started.returncode == -signal.SIGKILL, said
    (run_id,) = workspace.active()
    until((runs / run_id / "outcome.json").exists, "the search did not go on by itself", runs)
    workspace.fcctl("pull-results", run_id)

    record, folder = workspace.only_run(), workspace.only_folder()
    log = (folder / "steps/tune/log.txt").read_text()
    assert (record["job"], record["status"]) == ("tune", "passed"), log
    document = json.loads((folder / "steps/tune/out/tuning.json").read_text())
    states = {
        trial["params"]["FLAW"]: trial["state"] for trial in document["trials"] if trial["params"]["FLAW"] != "NONE"
    }
    assert states == FLAWS
    assert [t["number"] for t in document["trials"]] == list(range(6))
    assert document["elites"][0]["params"] == {"PASSES": 1, "FLAW": "NONE"}
    log = (folder / "artifacts/tune/tune_log.csv").read_text()
    assert log.count("\n") == 7
    assert "does not compile" in log
    assert json.loads((folder / "artifacts/tune/topk.json").read_text())["elites"]

    refused = workspace.fcctl("tune", "--adopt", run_id, check=2)
    assert "needs your confirmation" in refused.stderr
    assert '+  {"search": "sum", "gpu": "cpu", "case": "20000"' in refused.stdout
    assert not (workspace.root / "tuned.json").exists()
    adopted = workspace.json("tune", "--adopt", run_id, "--yes")
    rows = json.loads((workspace.root / "tuned.json").read_text())["rows"]
    assert adopted["written"]
    assert [row["case"] for row in rows] == ["20000"]
    assert all(row["run"] == run_id and row["params"]["PASSES"] == 1 and row["held_out"][2] < 1 for row in rows)

    report = workspace.fcctl("results", "report", run_id, "--md").stdout
    assert "## Tuning" in report
    assert "does not compile" in report
