"""The host program's cost: memory, log following, telemetry, and how long a trivial run takes.

Run with ``python benchmarks/host_program.py``. Everything is real: the archive, tmux, bash, in a home of its own.
Figures are medians of several runs; limits are those the project promises.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent.parent / "remote")]

from benchmarks.figures import Figure, machine, report  # noqa: E402
from fcctl_remote import wire  # noqa: E402
from tests.integration.host_program.agent_client import Agent, Host, host_python, step  # noqa: E402

LOG_BYTES = 512 * 1024 * 1024
TELEMETRY_S = 10.0


def peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise ValueError("no VmHWM")


def cpu_seconds(pid: int) -> float:
    """Time on a CPU, from the scheduler's own count: the clock ticks of /proc/PID/stat are too coarse for this."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def agent_start(host: Host, rounds: int = 15) -> float:
    """Milliseconds from starting the archive to its answered hello."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        agent = Agent(host, host.env)
        agent.call("hello")
        times.append((time.perf_counter() - began) * 1000)
        agent.close()
    return statistics.median(times)


def trivial_run(agent: Agent, rounds: int = 15) -> float:
    """Milliseconds from the submit call to the watched outcome."""
    times = []
    for _ in range(rounds):
        run_id = agent.submit(step("warm", "true"))
        agent.outcome(run_id)
        time.sleep(0.4)  # the previous run's telemetry leaves
        made = agent.snapshot(run_id[:-6] + os.urandom(3).hex(), {"a": b"1"})
        plan = wire.RunPlan(Path(made.path).parent.name, "job", "box", "ws", made.tree_sha256, [step("a", "true")])
        began = time.perf_counter()
        agent.call("submit", {"plan": wire.encode(plan)})
        agent.follow(plan.run_id)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def big_log(host: Host, agent: Agent) -> tuple[float, float, float]:
    """MB/s of following a log that is there, and the peak memory of agent and supervisor in MB."""
    script = f"head -c {LOG_BYTES} /dev/zero | tr '\\0' 'x'; touch ../written; while [ ! -e ../go ]; do sleep 0.1; done"
    run_id = agent.submit(step("flood", script))
    folder = host.run_dir(run_id)
    while not (folder / "written").exists():
        time.sleep(0.1)
    supervisor = peak_mb(int((folder / "supervisor.lock").read_text()))
    began = time.perf_counter()
    offset = 0
    while offset < LOG_BYTES:
        _, blob = agent.call_blob("watch", wire.encode(wire.WatchRequest(run_id, 1 << 30, "flood", offset)))
        offset += len(blob)
    seconds = time.perf_counter() - began
    (folder / "go").touch()
    agent.outcome(run_id)
    return LOG_BYTES / 1e6 / seconds, peak_mb(agent.process.pid), supervisor


def telemetry_share(host: Host, agent: Agent) -> tuple[float, float]:
    """Per cent of one core that the telemetry and the supervisor of an idle run take."""
    run_id = agent.submit(step("idle", "sleep 300"))
    agent.wait_for(run_id, "step_started")
    pids = {}
    for pid in host.processes(f"TMUX_TMPDIR={host.tmux_dir}"):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        for name in (b"telemetry", b"supervise"):
            if name in words:
                pids[name] = pid
    time.sleep(1)
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    began = time.monotonic()
    time.sleep(TELEMETRY_S)
    elapsed = time.monotonic() - began
    shares = {name: 100 * (cpu_seconds(pid) - before[name]) / elapsed for name, pid in pids.items()}
    agent.call("cancel", {"run_id": run_id, "reason": "measured", "grace_s": 0})
    agent.outcome(run_id)
    return shares[b"telemetry"], shares[b"supervise"]


def measure_all() -> list[Figure]:
    """What the host program costs on this machine, as a host."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "b"
        base.mkdir()
        host = Host(base)
        try:
            agent = host.agent()
            agent.call("hello")
            agent.outcome(agent.submit(step("first", "true")))  # finds out about the machine once
            start, run = agent_start(host), trivial_run(agent)
            speed, agent_mb, supervisor_mb = big_log(host, agent)
            telemetry, supervisor = telemetry_share(host, agent)
        finally:
            host.close()
    return [
        Figure("host program: agent, start to hello", start, "ms", 80),
        Figure("host program: trivial run, submit to outcome", run, "ms", 200),
        Figure(f"host program: following a log of {LOG_BYTES // 1024**2} MiB", speed, "MB/s", 50, at_least=True),
        Figure("host program: agent, peak memory", agent_mb, "MB", 30),
        Figure("host program: supervisor, peak memory", supervisor_mb, "MB", 30),
        Figure("host program: telemetry, share of a core", telemetry, "%", 0.5),
        Figure("host program: supervisor, share of a core", supervisor, "%", 0.5),
    ]


if __name__ == "__main__":
    version = subprocess.run([host_python(), "-V"], check=True, capture_output=True, text=True).stdout.strip()
    print(f"{machine()}; host program on {version}")
    sys.exit(report(measure_all()))
