"""``pytest --workers``: what runs where, and what is said of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import workers
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
HOOKS = "from tests.support.workers import pytest_addoption, pytest_cmdline_main, pytest_runtestloop\n"
TESTS = """
import os, pathlib, threading, time, pytest
HERE = pathlib.Path(__file__).parent

def note(name, text):
    with (HERE / name).open("a") as stream:
        stream.write(f"{text}\\n")
"""
SHARED = """
@pytest.fixture(scope="module")
def shared():
    note("made", os.getpid())
    yield
    note("gone", os.getpid())

@pytest.mark.parametrize("number", range(3))
def test_shared(shared, number):
    note("shared", os.getpid())
"""
OTHERS = """
@pytest.mark.parametrize("number", range(8))
def test_alone(number, tmp_path):
    note("ran", f"{number} {os.getpid()} {tmp_path}")
    until = time.monotonic() + 240
    while len({line.split()[1] for line in (HERE / "ran").read_text().splitlines()}) < 2:
        assert time.monotonic() < until, "there is no other worker"
        time.sleep(0.01)

@pytest.mark.group("one")
def test_of_a_group():
    note("group", os.getpid())

@pytest.mark.group("one")
def test_that_ends_its_worker():
    note("group", os.getpid())
    os._exit(3)

@pytest.mark.group("one")
def test_after_it():  # in a worker forked anew, where no exception is being handled
    with pytest.raises(ValueError) as raised:
        raise ValueError
    assert raised.value.__context__ is None
    note("group", os.getpid())

def test_that_fails():
    print("said before")
    assert [1, 2] == [1, 3]

@pytest.mark.timeout(0.3)
def test_that_hangs():
    threading.Thread(target=time.sleep, args=(1,), name="another").start()
    time.sleep(600)

def test_that_is_skipped():
    pytest.skip("for want of it")
"""
SLOW = """
@pytest.fixture
def held():
    yield
    note("let go", os.getpid())

@pytest.mark.parametrize("number", range(2))
def test_slow(held, number):
    note("held", os.getpid())  # not in the fixture: a signal before its yield would leave it nothing to let go
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(HOOKS)
    return tmp_path


def argv(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "--workers", "2",
            "-m", "", "-p", "no:cacheprovider", "-rfs", *more, str(folder)]  # fmt: skip


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv(folder, *more), cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_each_test_runs_once_and_what_it_said_is_told(folder: Path) -> None:
    (folder / "test_shared.py").write_text(TESTS + SHARED)
    (folder / "test_others.py").write_text(TESTS + OTHERS)
    done = run(folder)
    assert done.returncode == 1
    assert "3 failed, 13 passed, 1 skipped" in done.stdout.splitlines()[-1], done.stdout
    assert re.search(r"test_that_ends_its_worker _+\nthe worker of this test ended with 3\n", done.stdout), done.stdout
    assert "assert [1, 2] == [1, 3]" in done.stdout
    assert "said before" in done.stdout
    assert "Failed: Timeout (>0.3s) from pytest-timeout." in done.stdout
    assert "Stack of another" in done.stdout
    assert "for want of it" in done.stdout
    ran = [line.split() for line in lines(folder / "ran")]
    assert sorted(int(number) for number, _, _ in ran) == list(range(8))
    assert len({path for _, _, path in ran}) == 8
    assert len({pid for _, pid, _ in ran}) == 2
    assert len(set(lines(folder / "shared"))) == 1
    assert lines(folder / "made") == lines(folder / "gone") == lines(folder / "shared")[:1]
    first, second, third = lines(folder / "group")
    assert first == second != third


def test_the_slowest_begin_first_and_groups_stay_whole() -> None:
    def item(name: str, *marks: pytest.Mark) -> Any:
        by_name = {mark.name: mark for mark in marks}
        return SimpleNamespace(nodeid=name, path=Path(name.partition(":")[0]), get_closest_marker=by_name.get)

    group, first, full = pytest.mark.group("one").mark, pytest.mark.first.mark, pytest.mark.full.mark
    items = [item("a:1"), item("a:2", group), item("b:1", first), item("b:2", group), item("c:1"), item("c:2")]
    known = {"a:1": 9.0, "a:2": 3.0, "b:2": 3.0, "c:1": 5.0, "c:2": 0.1}
    assert list(workers.batches(items, known, workers=1)) == [[2], [0], [1, 3], [4], [5]]
    assert list(workers.batches(items, {**known, "b:1": 0.2}, workers=1)) == [[0], [1, 3], [4], [2], [5]]
    on_a_gpu = [item("f:1", pytest.mark.gpu.mark), item("g:1"), item("g:2", pytest.mark.gpu.mark, group)]
    assert list(workers.batches(on_a_gpu, {}, workers=3)) == [[0, 2], [1]]
    unknown = [*(item(f"d:{n}") for n in range(8)), item("e:1", full), item("e:2", full), item("e:3", full, first)]
    assert list(workers.batches(unknown, {}, workers=1)) == [[10], [8], [9], [0, 1], [2, 3], [4, 5], [6, 7]]


def test_openmp_is_told_to_start_no_threads_before_anything_loads_it() -> None:
    """A worker that is forked from a process with such threads waits for them for ever: so did all of
    ``pytest --workers 2 tests/integration/flashcore``, whose conftest loads PyTorch before any hook runs."""
    asked = "import os, sys, tests.conftest; print(os.environ['OMP_NUM_THREADS'], 'torch' in sys.modules)"
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "1 False\n", done.stderr


@pytest.mark.full
def test_pytest_xdist_does_it_where_a_fork_is_not_safe(folder: Path) -> None:
    (folder / "conftest.py").write_text(f"from tests.support import workers\nworkers.FORKS = False\n{HOOKS}")
    (folder / "test_shared.py").write_text(TESTS + SHARED)
    assert "created: 2/2 workers" in run(folder, "-v").stdout
    assert len(lines(folder / "made")) == 1


def test_it_stops_at_the_first_failure(folder: Path) -> None:
    (folder / "test_fails.py").write_text(
        TESTS + "@pytest.mark.parametrize('number', range(50))\n"
        "def test_fails(number):\n    note('ran', number)\n    assert not number\n"
    )
    done = run(folder, "-x")
    assert (done.returncode, "1 failed" in done.stdout.splitlines()[-1]) == (1, True), done.stdout
    assert len(lines(folder / "ran")) < 50


def test_ctrl_c_lets_go_of_what_tests_hold(folder: Path) -> None:
    (folder / "test_slow.py").write_text(TESTS + SLOW)
    process = subprocess.Popen(argv(folder), cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: (folder / "held").exists() and len(lines(folder / "held")) == 2)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 2, out
    assert sorted(lines(folder / "let go")) == sorted(lines(folder / "held"))


#: As NVIDIA's: it can be used where it was first asked, and ends a process that was forked after that.
DRIVER = """
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned flags) {
  FILE *log = fopen(getenv("DRIVER_LOG"), "a");
  fputs("asked\\n", log);
  fclose(log);
  return 100;
}
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler of Linux")
def test_who_collects_does_not_ask_the_driver(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    argv = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "driver.c")]
    subprocess.run(argv, check=True)
    log = tmp_path / "log"
    libraries = f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    env = {**os.environ, "LD_LIBRARY_PATH": libraries, "DRIVER_LOG": str(log), "CUDA_VISIBLE_DEVICES": ""}
    ask = [sys.executable, "-c", "from flashcore import toolchain; print(toolchain.gpu())"]
    there = {**env, "PYTHONPATH": str(ROOT / "kernels")}
    assert subprocess.run(ask, env=there, capture_output=True, text=True, check=True).stdout == "None\n"
    assert log.read_text() == "asked\n"
    log.unlink()
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    folders = ["tests/unit/flashcore", "tests/integration/flashcore"]
    done = subprocess.run([*collect, *folders], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert not log.exists()
