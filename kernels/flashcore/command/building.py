"""``build``: compile, or take from the cache; report resources."""

from __future__ import annotations

import argparse
import sys

from flashcore import build, documents, shapes
from flashcore.command.asked import build_all, tuned_of


def run(options: argparse.Namespace) -> int:
    chosen = list(shapes.parse(options.shape or "mission").values())
    tuned = tuned_of(options)
    out = documents.folder(options.out)
    for number, built in enumerate(build_all(options, tuned, chosen), start=1):
        if built.configuration:
            used = next(c for c in map(tuned.choice, chosen) if c.configuration == built.configuration)
            print("  " + " ".join(f"{k}={v}" for k, v in built.configuration.items()) + f"   ({used.reason})")
        for k in built.document["kernels"]:
            print(
                f"  {k['name']} {k['arch']}: {k['registers']} registers, {k['stack_bytes']} B stack, "
                f"{k['spill_store_bytes']} + {k['spill_load_bytes']} B spilled, {k['smem_bytes']} B shared memory"
            )
        if "resources_unread" in built.document:
            print("warning: the kernel's resources are unknown: " + built.document["resources_unread"], file=sys.stderr)
        print(build.save(built, out, f"-{number}" if number > 1 else ""))
    return 0
