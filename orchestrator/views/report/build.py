"""Runs to a report."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.results.look import Shown
from orchestrator.views.report.model import Report
from orchestrator.views.report.profiles import profiled
from orchestrator.views.report.rows import rows, tables
from orchestrator.views.report.run_parts import run_part, targets
from orchestrator.views.report.tuning import tuned


def build(shown: Iterable[Shown]) -> Report:
    """Everything a report says of ``shown``."""
    runs = list(shown)
    return Report(
        runs=tuple(run_part(one) for one in runs),
        tables=tuple(tables([row for one in runs for row in rows(one, several=len(runs) > 1)])),
        targets=tuple(target for one in runs for target in targets(one.record)),
        profiles=tuple(profile for one in runs for profile in profiled(one)),
        tunings=tuple(search for one in runs for search in tuned(one)),
    )
