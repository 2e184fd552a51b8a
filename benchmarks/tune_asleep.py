"""How much sooner a search ends on more GPUs, where neither compilers nor GPUs slow each other down.

    python benchmarks/tune_asleep.py [--gpus 1,2,4] [--trials 384] [--slow 5] [--strategy random] [--hosts]

The true search with its proposals and its processes, Dask's among them, on any machine with two cores: what compiles
and what times only sleeps, as long as FlashCore's flagship takes on an H200 with 16 processors (:data:`HERE`),
``--slow`` times over, since what the search itself does shares these cores. ``tune_scaling.py`` measures GPUs and
processors as they are; this one says what of a ratio is the search's. Exit code 1 as there. About three minutes.

With ``--hosts`` each GPU is on a host of its own, which is a folder here: one leads, the others join it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "remote"), str(ROOT / "kernels")]

from benchmarks.figures import machine  # noqa: E402
from benchmarks.tune_scaling import row, table, verdict  # noqa: E402

#: For each GPU.
PROCESSORS = 16
#: Seconds. Chosen, so that a trial can be timed about as late as was measured (1.4 to 2.3 s): what is left of the
#: default's build, and until PyTorch is there and a GPU met, when the search begins; and the spread of a build's
#: logarithm. As measured on 2026-11-22 with nvcc 13.0 and torch 2.11, rounded: a trial's build on average, a check, a
#: timing besides its repeats, and each of these.
HERE = {
    "default": 1.5, "load": 1.5, "meet": 0.4, "build": 0.73, "spread": 0.15,
    "check": 0.008, "besides": 0.006, "repeat": 0.0005,
}  # fmt: skip
#: Of so many configurations one breaks a gate.
WASTED = 6
#: Parameters that change nothing, for the search to think about: FlashCore's flagship has ten.
IDLE = {"A": [0, 1, 2, 3], "B": [0, 1, 2, 3], "C": [0, 1, 2], "D": [0, 1, 2], "E": [0, 1], "F": [0, 1]}

SERVE = """
import json, random, sys, time
took = json.loads(sys.argv[1])
time.sleep(took["load"])
for line in sys.stdin:
    request = json.loads(line)
    reply = {"id": request["id"], "ok": True}
    if request["op"] == "warm":
        time.sleep(took["meet"])
    elif request["op"] == "check":
        time.sleep(took["check"])
    elif request["op"] == "bench":
        own, repeats = 32 * request["params"]["HIGH"] + request["params"]["LOW"], request["repeats"]
        time.sleep(took["besides"] + took["repeat"] * repeats)
        value = 1.0 if own == 0 else 1.0 + random.Random(own).random()
        reply["samples"] = [value * (1 + random.random() / 1000) for _ in range(repeats)]
    print(json.dumps(reply), flush=True)
"""
BUILD = f"""
import json, math, os, random, sys, time
took, own = json.loads(sys.argv[1]), 32 * int(os.environ["HIGH"]) + int(os.environ["LOW"])
time.sleep(took["default"] if own == 0 else took["build"] * math.exp(random.Random(own).gauss(0, took["spread"])))
sys.exit(own % {WASTED} == {WASTED} - 1)
"""
SMI = "#!/bin/sh\n" + "\n".join(f"echo 'GPU {n}: GPU asleep (UUID: GPU-{n}asleep)'" for n in range(16)) + "\n"
SEARCH = """
import sys
from fcctl_tune.trial import process
process.processors = lambda: {processors}
from fcctl_tune.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def spec(trials: int, slow: float) -> dict[str, Any]:
    took = json.dumps({name: value if name == "spread" else value * slow for name, value in HERE.items()})

    def command(text: str) -> str:
        return "exec " + shlex.join([sys.executable, "-S", "-c", text, took])

    return {
        "tune": "asleep", "parameters": {"HIGH": list(range(math.ceil(trials / 32))), "LOW": list(range(32)), **IDLE},
        "build": command(BUILD), "serve": command(SERVE), "metric": {"unit": "us"}, "cases": ["a"], "trials": trials,
        "timeouts": {"build": 120, "check": 60, "bench": 60},
    }  # fmt: skip


def start(folder: Path, gpus: Sequence[int], *arguments: str) -> subprocess.Popen[bytes]:
    """``fcctl_tune`` in ``folder``, on a machine of these GPUs."""
    folder.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(folder.parent / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "remote"),
        "CUDA_VISIBLE_DEVICES": ",".join(f"GPU-{n}asleep" for n in gpus),
    }
    python = [sys.executable, "-c", SEARCH.format(processors=PROCESSORS * len(gpus))]
    return subprocess.Popen([*python, *arguments], cwd=folder, env=env, stdout=sys.stderr)


def search(folder: Path, gpus: int, strategy: str, hosts: bool) -> dict[str, Any]:
    """The ``tuning`` document. Raises: SystemExit: it failed."""
    spec, out = str(folder / "spec.json"), folder / f"{gpus}-out"
    offer, told = folder / f"{gpus}-offer.json", folder / f"{gpus}-join.json"
    run = ["run", spec, "--out", str(out), "--strategy", strategy, "--no-final"]
    if not hosts:
        lead, members = start(folder / str(gpus), range(gpus), *run), []
    else:
        lead = start(folder / f"{gpus}-0", [0], *run, "--fleet", str(offer), "--host", "host-0")
        join = ["member", "--join", str(told), "--spec", spec, "--host"]
        members = [start(folder / f"{gpus}-{n}", [n], *join, f"host-{n}") for n in range(1, gpus)]
        while not offer.exists() and lead.poll() is None:
            time.sleep(0.05)
        if offer.exists():
            offered = json.loads(offer.read_bytes())
            told.write_text(json.dumps({**offered, "scheduler": offered["port"]}))
    if lead.wait() != 0:
        for member in members:
            member.terminate()
        raise SystemExit(f"the search on {gpus} GPUs ended with exit code {lead.returncode}")
    for member in members:
        member.wait()
    document: dict[str, Any] = json.loads((out / "tuning.json").read_bytes())
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2,4", help="counts to compare; the first is what the others are times of")
    parser.add_argument("--trials", type=int, default=384)
    parser.add_argument("--slow", type=float, default=5.0, help="so many times as slow as compilers and GPUs are")
    parser.add_argument("--strategy", choices=("evolution", "random"), default="evolution")
    parser.add_argument("--hosts", action="store_true", help="each GPU on a host of its own")
    options = parser.parse_args()
    counts = [int(count) for count in options.gpus.split(",")]
    with tempfile.TemporaryDirectory(prefix="fcctl-asleep-") as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        smi = folder / "bin/nvidia-smi"
        smi.write_text(SMI)
        smi.chmod(0o755)
        (folder / "spec.json").write_text(json.dumps(spec(options.trials, options.slow)))
        found = [search(folder, count, options.strategy, options.hosts) for count in counts]
    rates = [document["effort"]["trials_per_minute"] for document in found]
    rows = [row(n, PROCESSORS * n, document, rates[0]) for n, document in zip(counts, found, strict=True)]
    about = f"{options.trials} trials by {options.strategy}, asleep, {options.slow:g} times as slow"
    print(f"{machine()}; {about}\n{table(rows)}")
    line, is_short = verdict("what the search leaves of it", counts, [rates])
    print(line)
    return int(is_short)


if __name__ == "__main__":
    sys.exit(main())
