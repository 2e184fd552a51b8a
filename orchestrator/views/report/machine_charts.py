"""Pictures of what the machine did: what warps waited for, telemetry beside the steps, where time and money went."""

from __future__ import annotations

from orchestrator.base.sanitize import clean
from orchestrator.results.telemetry import Sample
from orchestrator.views.report.blocks import Chart
from orchestrator.views.report.drawing import MAX_ROWS, SERIES, WIDTH, Spec, colour
from orchestrator.views.report.model import Profiled, RunPart

_STALLS_SHOWN = 6


def stalls(profiles: tuple[Profiled, ...]) -> Chart | None:
    """What warps wait for, as shares of their life, for each profiled kernel."""
    shown = [p for p in profiles if p.stalls][:MAX_ROWS]
    if not shown:
        return None
    totals: dict[str, float] = {}
    for profile in shown:
        for reason, value in profile.stalls.items():
            totals[reason] = totals.get(reason, 0.0) + value / sum(profile.stalls.values())
    named = sorted(totals, key=lambda r: -totals[r])[:_STALLS_SHOWN]
    data, cells = [], []
    for profile in shown:
        name = f"{profile.label}, {profile.shape}" if profile.shape else profile.label
        total = sum(profile.stalls.values())
        shares = {r: 100 * profile.stalls.get(r, 0.0) / total for r in named}
        shares["other"] = max(0.0, 100 - sum(shares.values()))
        data += [
            {"name": name, "reason": r.replace("_", " "), "share": round(s, 2), "order": i,
             "said": f"{name}: {r.replace('_', ' ')} {s:.0f} %"}
            for i, (r, s) in enumerate(shares.items())
        ]  # fmt: skip
        cells.append((name, *(f"{s:.0f} %" for s in shares.values())))
    domain = [r.replace("_", " ") for r in (*named, "other")]
    spec: Spec = {
        "width": WIDTH,
        "height": {"step": 24},
        "data": {"values": data},
        "mark": {"type": "bar", "stroke": colour("paper"), "strokeWidth": 1},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": None, "title": None},
            "x": {"field": "share", "type": "quantitative", "title": "percent of a warp's life",
                  "scale": {"domain": [0, 100]}},
            "color": {"field": "reason", "type": "nominal", "title": None, "sort": None,
                      "scale": {"domain": domain, "range": [colour(s) for s in (*SERIES[: len(named)], SERIES[-1])]},
                      "legend": {"orient": "top", "columns": 4}},
            "order": {"field": "order"},
            "description": {"field": "said"},
        },
    }  # fmt: skip
    caption = "What a warp waits for, by Nsight Compute's stall reasons, as shares of their sum."
    return Chart("stalls", "Stalls", caption, spec, ("", *domain), tuple(cells))


_LINES = (
    ("util_pct", "GPU %"), ("sm_mhz", "SM clock, MHz"), ("power_w", "power, W"), ("temp_c", "temperature, °C"),
    ("cpu_pct", "CPU %"),
)  # fmt: skip


def telemetry(run: RunPart) -> Chart | None:
    """What the machine did while the steps ran: one panel a figure, the steps as bands behind all of them."""
    samples = run.telemetry.samples
    if len(samples) < 2:
        return None
    steps = [(s, s.start) for s in run.steps if s.start is not None]
    origin = min([samples[0].time, *(start for _, start in steps)])
    end = max([samples[-1].time, *(start + s.seconds for s, start in steps)]) - origin
    bands = [
        {"from": round(start - origin, 2), "to": round(start - origin + s.seconds, 2), "step": s.id, "shade": i % 2,
         "said": f"step {s.id}: {s.seconds:.0f} s, {s.status}"}
        for i, (s, start) in enumerate(steps)
    ]  # fmt: skip
    # A label needs room; a step too short for its own is in the table.
    labels = [b for b, (s, _) in zip(bands, steps, strict=True) if s.seconds > end * 0.011 * len(s.id)]
    shown = [(key, said) for key, said in _LINES if any(key in s.values for s in samples)]
    panels = []
    for i, (key, said) in enumerate(shown):
        axis = {"scale": {"domain": [0, end], "nice": False}, "title": "seconds" if i == len(shown) - 1 else None,
                "axis": {"labels": i == len(shown) - 1, "grid": False, "tickCount": 10}}  # fmt: skip
        panels.append(_panel(_points(samples, key, origin), said, key.endswith("pct"), axis, bands,
                             labels if i == 0 else []))  # fmt: skip
    cells = []
    for step, start in steps:
        during = [s for s in samples if start <= s.time <= start + step.seconds]
        figures = (_range([s.values[key] for s in during if key in s.values]) for key, _ in shown)
        cells.append((step.id, f"{start - origin:.0f} s", f"{step.seconds:.0f} s", *figures))
    spec: Spec = {"vconcat": panels, "spacing": 8, "resolve": {"scale": {"x": "shared"}}}
    header = ("step", "from", "for", *(said for _, said in shown))
    title = "Telemetry beside the steps"
    return Chart("telemetry", title, _telemetry_caption(run), spec, header, tuple(cells))


def _telemetry_caption(run: RunPart) -> str:
    series = run.telemetry
    where = f"{series.gpu}{f' (the busiest of {series.gpus})' if series.gpus > 1 else ''}" if series.gpu else ""
    said = f"{where or 'The machine'} during the run, seconds since its start; bands are the steps."
    slowed = sum(1 for s in series.samples if s.throttled)
    if slowed:
        reasons = ", ".join(sorted({r.replace("_", " ") for s in series.samples for r in s.throttled}))
        return f"{said} The clocks were throttled in {slowed} of {len(series.samples)} samples ({clean(reasons)}), red."
    return f"{said} The clocks were never throttled." if series.gpu else said


def _points(samples: tuple[Sample, ...], key: str, origin: float) -> list[Spec]:
    return [
        {"t": round(s.time - origin, 1), "v": s.values[key], "slow": bool(s.throttled)}
        for s in samples if key in s.values
    ]  # fmt: skip


def _panel(data: list[Spec], said: str, from_zero: bool, axis: Spec, bands: list[Spec], labels: list[Spec]) -> Spec:
    x = {"field": "t", "type": "quantitative", **axis}
    y = {"field": "v", "type": "quantitative", "title": said, "scale": {"zero": from_zero, "nice": True},
         "axis": {"tickCount": 3, "titleFontSize": 11}}  # fmt: skip
    shade = {"field": "shade", "type": "nominal", "legend": None, "scale": {"domain": [0, 1], "range": [1, 0.35]}}
    line = {"type": "line", "color": colour("series1"), "strokeWidth": 1.3, "aria": False}
    dot = {"type": "point", "filled": True, "size": 14, "color": colour("alarm"), "aria": False}
    word = {"type": "text", "align": "left", "baseline": "bottom", "dx": 2, "fontSize": 11, "color": colour("soft"),
            "aria": False}  # fmt: skip
    layers: list[Spec] = [
        {"data": {"values": bands}, "mark": {"type": "rect", "color": colour("band")},
         "encoding": {"x": {**x, "field": "from"}, "x2": {"field": "to"}, "opacity": shade,
                      "description": {"field": "said"}}},
        {"data": {"values": data}, "mark": line, "encoding": {"x": x, "y": y}},
        {"data": {"values": [d for d in data if d["slow"]]}, "mark": dot, "encoding": {"x": x, "y": y}},
        {"data": {"values": labels}, "mark": word,
         "encoding": {"x": {**x, "field": "from"}, "y": {"value": -3}, "text": {"field": "step"}}},
    ]  # fmt: skip
    drawn = [layer for layer in layers if layer["data"]["values"]]
    return {"width": WIDTH, "height": 64, "layer": drawn}


def _range(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}" if values else ""


def cost(run: RunPart) -> Chart | None:
    """Where the time went, and the money if there was a price."""
    lines = [c for c in run.cost if c.seconds > 0]
    if not lines:
        return None
    priced = run.usd > 0
    total = sum(c.seconds for c in lines)
    data = [
        {"name": c.activity, "v": c.usd if priced else c.seconds,
         "said": (f"${c.usd:.3f}, " if priced else "") + f"{c.seconds:.0f} s ({100 * c.seconds / total:.0f} %)"}
        for c in lines
    ]  # fmt: skip
    y = {"field": "name", "type": "nominal", "sort": None, "title": None}
    x = {"field": "v", "type": "quantitative", "title": "dollars" if priced else "seconds",
         "scale": {"domain": [0, max(c.usd if priced else c.seconds for c in lines) * 1.3], "nice": False},
         "axis": {"tickCount": 6}}  # fmt: skip
    spec: Spec = {
        "width": WIDTH,
        "height": {"step": 24},
        "data": {"values": data},
        "layer": [
            {"mark": {"type": "bar", "color": colour("series3")},
             "encoding": {"x": x, "y": y, "description": {"field": "said"}}},
            {"mark": {"type": "text", "align": "left", "dx": 6, "aria": False},
             "encoding": {"x": x, "y": y, "text": {"field": "said"}}},
        ],
    }  # fmt: skip
    caption = (
        f"${run.usd:.2f} by activity, at ${run.usd_per_hour:.2f} an hour." if priced
        else "Seconds by activity; this run had no price."
    )  # fmt: skip
    if run.emulated:
        caption += " The machine was emulated: nothing was spent."
    cells = tuple((c.activity, f"{c.seconds:.1f}", f"{c.usd:.4f}" if priced else "") for c in lines)
    return Chart("cost", "Cost split", caption, spec, ("activity", "seconds", "dollars"), cells)
