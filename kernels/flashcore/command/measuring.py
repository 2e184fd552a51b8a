"""``peaks``: what this GPU can do."""

from __future__ import annotations

import argparse

from flashcore import documents
from flashcore.command.asked import need_torch


def run(options: argparse.Namespace) -> int:
    need_torch()
    from flashcore import peaks

    out = documents.folder(options.out)  # refused before minutes are measured for it
    document = peaks.run()
    for name, value in document["metrics"].items():
        print(f"  {name:<28} {value:>14,.3f}")
    print(documents.write_json(out / "peaks.json", document))
    return 0
