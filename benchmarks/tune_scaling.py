"""How much sooner a search ends on more GPUs of one machine.

    python benchmarks/tune_scaling.py [--gpus 1,2,4] [--trials 384] [--variant flagship] [--rounds 3] [--built] [-- ..]

For each count the same search from nothing, on the first so many of the GPUs that are visible: random proposals, which
do not depend on what was found, so that each count has the same trials. Each GPU comes with the same number of
processors (``--processors``, by default an even share of the machine's), as the GPUs of a cloud's machines do: whole
cores, so that a search on few GPUs has no core to itself that a search on all of them must share. A machine's own speed
changes from minute to minute: ``--rounds`` go through the counts so many times, and the median of their ratios counts.
A small search on all GPUs comes first, and does not count: it is the one that reads everything from a cold disk.
The more processors of a machine work, the slower is each: with ``--busy`` all of them do all the time, since the GPUs
that a count leaves have searches of their own. So the first says what a machine's second GPU brings, the other what
becomes of a GPU and its processors in a search on many.

With ``--built`` each count searches once more with what the last one built, so that the GPUs are measured, too, and not
only the compilers.

Exit code 1 if two GPUs do less than 1.8 times or four less than 3.4 times as many trials a minute as one, in what is
built from nothing or in what was built before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "remote"), str(ROOT / "kernels")]

from benchmarks.figures import machine  # noqa: E402
from fcctl_tune.trial import process  # noqa: E402
from fcctl_tune.workers import hosts  # noqa: E402
from flashcore import toolchain  # noqa: E402

#: So many times one GPU's trials a minute are due.
TARGETS = {2: 1.8, 4: 3.4}
COLUMNS = ("GPUs", "processors", "wall s", "compilers s", "timing span s", "timed share", "trials/min", "times", "due")
#: Trials of the search that does not count.
WARM_UP = 4
#: Of a file of a search, what only the controller reads.
CONTROLLERS = ("variants", "adopt", "env")


@dataclass(frozen=True)
class Bench:
    """What is the same for each count of GPUs. ``spec`` is the path of the JSON."""

    spec: str
    cwd: Path
    env: Mapping[str, str]
    arguments: Sequence[str]
    processors: int  # for each GPU

    def search(self, gpus: Sequence[hosts.Device], first: int, out: Path, work: Path, *more: str) -> dict[str, Any]:
        """The ``tuning`` document of a search on ``gpus``, the machine's from the ``first`` on, with ``command_s``.
        Raises SystemExit: it failed."""
        argv = [sys.executable, "-m", "fcctl_tune", "run", self.spec, "--out", str(out), "--work", str(work)]
        visible = ",".join(d.uuid for d in gpus)
        begin, end = self.processors * first, self.processors * (first + len(gpus))
        keep = by_core(os.sched_getaffinity(0))[begin:end]
        env = {**self.env, "CUDA_VISIBLE_DEVICES": visible, "FLASHCORE_CACHE": str(work / "cache")}
        started = time.monotonic()
        done = subprocess.run(
            [*argv, "--strategy", "random", "--no-final", *self.arguments, *more],
            cwd=self.cwd,
            env=env,
            stdout=sys.stderr,
            preexec_fn=lambda: os.sched_setaffinity(0, keep),
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"the search on {len(gpus)} GPUs ended with exit code {done.returncode}")
        document: dict[str, Any] = json.loads((out / "tuning.json").read_bytes())
        return {**document, "command_s": round(time.monotonic() - started, 3)}


def spec_of(path: Path, variant: str | None, trials: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec as JSON has it, and the environment that the file declares, with ``variant`` in it."""
    entry = yaml.safe_load(path.read_text(encoding="utf-8"))
    env = {name: str(value) for name, value in (entry.get("env") or {}).items()}
    if variant is not None:
        (name,) = entry["variants"]
        env[name] = variant
    return {**{key: value for key, value in entry.items() if key not in CONTROLLERS}, "trials": trials}, env


def by_core(processors: Iterable[int]) -> list[int]:
    """``processors``, those of one core beside each other, as far as the system tells (Linux)."""

    def place(processor: int) -> tuple[int, int, int]:
        folder = Path(f"/sys/devices/system/cpu/cpu{processor}/topology")
        try:
            package, core = ((folder / name).read_text() for name in ("physical_package_id", "core_id"))
        except OSError:
            return 0, processor, processor
        return int(package), int(core), processor

    return sorted(processors, key=place)


def row(gpus: int, processors: int, found: Mapping[str, Any], one: float) -> tuple[str, ...]:
    effort = found["effort"]
    share, rate = effort["gpu_timed_share"], effort["trials_per_minute"]
    span = effort["timed_s"] / (share * gpus) if share else 0.0
    due = f">= {TARGETS[gpus]:g}" if gpus in TARGETS else ""
    return (
        str(gpus), str(processors), f"{effort['wall_s']:.1f}", f"{effort['compile_s']:.0f}", f"{span:.1f}",
        f"{share or 0:.3f}", f"{rate:.2f}", f"{rate / one:.2f}", due,
    )  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(r[n]) for r in (COLUMNS, *rows)) for n in range(len(COLUMNS))]
    return "\n".join("  ".join(f"{cell:>{w}}" for cell, w in zip(r, widths, strict=True)) for r in (COLUMNS, *rows))


def measure(
    bench: Bench, counts: Sequence[int], found: Sequence[hosts.Device], rounds: int, built: bool, busy: bool
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What is measured, in words, and a document for each count: from nothing, and of trials that are ``built``. If the
    machine is to be ``busy``, it is one of as many searches as there is room for, with the means of their figures."""

    def search(count: int, what: str, folder: Path, work: str) -> dict[str, Any]:
        def one(first: int) -> dict[str, Any]:
            own = f"{what}-{count}-{first}"
            return bench.search(found[first : first + count], first, folder / own, folder / f"{work}-{first}")

        firsts = range(0, max(counts) - count + 1, count) if busy else range(1)
        with ThreadPoolExecutor(len(firsts)) as pool:
            documents = list(pool.map(one, firsts))
        efforts = [document["effort"] for document in documents]
        effort = {name: statistics.mean(e[name] or 0.0 for e in efforts) for name in efforts[0]}
        print(f"{what}, {len(efforts)} x {count} GPUs: {effort}", file=sys.stderr)
        return {**documents[0], "effort": effort}

    with tempfile.TemporaryDirectory(prefix="fcctl-scaling-") as name:
        bench.search(found[: max(counts)], 0, Path(name) / "out", Path(name) / "work", "--trials", str(WARM_UP))
    for n in range(rounds):
        with tempfile.TemporaryDirectory(prefix="fcctl-scaling-") as name:
            folder = Path(name)
            order = counts if n % 2 == 0 else counts[::-1]
            cold = {count: search(count, "cold", folder, f"work-{count}") for count in order}
            yield "from nothing", [cold[count] for count in counts]
            if built:
                work = f"work-{counts[-1]}"
                yield "all of them built before", [search(count, "built", folder, work) for count in counts]


def verdict(what: str, counts: Sequence[int], rounds: Sequence[Sequence[float]]) -> tuple[str, bool]:
    """Trials a minute of each count and round -> a line, and whether a count does less than is due of it."""
    times = {n: statistics.median(r[i] / r[0] for r in rounds) for i, n in enumerate(counts)}
    short = counts[0] == 1 and any(times[n] < due for n, due in TARGETS.items() if n in times)
    figures = ", ".join(f"{n} GPUs {times[n]:.2f} times" for n in counts[1:])
    return f"{what}, median of {len(rounds)}: {figures}", short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2,4", help="counts to compare; the first is what the others are times of")
    parser.add_argument("--trials", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=1, help="through all counts; there and back")
    parser.add_argument("--spec", type=Path, default=ROOT / "tune" / "flashcore.yaml", help="YAML or JSON")
    parser.add_argument("--variant", help="one of the names under the file's `variants`")
    parser.add_argument("--cwd", type=Path, default=ROOT, help="where its commands run")
    parser.add_argument("--processors", type=int, help="for each GPU; default: an even share")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--busy", action="store_true", help="fewer GPUs are one of several searches at once")
    kind.add_argument("--built", action="store_true", help="and once more with everything built")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the searches' documents there")
    parser.add_argument("more", nargs="*", help="further arguments of fcctl_tune run, after --")
    options = parser.parse_args()
    counts = [int(count) for count in options.gpus.split(",")]
    found = hosts.alike(hosts.devices())
    if not found[0].is_gpu or len(found) < max(counts):
        parser.error(f"there are {len([d for d in found if d.is_gpu])} GPUs of one model here, not {max(counts)}")
    spec, env = spec_of(options.spec, options.variant, options.trials)
    path = os.pathsep.join([str(ROOT / "remote"), env.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")])
    arch = toolchain.gpu_arch() or toolchain.TARGET_ARCH  # as a host program tells its steps
    whole = {"FCCTL_PYTHON": sys.executable, "FCCTL_CUDA_ARCH": arch, **os.environ, **env, "PYTHONPATH": path}
    whole.pop("FCCTL_OUT", None)
    share = options.processors or max(1, process.processors() // max(counts))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(spec, file)
        file.flush()
        bench = Bench(file.name, options.cwd, whole, options.more, share)
        tables: dict[str, list[list[dict[str, Any]]]] = {}
        print(f"{found[0].model}; {machine()}; {spec['tune']} {options.variant or ''}, {options.trials} trials")
        for what, documents in measure(bench, counts, found, options.rounds, options.built, options.busy):
            tables.setdefault(what, []).append(documents)
            one = documents[0]["effort"]["trials_per_minute"]
            rows = [row(n, share * n, d, one) for n, d in zip(counts, documents, strict=True)]
            print(f"{what}:\n{table(rows)}", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps({"gpu": found[0].model, "counts": counts, "searches": tables}))
    short = False
    for what, rounds in tables.items():
        line, is_short = verdict(what, counts, [[d["effort"]["trials_per_minute"] for d in r] for r in rounds])
        print(line)
        short |= is_short
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
