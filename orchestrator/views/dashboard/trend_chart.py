"""A benchmark over the runs, as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

from orchestrator.results.compare.changes import Change, Record, Series
from orchestrator.views.figures import microseconds
from orchestrator.views.report.drawing import WIDTH, Spec, colour


def trend_chart(of: Series, changes: Sequence[Change], rungs: Sequence[Record]) -> Spec:
    """Medians in the order of the runs, the levels between changes, and the records."""
    best = {rung.index for rung in rungs}
    points = [
        {"i": i + 1, "v": p.p50, "record": i in best, "said": f"{p.run_id}: {microseconds(p.p50)} {p.unit}"}
        for i, p in enumerate(of.points)
    ]
    bounds = [0, *sorted({at for c in changes for at in (c.index, c.end) if at}), len(of.points)]
    levels = [{"from": a + 0.5, "to": b + 0.5, "v": median(of.values[a:b])} for a, b in itertools.pairwise(bounds)]
    ticks = {"tickMinStep": 1, "grid": False, "format": "d", "tickCount": min(12, len(of.points))}
    x = {"field": "i", "type": "quantitative", "title": "run", "axis": ticks,
         "scale": {"domain": [0.5, len(of.points) + 0.5], "nice": False}}  # fmt: skip
    y = {"field": "v", "type": "quantitative", "title": of.points[-1].unit.replace("us", "µs"),
         "scale": {"zero": False, "nice": True}, "axis": {"tickCount": 4}}  # fmt: skip
    hue = {"field": "record", "type": "nominal", "legend": None,
           "scale": {"domain": [True, False], "range": [colour("series3"), colour("series1")]}}  # fmt: skip
    rule = {"type": "rule", "color": colour("series2"), "strokeWidth": 1.5, "aria": False}
    return {
        "width": WIDTH,
        "height": 150,
        "layer": [
            {"data": {"values": levels}, "mark": rule,
             "encoding": {"x": {**x, "field": "from"}, "x2": {"field": "to"}, "y": y}},
            {"data": {"values": points}, "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
             "encoding": {"x": x, "y": y, "color": hue, "description": {"field": "said"}}},
        ],
    }  # fmt: skip
