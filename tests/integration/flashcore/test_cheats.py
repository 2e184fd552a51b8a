"""Kernels that cheat: none gets a figure below the time of its work. Those of a GPU are in test_on_a_gpu.py."""

from __future__ import annotations

import multiprocessing.context
import os
from pathlib import Path
from typing import Any

import pytest

from flashcore import bench, inputs, sampling, separate
from flashcore.build import Built, build
from flashcore.errors import FlashcoreError
from flashcore.shapes import Shape
from flashcore.variant import Variant
from tests.support.tiers import sampled
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.usefixtures("kernel_processes"), pytest.mark.group("kernel processes")]
#: Microseconds that the work of cheats.cpp takes.
WORK_US = 4000
SHAPES = {"small": Shape(1, 1, 16, 64)}
#: Of these nothing is wrong but what they tried: their figure is that of their work.
HONEST_FIGURE = (
    "none", "hash", "python_clock", "libc_clock", "ahead", "at_load", "reads_the_judge", "prints_a_verdict",
    "outlives", "threads_on_rivals",
)  # fmt: skip
REFUSED = (
    "hash_rows", "addresses", "half_of_the_rows", "every_second_call", "first_calls", "last_output", "audit_replaced",
    "torch_replaced", "knows_it_is_timed", "many_calls_at_once", "late_thread", "late_process", "fewer_bits",
    "mean_of_values", "inputs_made_easy", "forged_reply", "ends_its_process",
)  # fmt: skip
ALWAYS = ("hash_rows", "python_clock", "inputs_made_easy")


@pytest.fixture(scope="module")
def built(builds: None) -> Built:
    return build(Variant("cheats", "cpu", Path(__file__).with_name("cheats.cpp"), ""))


@pytest.fixture
def kernel(
    built: Built, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, judging: None
) -> separate.Kernel:
    monkeypatch.setenv("CHEAT", request.param)
    monkeypatch.setenv("JUDGE", str(os.getpid()))
    monkeypatch.setenv("FCCTL_OUT", str(tmp_path))
    monkeypatch.setattr(bench, "REPLICATES", 2)
    monkeypatch.setattr(separate, "EMPTIES", 20)
    monkeypatch.setattr(sampling, "MAX_CALLS", 2)  # a call that seems short is not asked for so often
    monkeypatch.setattr(sampling, "LEAD_IN_S", 0.0)  # the work sleeps: no clock of a processor comes to a steady state
    separate.protect()
    return separate.Runner("cpu").kernel(built)


def figure(kernel: separate.Kernel) -> float:
    """Microseconds that the bench gives out."""
    document, _ = bench.run(kernel, SHAPES)
    return float(document["benchmarks"][0]["stats"]["p50"])


@pytest.mark.parametrize("kernel", sampled(HONEST_FIGURE, ALWAYS), indirect=True)
def test_a_kernel_gets_the_time_of_its_work(kernel: separate.Kernel) -> None:
    assert figure(kernel) >= WORK_US - separate.MAX_EMPTY_US  # so much is taken off where an empty request was slow


@pytest.mark.parametrize("kernel", sampled(REFUSED, ALWAYS), indirect=True)
def test_a_kernel_that_leaves_work_out_gets_no_figure(kernel: separate.Kernel) -> None:
    with pytest.raises(FlashcoreError):
        figure(kernel)


def state(pid: int) -> str:
    """One letter, as /proc has it; none for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def becomes(pid: int, *states: str) -> bool:
    wait_for(lambda: state(pid) in states)
    return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("kernel", ["outlives"], indirect=True)
def test_it_is_stopped_between_calls_and_nobody_is_left_in_the_end(kernel: separate.Kernel, tmp_path: Path) -> None:
    kernel(*inputs.draw(SHAPES["small"], 1, "cpu"))
    child = int((tmp_path / "child").read_text())
    assert becomes(child, "T")
    separate.end()
    assert becomes(child, "", "Z")


@pytest.mark.parametrize("kernel", ["prints_a_verdict"], indirect=True)
def test_what_it_prints_is_not_our_output(kernel: separate.Kernel, capfd: pytest.CaptureFixture[str]) -> None:
    kernel(*inputs.draw(SHAPES["small"], 1, "cpu"))
    assert "passed" not in capfd.readouterr().out


def test_a_kernel_may_end_what_its_process_was_forked_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is about to end when the next one is asked for: it refuses the connection."""
    real, refused = multiprocessing.context.ForkServerProcess._Popen, []

    def once(process: Any) -> Any:
        if not refused:
            refused.append(process)
            raise ConnectionRefusedError
        return real(process)

    monkeypatch.setattr(multiprocessing.context.ForkServerProcess, "_Popen", staticmethod(once))
    runner = separate.Runner("cpu")
    try:
        assert refused
        assert runner.go(0, 0)[0] > 0
    finally:
        runner.close()
