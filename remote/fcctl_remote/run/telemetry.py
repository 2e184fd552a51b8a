"""``telemetry RUN``: one sample of the machine per second, by one long-running nvidia-smi, else /proc, else the load
average; and the watchdog of the supervisor. It ends with the run."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time

from fcctl_remote.base import files
from fcctl_remote.base.hostfacts import read_text, which
from fcctl_remote.base.layout import Layout, RunLayout
from fcctl_remote.base.text import TerminalMirror
from fcctl_remote.probe.gpu import number, throttle_reasons
from fcctl_remote.record import Any
from fcctl_remote.run import lost
from fcctl_remote.run import state as runs

SAMPLE_S = 1.0
#: How soon after the run's end the window closes, seconds.
LOOK_S = 0.25
RESTARTS = 5
#: The GPUs' lines of one second come together. While their number is not known, so much silence ends them, seconds.
LATE_S = 0.6

#: Name in a sample -> nvidia-smi's name of the field.
GPU_FIELDS: tuple[tuple[str, str], ...] = (
    ("index", "index"), ("name", "name"), ("util_pct", "utilization.gpu"), ("mem_util_pct", "utilization.memory"),
    ("mem_used_mb", "memory.used"), ("mem_total_mb", "memory.total"), ("sm_mhz", "clocks.sm"),
    ("mem_mhz", "clocks.mem"), ("power_w", "power.draw"), ("temp_c", "temperature.gpu"),
)  # fmt: skip
#: Drivers since 535 call throttle reasons event reasons.
THROTTLE_FIELDS = ("clocks_throttle_reasons.active", "clocks_event_reasons.active")


def telemetry(layout: Layout, run_id: str) -> int:
    """Measure until the run has an outcome, writing that outcome ourselves if the supervisor dies."""
    run = layout.run(run_id)
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(ignored, lambda *_: None)  # tmux dying is no reason to stop watching
    mirror = TerminalMirror(1)
    source = new_source()
    began = time.monotonic()
    try:
        while not _run_is_over(run, began):
            sample = source.next(LOOK_S)
            if sample is None:
                continue
            if not _keep(run, sample):
                break
            mirror.say(describe(sample))
    finally:
        source.close()
    plan, ended = runs.load_plan(run), runs.summary(run)
    if plan is not None and plan.idle_stop_s is not None and ended is not None and ended.status == "lost":
        from fcctl_remote.run.shutdown_timer import stop_soon

        stop_soon(layout, run_id, plan.idle_stop_s)  # as its supervisor does that lives until the end
    return 0


def _run_is_over(run: RunLayout, began: float) -> bool:
    if runs.is_finished(run) or not os.path.isdir(run.folder):
        return True
    try:
        if runs.has_begun(run):
            return lost.write_lost_outcome(run)
        # A supervisor that never came up, from its first line of Python on.
        return time.monotonic() - began > lost.START_PATIENCE_S and lost.settle_unstarted(run)
    except files.DiskFull:
        return False  # there may be room later, and nobody else may be here then


def _keep(run: RunLayout, sample: dict[str, Any]) -> bool:
    """Append the sample; a full disk loses it, a folder that is gone ends us."""
    try:
        files.append_line(run.telemetry, files.to_json(sample))
    except FileNotFoundError:
        return False
    except OSError as error:
        if not files.is_disk_full(error):
            raise
    return True


def describe(sample: dict[str, Any]) -> str:
    """One line for a person."""
    clock = time.strftime("%H:%M:%S", time.localtime(sample["time"]))
    if "gpus" not in sample:
        shown = "cpu %5.1f %%" % sample["cpu_pct"] if "cpu_pct" in sample else "load %.2f" % sample.get("load1", 0.0)
        if "mem_used_mb" in sample:
            shown += "   memory %d of %d MB" % (sample["mem_used_mb"], sample["mem_total_mb"])
        return "%s   %s" % (clock, shown)
    line = "gpu%s %s %%   %s MHz   %s W   %s C   %s of %s MB   throttle %s"
    keys = ("index", "util_pct", "sm_mhz", "power_w", "temp_c", "mem_used_mb", "mem_total_mb")
    parts = [
        line % (*(_shown(gpu.get(key)) for key in keys), ",".join(gpu.get("throttle") or []) or "-")
        for gpu in sample["gpus"]
    ]
    return "%s   %s" % (clock, "  |  ".join(parts))


def _shown(value: Any) -> str:
    return "?" if value is None else "%g" % value if isinstance(value, float) else str(value)


def new_source() -> Machine | NvidiaSmi:
    program = which("nvidia-smi")
    return NvidiaSmi(program) if program is not None else Machine()


class Machine:
    """CPU and memory from /proc; elsewhere the load average."""

    def __init__(self) -> None:
        self._due = time.monotonic()
        self._busy = _cpu_times()

    def next(self, timeout: float) -> dict[str, Any] | None:
        """Wait at most ``timeout`` seconds; None if no sample is due."""
        wait_s = self._due - time.monotonic()
        if wait_s > timeout:
            time.sleep(timeout)
            return None
        time.sleep(max(0.0, wait_s))
        self._due = max(self._due + SAMPLE_S, time.monotonic())
        return self.sample()

    def close(self) -> None:
        """Nothing was started."""

    def sample(self) -> dict[str, Any]:
        sample: dict[str, Any] = {"time": round(time.time(), 3), "load1": round(os.getloadavg()[0], 2)}
        times, before = _cpu_times(), self._busy
        if times is not None and before is not None and times[1] > before[1]:
            busy = (times[0] - before[0]) / (times[1] - before[1])  # the kernel may take idle ticks back
            sample["cpu_pct"] = round(100.0 * min(1.0, max(0.0, busy)), 1)
        self._busy = times
        memory = _memory_mb()
        if memory is not None:
            sample["mem_used_mb"], sample["mem_total_mb"] = memory
        return sample


def _cpu_times() -> tuple[int, int] | None:
    """Busy and all clock ticks since boot, over all cores; None where there is no /proc."""
    ticks = [int(word) for word in read_text("/proc/stat", 200).partition("\n")[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4], sum(ticks)) if len(ticks) == 8 else None


def _memory_mb() -> tuple[int, int] | None:
    facts = dict(re.findall(r"^(MemTotal|MemAvailable): +([0-9]+)", read_text("/proc/meminfo", 512), re.MULTILINE))
    if len(facts) < 2:
        return None
    total, free = int(facts["MemTotal"]), int(facts["MemAvailable"])
    return (total - free) // 1024, total // 1024


class NvidiaSmi:
    """One nvidia-smi that prints a line per GPU every second. Falls back to :class:`Machine` if it will not."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._throttle = 0  # which name of the field this driver knows
        self._failures = 0
        self._buffer = b""
        self._gpus: list[dict[str, Any]] = []
        self._ready: list[dict[str, Any]] = []  # samples of lines that were read at once: we were not scheduled
        self._count = 0  # of GPUs, as far as they have spoken in whole rounds
        self._heard = 0.0
        self._machine = Machine()
        self._process: Any | None = None
        self._again_at = 0.0
        self._start()

    def _start(self) -> None:
        import subprocess

        fields = [field for _, field in GPU_FIELDS] + [THROTTLE_FIELDS[self._throttle]]
        argv = [self._program, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits", "-l", "1"]
        self._buffer, self._gpus = b"", []
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )

    def next(self, timeout: float) -> dict[str, Any] | None:
        if self._ready:
            return self._ready.pop(0)
        if self._process is None:
            if self._failures >= RESTARTS or time.monotonic() < self._again_at:
                return self._machine.next(timeout)
            self._start()
            return None
        out = self._process.stdout.fileno()
        ready, _, _ = select.select([out], [], [], timeout)
        if not ready:
            return self._sample() if self._is_whole() else None
        data = os.read(out, 65536)
        if not data:
            self._ended()
            return None
        self._buffer += data
        self._heard = time.monotonic()
        self._ready = self._lines()
        return self._ready.pop(0) if self._ready else None

    def _is_whole(self) -> bool:
        """Whether nobody is late, on a machine that may be busy. One that is gone is not missed in the next second."""
        if not self._gpus or not self._count:
            return bool(self._gpus) and time.monotonic() - self._heard > LATE_S
        return bool(self._gpus[-1]["index"] + 1 >= self._count)

    def _lines(self) -> list[dict[str, Any]]:
        """Take whole lines; a sample is whole when its last GPU has spoken, which the next line or silence tells."""
        samples = []
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            gpu = parse_gpu(line.decode("utf-8", "replace"))
            if gpu is None:
                if b"not a valid field" in line.lower():
                    self._throttle = (self._throttle + 1) % len(THROTTLE_FIELDS)
                continue
            if self._gpus and gpu["index"] <= self._gpus[-1]["index"]:
                samples.append(self._sample())
            self._gpus.append(gpu)
        return samples

    def _sample(self) -> dict[str, Any]:
        sample = {**self._machine.sample(), "gpus": self._gpus}
        self._count = max(self._count, self._gpus[-1]["index"] + 1)
        self._gpus = []
        self._failures = 0
        return sample

    def _ended(self) -> None:
        self.close()
        self._failures += 1
        self._again_at = time.monotonic() + (0 if self._failures == 1 else 5)

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None


def parse_gpu(line: str) -> dict[str, Any] | None:
    """One CSV line of nvidia-smi; values a GPU does not report (``[N/A]``) are null. None if it is no such line."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(GPU_FIELDS) + 1 or not words[0].isdigit():
        return None
    gpu: dict[str, Any] = {"index": int(words[0]), "name": words[1]}
    for position, (name, _) in enumerate(GPU_FIELDS[2:], start=2):
        gpu[name] = number(words[position])
    gpu["throttle"] = throttle_reasons(words[-1])
    return gpu
