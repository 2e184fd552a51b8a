"""``make simulate N=10000 SEED=0``: so many random schedules, on all cores; the first failure, made short."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.judge import attempt, outcome
from tests.simulation.schedule import draw
from tests.simulation.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="The first schedule's; the others follow it.")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.schedules)
    began, done, workers = time.monotonic(), 0, os.cpu_count() or 1
    print(f"{len(seeds)} schedules from seed {options.seed}, {workers} processes", flush=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for seed, failure in pool.map(attempt, seeds, chunksize=25):
            done += 1
            if failure is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                return report(seed, failure)
    seconds = time.monotonic() - began
    print(f"{done} schedules, no violation, {seconds:.1f} s ({seconds / max(1, done) * 1000:.1f} ms each)")
    return 0


def report(seed: int, failure: str) -> int:
    print(f"seed {seed}: {failure.splitlines()[0]}", flush=True)
    shortest = shrink(draw(seed), lambda schedule: outcome(schedule) is not None)
    print(f"shortest schedule that fails: {shortest}")
    print(outcome(shortest))
    return 1


if __name__ == "__main__":
    sys.exit(main())
