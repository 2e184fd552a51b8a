"""Every picture of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.views.report.blocks import Chart
from orchestrator.views.report.machine_charts import cost, stalls, telemetry
from orchestrator.views.report.model import Report
from orchestrator.views.report.roofline_chart import rooflines
from orchestrator.views.report.timing_charts import ladder, spread
from orchestrator.views.report.tuning_chart import best_so_far


def charts(report: Report) -> list[Chart]:
    """Every picture there is data for. With several machines or runs, each names its own."""
    return [chart for chart in _all(report) if chart is not None]


def _all(report: Report) -> Iterator[Chart | None]:
    first = {table.machine: table for table in reversed(report.tables) if table.ours}
    for i, machine in enumerate(report.gpus):
        if machine in first:
            several = len(report.gpus) > 1
            for made in (ladder(first[machine]), spread(first[machine])):
                yield _named(made, f"-{i + 1}", machine) if several else made
    yield from rooflines(report)
    yield stalls(report.profiles)
    for i, one in enumerate(report.tunings, 1):
        made = best_so_far(one)
        yield _named(made, f"-{i}", one.label) if len(report.tunings) > 1 else made
    for run in report.runs:
        for made in (telemetry(run), cost(run)):
            yield _named(made, f"-{run.run_id[-6:]}", run.run_id) if len(report.runs) > 1 else made


def _named(chart: Chart | None, suffix: str, said: str) -> Chart | None:
    return chart and replace(chart, name=chart.name + suffix, title=f"{chart.title}, {said}")
