"""``fcctl-host probe``: preflight on this machine, as a program and as a job's step."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from fcctl_remote.base import files
from fcctl_remote.probe.document import REQUIRE, collect
from fcctl_remote.probe.printed import render


def main(argv: list[str] | None = None) -> int:
    """``fcctl-host probe [--json] [--out DIR] [--require auto|gpu|none]``; returns :func:`exit_code`."""
    parser = argparse.ArgumentParser(prog="fcctl-host probe", description="Check this machine for CUDA work.")
    parser.add_argument("--json", action="store_true", help="print the environment document")
    parser.add_argument("--out", metavar="DIR", help="also write DIR/environment.json")
    parser.add_argument(
        "--require", choices=REQUIRE, default="auto",
        help="gpu: fail without a working GPU; none: GPUs do not matter; auto (default): gpu if one is installed",
    )  # fmt: skip
    options = parser.parse_args(argv)
    document = collect(require=options.require)
    if options.out:
        try:
            _write(options.out, document)
        except OSError as error:
            print("error: cannot write the environment document: %s" % error, file=sys.stderr)
            return 2
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        sys.stdout.write(render(document, color).encode("utf-8", "replace").decode("utf-8"))
    return exit_code(document)


def exit_code(document: Mapping[str, Any]) -> int:
    """0 all checks passed, 1 there are warnings, 2 there are critical errors."""
    return {"pass": 0, "warn": 1}.get(document["summary"]["status"], 2)


def _write(folder: str, document: dict[str, Any]) -> None:
    os.makedirs(folder, exist_ok=True)
    data = json.dumps(document, indent=2).encode("utf-8")
    files.write_atomic(os.path.join(folder, "environment.json"), data, durable=False)
