"""When a run is ended for its idle GPU, and when nobody can know that it is idle; its place in the machine's queue."""

from __future__ import annotations

import fcntl
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fcctl_remote import wire
from fcctl_remote.base import processes
from fcctl_remote.base.layout import Layout
from fcctl_remote.run import control
from fcctl_remote.run.control import GpuIdleWatch, HostLock
from fcctl_remote.run.process import become_subreaper

RULE = wire.GpuIdle(below_pct=5.0, seconds=600.0, steps=["train"])


class Machine:
    """A clock, the file that telemetry writes, and the watch that reads both."""

    def __init__(self, folder: Path, rule: wire.GpuIdle | None = RULE) -> None:
        self.file = folder / "telemetry.jsonl"
        self.now = 1000.0
        self.warnings: list[str] = []
        self.watch = GpuIdleWatch(str(self.file), rule, self.warnings.append, lambda: self.now)

    def seconds(self, count: int, *utilisations: float | None) -> str | None:
        """So many seconds with a sample each of these GPUs, or with a sample without any; the last verdict."""
        verdict = None
        for _ in range(count):
            self.now += 1.0
            sample: dict[str, object] = {"time": self.now, "load1": 0.1}
            if utilisations:
                sample["gpus"] = [{"index": n, "util_pct": used} for n, used in enumerate(utilisations)]
            self.write(json.dumps(sample) + "\n")
            verdict = self.watch.verdict()
            if verdict is not None:
                break
        return verdict

    def write(self, text: str) -> None:
        with self.file.open("a") as stream:
            stream.write(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_run_ends_after_the_whole_time_and_not_before(machine: Machine) -> None:
    machine.watch.begin("train")
    assert machine.seconds(600, 4.9) is None, "600 samples are 599 seconds"
    assert machine.seconds(1, 4.9) == "GPU utilisation below 5 % for 10 minutes in step 'train'"
    assert not machine.warnings


@pytest.mark.parametrize("used", [(5.0,), (0.0, 100.0)])
def test_one_busy_sample_of_one_gpu_begins_the_time_anew(machine: Machine, used: Sequence[float]) -> None:
    machine.watch.begin("train")
    assert machine.seconds(590, *[0.0] * len(used)) is None
    assert machine.seconds(1, *used) is None
    assert machine.seconds(600, *[0.0] * len(used)) is None
    assert machine.seconds(1, *[0.0] * len(used)) is not None


def test_only_the_steps_of_a_rule_are_watched(machine: Machine, tmp_path: Path) -> None:
    without_rule = Machine(tmp_path, None)
    without_rule.watch.begin("train")
    assert (without_rule.seconds(2000, 0.0), without_rule.warnings) == (None, [])
    machine.watch.begin("build")
    assert machine.seconds(2000, 0.0) is None
    machine.watch.end()
    machine.watch.begin("train")
    assert machine.seconds(600, 0.0) is None, "what the GPU did before the step does not count"
    assert machine.seconds(1, 0.0) is not None
    machine.watch.end()
    assert machine.seconds(2000, 0.0) is None


@pytest.mark.parametrize("used", [(), (None,), (0.0, None)])
def test_where_a_gpu_is_not_measured_no_run_is_ended_and_that_is_said_once(
    machine: Machine, used: Sequence[float | None]
) -> None:
    machine.watch.begin("train")
    assert machine.seconds(2000, *used) is None
    (warning,) = machine.warnings
    assert "does not report GPU utilisation" in warning
    assert "'train'" in warning


def test_a_gap_in_the_samples_is_no_idle_time(machine: Machine) -> None:
    """What the GPU did while nobody measured is not known."""
    machine.watch.begin("train")
    assert machine.seconds(500, 0.0) is None
    machine.now += control.SILENT_S + 1
    assert machine.watch.verdict() is None
    assert machine.seconds(600, 0.0) is None
    assert machine.seconds(1, 0.0) is not None


def test_samples_that_come_late_all_count(machine: Machine) -> None:
    """The host program was stopped for a while; the telemetry went on, and saw the GPU at work."""
    machine.watch.begin("train")
    assert machine.seconds(590, 0.0) is None
    for used in (0, 80, 0):
        machine.write(json.dumps({"time": 0, "gpus": [{"index": 0, "util_pct": used}]}) + "\n")
    machine.now += 20
    assert machine.watch.verdict() is None


def test_lines_that_are_no_samples_are_passed_over(machine: Machine) -> None:
    machine.watch.begin("train")
    machine.write('nonsense\n[1]\n{"gpus": 3}\n{"gpus": [{"util_pct": "NaN?"}]}\n{"gpus": [7]}\n')
    assert machine.seconds(601, 0.0) is not None
    assert not machine.warnings


def test_a_file_without_line_ends_is_read_in_bounded_pieces(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MOST_BYTES", 1000)
    machine.watch.begin("train")
    machine.write("x" * 5000)
    assert machine.seconds(10, 0.0) is None
    machine.write("\n")
    assert machine.seconds(620, 0.0) is not None


def _run(number: int) -> str:
    return f"20261121t081530z-job-box-{number:06x}"


def _join(layout: Layout, number: int, mode: str = "exclusive") -> HostLock:
    lock = HostLock(layout, _run(number), mode)
    lock.join()
    return lock


def test_who_looks_is_not_taken_for_the_dead_s_ticket_s_owner(layout: Layout) -> None:
    """Two runs that wait look at once whether a third one lives, which does not."""
    ticket = Path(layout.tickets, f"000000000001.x.{_run(1)}")
    ticket.touch()
    waits = _join(layout, 2)
    with ticket.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert waits.behind() is None
    waits.leave()
    assert not ticket.exists()


def test_the_tickets_of_the_dead_are_dropped(layout: Layout) -> None:
    Path(layout.tickets, f"000000000001.x.{_run(1)}").touch()  # nobody holds its lock
    Path(layout.tickets, "README").touch()
    alive = _join(layout, 2)
    assert alive.behind() is None
    assert sorted(path.name for path in Path(layout.tickets).iterdir()) == [f"000000000002.x.{_run(2)}", "README"]
    alive.leave()


def test_a_process_that_is_just_becoming_another_program_is_not_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment, by which it is known, cannot be read for an instant."""
    looks: list[set[int]] = [{7, 8}, set(), {8}, set(), set()]
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(processes, "family", lambda *_: looks.pop(0))
    monkeypatch.setattr(processes, "send", lambda pid, number: killed.append((pid, number)))
    assert processes.kill_family(240.0, marker=b"FCCTL_RUN_ID=x") == set()
    assert sorted(killed) == [(7, signal.SIGKILL), (8, signal.SIGKILL), (8, signal.SIGKILL)]
    assert looks == []


def test_who_survives_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "family", lambda *_: {7})
    monkeypatch.setattr(processes, "send", lambda *_: None)
    assert processes.kill_family(0.0, session=7) == {7}


def test_a_python_without_ctypes_carries_out_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such is one that was built where libffi was not installed."""
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert become_subreaper() is False
