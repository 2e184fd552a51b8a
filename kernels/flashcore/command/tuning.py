"""``tune``: what a search over configurations asks."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from flashcore import documents, toolchain
from flashcore.command.asked import need_torch, settings_of, variant_of


def run(options: argparse.Namespace) -> int:
    variant, fixed = variant_of(options, options.variant)
    fixed.update(settings_of(options.set))
    from flashcore import tune

    requests: Iterable[bytes] = ()
    if options.how == "serve":
        stdin = open(0, "rb", closefd=False)  # noqa: SIM115 - its own, which Python's end does not wait for
        requests = tune.heard(stdin, toolchain.meet if variant.device == "cuda" else None)
        need_torch()
    return tune.run(variant, options.how, fixed, options.mode, lambda: documents.folder(options.out), requests)
