"""Commands of a trial cost no more than they may, and leave nothing behind: every way to misbehave, for real."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fcctl_remote.base.hostfacts import IS_LINUX
from fcctl_tune.trial import process
from fcctl_tune.trial.process import Outcome
from tests.support.living import is_running

MIB = 1024 * 1024


def run(text: str, folder: Path, timeout_s: float = 60.0) -> Outcome:
    return process.run(text, os.environ, str(folder), str(folder / "log"), timeout_s)


def python(code: str) -> str:
    return f"{shlex.quote(sys.executable)} -S -E -c {shlex.quote(code)}"


def test_what_it_prints_is_in_its_log_and_its_exit_code_is_kept(tmp_path: Path) -> None:
    outcome = run("echo out; echo err >&2; false | true; echo not reached", tmp_path)
    assert (outcome.exit_code, outcome.how, outcome.reason) == (1, "exited", "exit code 1")
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_a_command_that_yields_is_served_after_others(tmp_path: Path) -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    later = min(19, ours + process.YIELDING)
    text = (
        "for i in $(seq 1200); do [ $(nice) = %d ] && break; sleep 0.05; done; sh -c nice; cat /proc/$$/autogroup || :"
    )

    def said(wanted: int, *, yields: bool) -> list[str]:
        folder, log = str(tmp_path), tmp_path / "log"
        assert process.run(text % wanted, os.environ, folder, str(log), 90.0, yields).reason is None
        return log.read_text().splitlines()

    patient, usual = said(later, yields=True), said(ours, yields=False)
    assert (patient[0], usual[0]) == (str(later), str(ours))
    if "autogroup-" in usual[1]:  # /autogroup-399074 nice 0
        assert usual[1].split()[-1] == "0"
        assert os.geteuid() != 0 or patient[1].split()[-1] == str(process.YIELDING)  # others may, now and then


def test_a_crash_is_named_by_its_signal(tmp_path: Path) -> None:
    outcome = run("kill -SEGV $$", tmp_path)
    assert outcome.reason == "SIGSEGV"
    assert process.crashed(outcome.exit_code)
    assert process.crashed(run("bash -c 'kill -ABRT $$'; echo not reached", tmp_path).exit_code)


def test_a_hang_that_ignores_sigterm_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"trap '' TERM; {python('import time; time.sleep(600)')} & echo $! > pid; while :; do sleep 600; done"
    clock, pid = time.monotonic, tmp_path / "pid"
    later = SimpleNamespace(  # its time is over once it hangs
        monotonic=lambda: clock() + 60 * (pid.exists() and pid.stat().st_size > 0), sleep=time.sleep
    )
    monkeypatch.setattr(process, "time", later)
    outcome = run(text, tmp_path, timeout_s=60)
    assert outcome.how == "timed_out"
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_child_in_a_session_of_its_own_does_not_survive_the_command(tmp_path: Path) -> None:
    child = "import os, time; os.setsid(); open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    outcome = run(f"{python(child)} & while ! [ -s pid ]; do sleep 0.02; done", tmp_path)
    assert outcome.exit_code == 0
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_output_without_end_is_ended_and_its_log_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "OUTPUT_BYTES", 2 * MIB)
    outcome = run("yes", tmp_path)
    assert outcome.how == "output"
    assert "printed too much" in str(outcome.reason)
    assert (tmp_path / "log").stat().st_size < process.KEPT_BYTES + 100


def test_a_file_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PREPARE", process._PREPARE.replace(str(process.FILE_BYTES // 1024), "1024"))
    outcome = run("head -c 100000000 /dev/zero > big; echo not reached", tmp_path)
    assert outcome.reason == "SIGXFSZ"
    assert (tmp_path / "big").stat().st_size == MIB


@pytest.mark.skipif(not IS_LINUX, reason="memory is looked up in /proc")
def test_too_much_memory_is_ended_also_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "memory_bytes", lambda: 80 * MIB)
    outcome = run(f"{python('b = bytearray(80 << 20); import time; time.sleep(600)')}; true", tmp_path)
    assert outcome.how == "memory"
    assert process.resident_bytes(os.getpid()) > MIB


def test_commands_do_not_see_the_libraries_of_the_search(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    (bundle / "inner").mkdir(parents=True)
    path = os.pathsep.join([str(bundle), str(bundle / "inner"), "/mine", ""])
    seen = process.clean_environment({"FCCTL_TUNE": str(bundle), "PYTHONPATH": path, "X": "1"})
    assert seen == {"PYTHONPATH": "/mine", "X": "1"}
    assert process.clean_environment({"FCCTL_TUNE": str(bundle), "PYTHONPATH": str(bundle)}) == {}
    assert process.clean_environment({"PYTHONPATH": "/mine"}) == {"PYTHONPATH": "/mine"}


#: A process that adopts orphans, as a worker does: what it says of strays, before and after one command left a daemon
#: that hides by its session and its environment; then it ends all that descends from it.
WORKER = """
import sys, time
from fcctl_tune.trial import process
process.adopt_orphans()
process.run("true", {"PATH": "/bin:/usr/bin"}, ".", "logs/log", 30.0)
print(process.may_have_strays(), flush=True)
process.run(sys.argv[1], {"PATH": "/bin:/usr/bin"}, ".", "logs/log", 30.0)
print(process.may_have_strays(), flush=True)
sys.stdin.read()
process.end_descendants()
"""


def test_a_worker_adopts_what_hides_from_its_commands_and_ends_it(tmp_path: Path) -> None:
    daemon = "import os, time; os.setsid(); open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    hides = f"env -i {python(daemon)} & until [ -s pid ]; do sleep 0.02; done"
    env = {**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[2])}
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, hides], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, env=env
    )
    assert worker.stdin is not None
    assert [worker.stdout.readline() for _ in range(2)] == [b"False\n", b"True\n"]
    pid = int((tmp_path / "pid").read_text())
    assert is_running(pid)
    worker.stdin.close()
    worker.wait()
    worker.stdout.close()
    assert not is_running(pid)


@pytest.mark.skipif(not process.IS_LINUX, reason="reads /proc")
def test_a_thread_that_ends_while_children_are_looked_for_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["999999999", *listed(path)])
    child = subprocess.Popen(["sleep", "600"])
    try:
        assert child.pid in set(process._children(os.getpid()))
    finally:
        child.kill()
        child.wait()
