"""Which signals the processes of a step get when it ends, also if the supervisor has to wait for a processor.

Each in a process of its own, since a supervisor has no other children.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a step's processes are found through /proc")

BEGIN = """if True:
    import os, sys, time
    sys.path.insert(0, "remote")
    from fcctl_remote.run import process
    folder = sys.argv[1]
    process.become_subreaper()
    signals = process.Signals()
    signals.install()
    def step(script):
        argv = ["bash", "-c", script]
        return process.StepProcess(argv, folder, os.environ, folder + "/log", 60.0, signals)
"""
#: The supervisor does not go on before a process of the step has begun to tidy up.
SLOW_AFTER_SIGTERM = """
    real = process.send
    def send(pid, number, group=False):
        real(pid, number, group)
        while group and number == 15 and not os.path.exists("tidying"):
            time.sleep(0.01)
    process.send = send
    os.chdir(folder)
    running = step("trap 'echo told; bash tidy; exit' TERM; touch up; while true; do sleep 0.05; done")
    stop = lambda: "cancelled" if os.path.exists("up") else None
    print(running.wait(stop, lambda: None, lambda: 60.0).how)
"""
BUSY = """
    process.SETTLE_S, process.BUSY_SETTLE_S = 0.0, 240.0
    running = step("for ((i = 0; i < 100000; i++)); do :; done &")
    print(running.wait(lambda: None, lambda: None, lambda: 1.0).leftovers)
"""


def printed(program: str, folder: Path) -> str:
    argv = [sys.executable, "-c", BEGIN + program, str(folder)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_what_tidies_up_is_told_once_and_what_it_starts_is_not(tmp_path: Path) -> None:
    """To many programs a second SIGTERM means to end at once."""
    (tmp_path / "tidy").write_text("touch tidying; sleep 0.5; echo saved\n")
    assert printed(SLOW_AFTER_SIGTERM, tmp_path) == "cancelled\n"
    words = (tmp_path / "log").read_text().split()  # bash may say of its sleep that it was terminated
    assert [word for word in words if word != "Terminated"] == ["told", "saved"]


def test_what_still_works_its_way_to_its_end_is_not_left_behind(tmp_path: Path) -> None:
    """On a busy machine it waits for a processor for longer than an idle one takes to end."""
    assert printed(BUSY, tmp_path) == "[]\n"
