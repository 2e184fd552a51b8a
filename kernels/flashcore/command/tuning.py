"""``tune``: what a search over configurations asks."""

from __future__ import annotations

import argparse

from flashcore import documents
from flashcore.command.asked import need_torch, settings_of, variant_of


def run(options: argparse.Namespace) -> int:
    variant, fixed = variant_of(options, options.variant)
    fixed.update(settings_of(options.set))
    if options.how == "serve":
        need_torch()
    from flashcore import tune

    return tune.run(variant, options.how, fixed, options.mode, lambda: documents.folder(options.out))
