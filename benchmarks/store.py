"""Start-up, and the store with a hundred thousand runs: what `results ls` and its kin cost.

    python benchmarks/store.py [--runs 100000]

Times are medians over whole processes, interpreter start and imports included. The limits are on processor time, which
another load hardly stretches; the wall clock beside it is what a person waits for.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "remote")]

from benchmarks.figures import Figure, machine, report  # noqa: E402
from fcctl_remote import wire  # noqa: E402
from orchestrator.base import run_id as run_ids  # noqa: E402
from orchestrator.base.clock import iso  # noqa: E402
from orchestrator.machines.targets import LocalTarget  # noqa: E402
from orchestrator.results.records import CostRecord, DocumentRecord, GateRecord, RunRecord, SourceRecord, StepRecord  # noqa: E402
from orchestrator.runs.job.saved_plan import SavedPlan  # noqa: E402

JOBS = ("preflight", "build", "test", "bench", "phase0", "phase1")
TARGETS = ("local", "l4", "box")
STEPS = ("preflight", "build", "ptxas", "test", "bench", "profile")


@dataclass(frozen=True)
class Case:
    """``program`` runs after :data:`PRELUDE`; ``arguments`` are those of a whole ``fcctl`` command instead."""

    name: str
    limit_s: float
    program: str = ""
    arguments: tuple[str, ...] = ()


HISTORY = ("results", "history", "--benchmark", "mission")
REINDEX_MS = 2.0  # a run
CASES = (
    Case("fcctl --version", 0.15, arguments=("--version",)),
    Case("fcctl jobs ls", 0.3, arguments=("jobs", "ls")),
    Case("fcctl results ls", 0.3, arguments=("results", "ls")),
    Case("fcctl results ls --job bench", 0.3, arguments=("results", "ls", "--job", "bench")),
    Case("fcctl ps --offline", 0.3, arguments=("ps", "--offline")),
    Case("fcctl results ls --limit 10000", 2.0, arguments=("results", "ls", "--limit", "10000")),
    Case("fcctl results history, one variant", 0.5, arguments=(*HISTORY, "--variant", "fused")),
    Case("fcctl results history, all variants", 0.5, arguments=HISTORY),
    Case("fcctl results history (names)", 0.3, arguments=("results", "history")),
    Case("fcctl results compare, 3 benchmarks", 1.5, arguments=("results", "compare", "last:bench", "last:bench")),
    Case("store: newest 20", 0.3, "assert len(store.rows(limit=20)) == 20"),
    Case("store: active runs", 0.3, "assert all([store.plan_of(i) for i in store.active()])"),
    Case("store: resolve a suffix", 0.3, "assert store.resolve(store.resolve('last')[-6:])"),
    Case("store: newest, runs/ has changed", 0.5, "(store.root / 'runs/.x').touch(); assert store.rows(limit=1)"),
)
PRELUDE = """
import sys, time
from pathlib import Path
from orchestrator.results.store.store import FileStore
class Clock:
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
store = FileStore(Path(sys.argv[1]), Clock())
"""


def make_runs(root: Path, n: int, active: int = 3, seed: int = 0) -> list[str]:
    """Fill the results folder ``root`` with ``n`` complete runs of six steps each, and some active ones."""
    rng = random.Random(seed)
    now = time.time()
    made = []
    (root / "runs").mkdir(parents=True, exist_ok=True)
    for i in range(n):
        record = make_record(rng, now - 300.0 * (n - i))
        folder = root / "runs" / record.run_id
        folder.mkdir()
        (folder / "run.json").write_text(record.model_dump_json())
        if record.job == "bench":
            out = folder / "steps" / "bench" / "out"
            out.mkdir(parents=True)
            (out / "benchmark.json").write_text(json.dumps(make_benchmark(rng, 1.0 - 0.3 * i / n)))
        made.append(record.run_id)
    for i in range(active):
        run_id = run_ids.new("phase1", "local", now - i, f"{i:06x}")
        plan = wire.RunPlan(run_id, "phase1", "local", "demo", "ab" * 32, steps=[], created=now - i)
        saved = SavedPlan(plan=plan, target=LocalTarget(name="local"), source=SourceRecord(tree_sha256="ab" * 32))
        folder = root / "active" / run_id
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(saved.to_json()))
        (folder / "journal.jsonl").touch()
    return made


def make_record(rng: random.Random, created: float) -> RunRecord:
    """A run as phase1 leaves it."""
    job, target, status = rng.choice(JOBS), rng.choice(TARGETS), rng.choice(("passed",) * 4 + ("failed",))
    steps = [_step(name, created + 60 * i, rng, job) for i, name in enumerate(STEPS)]
    return RunRecord(
        run_id=run_ids.new(job, target, created, f"{rng.getrandbits(24):06x}"),
        job=job,
        title=f"{job} of the attention kernels",
        target=target,
        status=status,
        exit_code=0 if status == "passed" else 100,
        created=iso(created) or "",
        started=iso(created + 2.5),
        finished=iso(created + 62.75 + rng.random() * 900) or "",
        source=SourceRecord(tree_sha256=f"{rng.getrandbits(256):064x}", git_commit=f"{rng.getrandbits(160):040x}"),
        host={"hostname": "gpu-host", "gpu": {"name": "NVIDIA L4", "driver": "550.54.15", "arch": "sm_89"}, "cpus": 4},
        steps=steps,
        cost=CostRecord(usd=round(rng.random(), 4), usd_per_hour=0.75, billed_s=600),
    )


def make_benchmark(rng: random.Random, factor: float) -> dict[str, Any]:
    """Three shapes of a kernel, each beside the reference, with their samples."""
    entries = []
    for i, case in enumerate(("mission", "s64", "s2048")):
        for name, variant, speed in ((case, "fused", factor), (f"{case}/sdpa", "sdpa", 1.2)):
            samples = [round(10 * (i + 1) * speed * rng.uniform(0.99, 1.03), 3) for _ in range(112)]
            stats = {"n": 112, "p50": statistics.median(samples), "min": min(samples), "max": max(samples)}
            entry = {"name": name, "variant": variant, "mode": "hot", "unit": "us", "stats": stats, "samples": samples}
            entries.append({**entry, "shape": {"B": 1, "H": 8, "S": 512, "D": 64}})
    return {"kind": "benchmark", "schema_version": 1, "method_version": 3, "device": "NVIDIA L4", "benchmarks": entries}


def _step(name: str, started: float, rng: random.Random, job: str) -> StepRecord:
    gates = [
        GateRecord(expr="correctness.summary.passed == 20", value=20, verdict="pass"),
        GateRecord(
            expr="max(build.kernels[*].registers) <= 120",
            value=rng.randrange(40, 120),
            verdict="pass",
            hint="fewer registers: a smaller tile, or __launch_bounds__",
        ),
    ]
    return StepRecord(
        id=name,
        status="passed",
        exit_code=0,
        started=iso(started),
        finished=iso(started + 55),
        duration_s=55.0,
        attempts=1,
        activity=name,
        log=f"steps/{name}/log.txt",
        gates=gates,
        documents=[_document(name, job)],
    )


def _document(step: str, job: str) -> DocumentRecord:
    kind = "benchmark" if (step, job) == ("bench", "bench") else "metrics"
    return DocumentRecord(kind=kind, path=f"steps/{step}/out/{kind}.json")


def measure(case: Case, workspace: Path, times: int) -> list[tuple[float, float]]:
    """(wall-clock, processor) seconds of each process."""
    command = [sys.executable, "-m", "orchestrator.cli.entry", *case.arguments]
    if case.program:
        command = [sys.executable, "-c", PRELUDE + case.program, str(workspace / "results")]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'remote'}", "PATH": "/usr/bin:/bin", "HOME": str(workspace)}
    taken = []
    for _ in range(times):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, env=environment, cwd=workspace, stdout=subprocess.DEVNULL)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append((wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return taken


def measure_all(runs: int = 100_000, times: int = 7) -> list[Figure]:
    """Processor and wall-clock seconds of each case, and beside them what the first listing took."""
    found = []
    with tempfile.TemporaryDirectory(prefix="fcctl-store-") as folder:
        workspace = Path(folder)
        (workspace / "fcctl.toml").write_text('[project]\nname = "demo"\n[targets.local]\nkind = "local"\n')
        make_runs(workspace / "results", runs)
        first = measure(Case("", 0, arguments=("results", "ls")), workspace, 1)[0][0]
        for case in CASES:
            taken = measure(case, workspace, times)
            found.append(Figure(case.name, statistics.median(cpu for _, cpu in taken), "s", case.limit_s))
            found.append(Figure(f"{case.name}, wall clock", statistics.median(wall for wall, _ in taken), "s"))
        whole = measure(Case("", 0, arguments=("results", "reindex")), workspace, 1)[0][1]
        tenth = _reindex_tenth(workspace, runs)
    per_run = Figure(f"fcctl results reindex of {runs} runs, per run", 1000 * whole / runs, "ms", REINDEX_MS)
    linear = Figure("reindex: time per run, all over a tenth of them", whole / runs / tenth, "x", 1.5)
    return [*found, per_run, linear, Figure(f"first listing of {runs} runs, which builds the index", first, "s")]


def _reindex_tenth(workspace: Path, runs: int) -> float:
    """Processor seconds a run, for a tenth of the runs."""
    with tempfile.TemporaryDirectory(prefix="fcctl-store-") as folder:
        small = Path(folder)
        (small / "fcctl.toml").write_text((workspace / "fcctl.toml").read_text())
        make_runs(small / "results", runs // 10)
        return measure(Case("", 0, arguments=("results", "reindex")), small, 1)[0][1] / (runs // 10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    print(f"{machine()}; {options.runs} runs")
    return report(measure_all(options.runs, options.times))


if __name__ == "__main__":
    sys.exit(main())
