"""The picture of a search: the best value found so far, beside that of its control."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.results.tuning import Control
from orchestrator.views.report.blocks import Chart
from orchestrator.views.report.drawing import SERIES, WIDTH, Spec, colour
from orchestrator.views.report.tuning import Tuned, curve_name

HEIGHT = 180
#: Trials after which the numbers beside the picture are given.
_MARKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384, 65536)


def best_so_far(tuned: Tuned) -> Chart | None:
    """After each trial the least of the default's time that a configuration took; None before there is one."""
    curves = [(curve_name(c, i > 0), c) for i, c in enumerate(tuned.curves) if c.best is not None]
    if not curves:
        return None
    data = [point for name, curve in curves for point in _points(name, curve)]
    names = [name for name, _ in curves]
    spec: Spec = {
        "width": WIDTH,
        "height": HEIGHT,
        "data": {"values": data},
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        "encoding": {
            "x": {"field": "trial", "type": "quantitative", "title": "trials", "axis": {"tickMinStep": 1}},
            "y": {"field": "best", "type": "quantitative", "title": "best of the default's time",
                  "scale": {"zero": False}},
            "color": {"field": "name", "type": "nominal", "title": None,
                      "scale": {"domain": names, "range": [colour(s) for s in SERIES[: len(names)]]},
                      "legend": {"orient": "top"}},
            "strokeDash": {"field": "name", "type": "nominal", "title": None, "legend": None,
                           "scale": {"domain": names, "range": [[1, 0], [6, 4], [2, 3]][: len(names)]}},
        },
    }  # fmt: skip
    longest = max(len(curve.curve) for _, curve in curves)
    marks = [*(m for m in _MARKS if m < longest), longest]
    rows = tuple((name, *(_after(curve, mark) for mark in marks)) for name, curve in curves)
    caption = (
        f"The best configuration of {tuned.label} found after so many trials, as a share of the default's time. What"
        " was timed briefly counts 5 % worse, and what was found wrong in the end not at all."
    )
    if len(curves) > 1:
        caption += " The dashed line spent the same budget at random."
    return Chart("search", "Search", caption, spec, ("", *(f"after {mark}" for mark in marks)), rows)


def _points(name: str, curve: Control) -> Iterator[Spec]:
    """Where the line changes, and where it ends."""
    before: float | None = None
    for trial, best in enumerate(curve.curve, 1):
        if best is not None and (best != before or trial == len(curve.curve)):
            yield {"name": name, "trial": trial, "best": round(best, 5)}
            before = best


def _after(curve: Control, trials: int) -> str:
    reached = curve.curve[:trials][-1] if curve.curve else None
    return "" if reached is None else f"{reached:.4f}"
