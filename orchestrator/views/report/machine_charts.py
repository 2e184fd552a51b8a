"""Charts of what the machine did, and the pictures of all charts: a colour by role (``ink``, ..) is a CSS variable in a
page, the value of one scheme in a file. vl-convert renders without a browser or a network."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from orchestrator.base.clock import epoch
from orchestrator.base.errors import FcctlError
from orchestrator.base.sanitize import clean
from orchestrator.results.documents import Sample
from orchestrator.views.blocks import Chart
from orchestrator.views.report.model import Profiled, Report, Row, RunPart

Spec = dict[str, Any]
#: Of a picture's plot, in CSS pixels; labels come on top. More lines than this are no picture any more.
WIDTH, MAX_ROWS = 600, 24

#: Series colours are Okabe and Ito's, which people with any colour vision can tell apart, darkened or lightened until
#: each has a contrast of 3:1 to its ground.
LIGHT = {
    "paper": "#ffffff", "ink": "#1b2430", "soft": "#5b6675", "rule": "#dfe4ea", "band": "#f1f4f7",
    "series1": "#0067a3", "series2": "#b85c00", "series3": "#007f5c", "series4": "#a8487f", "series5": "#6a6f00",
    "series6": "#2f7fb8", "series7": "#8f2d1a", "series8": "#5b6675", "alarm": "#b3261e",
}  # fmt: skip
DARK = {
    "paper": "#12171d", "ink": "#e6ebf1", "soft": "#9aa7b5", "rule": "#2c353f", "band": "#1b222a",
    "series1": "#56b4e9", "series2": "#e69f00", "series3": "#2fc59a", "series4": "#dd8fbd", "series5": "#d6cf4c",
    "series6": "#8fbfe0", "series7": "#e8806c", "series8": "#9aa7b5", "alarm": "#ff8a80",
}  # fmt: skip
SERIES = tuple(f"series{i}" for i in range(1, 9))

_COLOUR = re.compile(r"@([a-z]+\d?)@")
_SVG = "http://www.w3.org/2000/svg"
_TAGS = frozenset({"svg", "g", "path", "line", "rect", "text", "tspan", "circle", "title", "defs", "clipPath"})
_ATTRIBUTES = frozenset({
    "width", "height", "viewBox", "transform", "d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "dx", "dy",
    "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-dashoffset",
    "stroke-miterlimit", "stroke-linecap", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight",
    "font-style", "text-anchor", "clip-path", "id", "display",
})  # fmt: skip


def colour(role: str) -> str:
    """What a specification says for ``role``; replaced when the picture is made."""
    return f"@{role}@"


def numeric(name: str, title: str | None = None, **options: Any) -> Spec:
    """The numbers of the field ``name``."""
    return {"field": name, "type": "quantitative", "title": title, **options}


def nominal(name: str, **options: Any) -> Spec:
    """The words of the field ``name``, in the order of the data."""
    return {"field": name, "type": "nominal", "sort": None, "title": None, **options}


def scaled(name: str, domain: Iterable[Any], values: Iterable[Any], **options: Any) -> Spec:
    """A colour, opacity or dash for each word of ``domain``; no legend unless ``options`` has one."""
    return nominal(name, **{"legend": None, "scale": {"domain": [*domain], "range": [*values]}, **options})


def layer(values: Sequence[Spec], mark: str, encoding: Spec, **options: Any) -> Spec:
    """Marks for ``values``. A text ``said`` of a value is its mark's tooltip."""
    said = {"description": {"field": "said"}} if values and "said" in values[0] else {}
    drawn = {"type": mark, **({} if said else {"aria": False}), **options}
    return {"data": {"values": [*values]}, "mark": drawn, "encoding": {**encoding, **said}}


def inline_svg(spec: Spec) -> str:
    """An ``<svg>`` element for a page that defines ``--ink`` and the others; marks have their values as tooltips.

    Only shapes and text can be in it, whatever the data were.
    """
    root = ET.fromstring(_svg(_coloured(spec, lambda role: f"var(--{role})")))  # noqa: S314  vl-convert's own
    _plain(root)
    root.set("viewBox", root.get("viewBox") or f"0 0 {root.get('width')} {root.get('height')}")
    root.set("aria-hidden", "true")  # the words beside it are for those who do not see it
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode")


def svg_file(spec: Spec, *, dark: bool = False) -> bytes:
    """A standalone SVG in one scheme's colours, on that scheme's ground."""
    return _svg(_coloured(spec, _palette(dark), ground=True)).encode()


def png_file(spec: Spec, *, dark: bool = False, scale: float = 2.0) -> bytes:
    """The same as PNG; ``scale`` 2 is 1,300 to 1,500 pixels wide, enough for a slide."""
    converter = _converter()
    made: bytes = converter.vegalite_to_png(_coloured(spec, _palette(dark), ground=True), scale=scale)
    return made


def _svg(spec: Spec) -> str:
    made: str = _converter().vegalite_to_svg(spec)
    return made


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError as exc:
        from orchestrator.base.installation import to_install

        raise FcctlError(
            "this Python cannot draw charts", cause="vl-convert is not installed", hint=to_install("web")
        ) from exc
    return vl_convert


def _palette(dark: bool) -> Any:
    colours = DARK if dark else LIGHT
    return lambda role: colours[role]


def _coloured(spec: Spec, value_of: Any, *, ground: bool = False) -> Spec:
    whole = {**_FRAME, **spec, "background": colour("paper") if ground else None}
    # Data may hold what looks like a role. It never decides a colour, and if a label says @ink@ it may as well be #...
    replaced = _COLOUR.sub(lambda m: value_of(m[1]) if m[1] in LIGHT else m[0], json.dumps(whole, allow_nan=False))
    resolved: Spec = json.loads(replaced)
    return resolved


def _plain(element: ET.Element) -> None:
    """Keep what draws; a mark's own description becomes its tooltip."""
    element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    description = element.get("aria-label") if element.get("role") == "graphics-symbol" else None
    axis = element.get("aria-roledescription") in ("axis", "legend", "title")
    for name in [n for n in element.attrib if n not in _ATTRIBUTES]:
        del element.attrib[name]
    for child in list(element):
        if child.tag.removeprefix(f"{{{_SVG}}}") in _TAGS and not _draws_nothing(child):
            _plain(child)
        else:
            element.remove(child)
    if description and not axis:
        tooltip = ET.Element("title")
        tooltip.text = description
        element.insert(0, tooltip)
    element.tag = f"{{{_SVG}}}{element.tag}"


def _draws_nothing(element: ET.Element) -> bool:
    return element.get("display") == "none" or element.get("d") in ("", "M0,0h0v0h0Z")


#: With the metrics that vl-convert lays out labels by.
_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_FRAME: Spec = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "padding": {"left": 24, "right": 10, "top": 4, "bottom": 4},
    "config": {
        "font": _FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": colour("ink"), "titleColor": colour("soft"), "gridColor": colour("rule"),
            "domainColor": colour("rule"), "tickColor": colour("rule"), "labelFontSize": 12, "titleFontSize": 12,
            "titleFontWeight": "normal", "labelLimit": 220, "titlePadding": 8,
        },
        "legend": {
            "labelColor": colour("ink"), "titleColor": colour("soft"), "labelFontSize": 12, "titleFontSize": 12,
            "titleFontWeight": "normal", "labelLimit": 220, "symbolStrokeWidth": 2, "columnPadding": 26,
            "symbolBaseStrokeColor": colour("soft"),
            "symbolOpacity": 1,
        },
        "text": {"color": colour("ink"), "fontSize": 12},
        "title": {"color": colour("ink"), "fontSize": 13, "fontWeight": 600, "anchor": "start"},
    },
}  # fmt: skip


Line = tuple[tuple[float, float], tuple[float, float]]


#: What is so many times below its ceiling, or above twice of it, is no measurement and would leave the picture empty.
FAR = 1e6


def rooflines(report: Report) -> list[Chart | None]:
    """One for each GPU of the report."""
    made = []
    for i, gpu in enumerate(report.gpus):
        runs = [r for r in report.runs if r.gpu == gpu]
        ceilings = next((r.ceilings for r in reversed(runs) if r.ceilings), {})
        tables = [t for t in report.tables if t.machine == gpu and t.unit == "us"]
        mode = tables[0].mode if tables else ""
        rows = [r for t in tables if t.mode == mode for r in t.rows if r.shape and r.p50]
        name = f"roofline-{i + 1}" if len(report.gpus) > 1 else "roofline"
        made.append(_roofline(name, gpu, ceilings, rows, mode))
    return made


def intensity(shape: dict[str, int]) -> float:
    """FLOP per byte of attention forward in FP16: 4 B H S S D over Q, K, V read and O written once."""
    return 4.0 * shape["S"] / (4 * 2)


def tflops(row: Row) -> float:
    """The row's own figure, else 4 B H S S D floating point operations over its median."""
    shape = row.shape or {}
    return row.tflops or 4.0 * shape["B"] * shape["H"] * shape["S"] ** 2 * shape["D"] / (row.p50 or math.inf) * 1e-6


def _roofline(name: str, gpu: str, ceilings: dict[str, float], rows: list[Row], mode: str) -> Chart | None:
    compute, dram, l2 = (ceilings.get(k) for k in ("mma_f32_tflops", "dram_copy_gbps", "l2_copy_gbps"))
    if not compute or not dram or min(compute, dram) <= 0:
        return None
    rows = [r for r in rows if compute / FAR <= tflops(r) <= 2 * compute]
    if not rows:
        return None
    caption = (
        f"Achieved arithmetic rate{f' ({mode})' if mode else ''} on {gpu}, and the ceilings measured on it:"
        f" tensor cores {compute:.0f} TFLOP/s, DRAM {dram:.0f} GB/s{f', L2 cache {l2:.0f} GB/s' if l2 else ''}."
        " Launch overhead limits small shapes; a roofline does not show that. The table names the limit of each shape."
    )
    cells = tuple(
        (r.label, r.case, f"{intensity(r.shape or {}):.0f}", f"{tflops(r):.1f}", f"{100 * tflops(r) / compute:.1f} %",
         "" if r.roofline_pct is None else f"{r.roofline_pct:.0f} % ({r.roofline_bound})")
        for r in rows
    )  # fmt: skip
    header = ("", "shape", "FLOP per byte", "TFLOP/s", "of the tensor ceiling", "of roofline")
    rates = {"DRAM": dram, "L2 cache": l2 if l2 and l2 > dram / FAR else 0.0}
    return Chart(name, f"Roofline, {gpu}", caption, _spec(rows, compute, rates), header, cells)


def _spec(rows: list[Row], compute: float, rates: dict[str, float]) -> Spec:
    names = list(dict.fromkeys(r.label for r in rows if not r.is_reference))[: len(SERIES) - 1]
    shown = [r for r in rows if r.is_reference or r.label in names]
    at = [intensity(r.shape or {}) for r in shown]
    left, right = min(at) / 4, max(*at, 1000 * compute / rates["DRAM"]) * 4
    # Where each roof begins at the left edge, and where it meets the ceiling of the tensor cores.
    roofs: dict[str, Line] = {"tensor cores, FP32 sums": ((left, compute), (right, compute))}
    for name, rate in rates.items():
        if rate > 0 and 1000 * compute / rate > left:
            roofs[name] = ((left, left * rate / 1000), (1000 * compute / rate, compute))
    low, high = min(*(tflops(r) for r in shown), *(ends[0][1] for ends in roofs.values())) / 2, compute * 1.8
    scale = {"type": "log", "nice": False}
    x = numeric("x", "arithmetic intensity, FLOP per byte of Q, K, V and O", scale={**scale, "domain": [left, right]},
                axis={"values": _round_values(left, right, (1, 2, 5)), "format": "~r"})  # fmt: skip
    y = numeric("y", "TFLOP/s", scale={**scale, "domain": [low, high]},
                axis={"values": _round_values(low, high, (1, 3)), "format": "~r"})  # fmt: skip
    return {"width": WIDTH, "height": 360, "layer": [*_roofs(roofs, x, y, compute), _marks(shown, names, x, y)]}


def _roofs(roofs: dict[str, Line], x: Spec, y: Spec, compute: float) -> Iterator[Spec]:
    for name, ends in roofs.items():
        level = ends[0][1] == compute
        beside = {"baseline": "bottom", "dy": -3} if level else {"baseline": "top", "dx": 10, "dy": 1}
        start = {"x": ends[0][0] * 1.15, "y": ends[0][1] * (1 if level else 1.15)}
        at, soft = {"x": x, "y": y}, colour("soft")
        yield layer([{"x": a, "y": b} for a, b in ends], "line", at, color=soft, strokeWidth=1.5)
        yield layer([start], "text", at, align="left", color=soft, text=name, **beside)


def _marks(rows: list[Row], names: list[str], x: Spec, y: Spec) -> Spec:
    points = [
        {"x": intensity(r.shape or {}), "y": tflops(r), "kernel": "SDPA" if r.is_reference else r.label,
         "shape": r.case, "said": f"{r.label}, {r.case}: {tflops(r):.1f} TFLOP/s"}
        for r in rows
    ]  # fmt: skip
    colours = [colour(s) for s in (*SERIES[: len(names)], SERIES[-1])]
    hue = scaled("kernel", [*names, "SDPA"], colours, title="kernel", legend={})
    marks = {"x": x, "y": y, "color": hue, "shape": nominal("shape", title="shape")}
    return layer(points, "point", marks, size=70, opacity=0.95, strokeWidth=2)


def _round_values(low: float, high: float, steps: tuple[int, ...]) -> list[float]:
    """Round values for a logarithmic axis."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [s * 10.0**e for e in exponents for s in steps if low <= s * 10.0**e <= high]


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
    colours = [colour(s) for s in (*SERIES[: len(named)], SERIES[-1])]
    spec = {
        "width": WIDTH, "height": {"step": 24},
        **layer(data, "bar", {
            "y": nominal("name"), "x": numeric("share", "percent of warp time", scale={"domain": [0, 100]}),
            "color": scaled("reason", domain, colours, legend={"orient": "top", "columns": 4}),
            "order": {"field": "order"},
        }, stroke=colour("paper"), strokeWidth=1),
    }  # fmt: skip
    caption = "Why warps wait: Nsight Compute's stall reasons as shares of their sum."
    return Chart("stalls", "Stalls", caption, spec, ("", *domain), tuple(cells))


_LINES = (
    ("util_pct", "GPU %"), ("sm_mhz", "SM clock, MHz"), ("power_w", "power, W"), ("temp_c", "temperature, °C"),
    ("cpu_pct", "CPU %"),
)  # fmt: skip


def telemetry(run: RunPart) -> Chart | None:
    """The steps, and below them what the machine did: one panel a figure, on one axis of time."""
    samples = run.telemetry.samples
    if len(samples) < 2:
        return None
    steps = [
        (clean(s.id, 40), start, max(0.0, s.duration_s), s.status)
        for s in run.record.steps if (start := epoch(s.started)) is not None
    ]  # fmt: skip
    origin = min([samples[0].time, *(start for _, start, _, _ in steps)])
    end = max([samples[-1].time, *(start + seconds for _, start, seconds, _ in steps)]) - origin
    bands: list[Spec] = [
        {"from": round(start - origin, 2), "to": round(start - origin + seconds, 2), "step": name, "shade": i % 2,
         "said": f"step {name}: {seconds:.0f} s, {status}"}
        for i, (name, start, seconds, status) in enumerate(steps)
    ]  # fmt: skip
    shown = [(key, said) for key, said in _LINES if any(key in s.values for s in samples)]
    panels = [_steps(bands, end)] if bands else []
    for i, (key, said) in enumerate(shown):
        axis = {"scale": {"domain": [0, end], "nice": False}, "title": "seconds" if i == len(shown) - 1 else None,
                "axis": {"labels": i == len(shown) - 1, "grid": False, "tickCount": 10}}  # fmt: skip
        panels.append(_panel(_points(samples, key, origin), said, key.endswith("pct"), axis, bands))
    cells = []
    for name, start, seconds, _ in steps:
        during = [s for s in samples if start <= s.time <= start + seconds]
        figures = (_range([s.values[key] for s in during if key in s.values]) for key, _ in shown)
        cells.append((name, f"{start - origin:.0f} s", f"{seconds:.0f} s", *figures))
    spec: Spec = {"vconcat": panels, "spacing": 8, "resolve": {"scale": {"x": "shared"}}}
    header = ("step", "start", "duration", *(said for _, said in shown))
    title = "Telemetry during the steps"
    return Chart("telemetry", title, _telemetry_caption(run), spec, header, tuple(cells))


def _telemetry_caption(run: RunPart) -> str:
    series = run.telemetry
    where = f"{series.gpu}{f' (the busiest of {series.gpus})' if series.gpus > 1 else ''}" if series.gpu else ""
    caption = f"{where or 'The machine'} during the run, in seconds since its start; the steps are above."
    if slowed := sum(1 for s in series.samples if s.throttled):
        reasons = ", ".join(sorted({r.replace("_", " ") for s in series.samples for r in s.throttled or ()}))
        red = f"{slowed} of {len(series.samples)} samples, in red ({clean(reasons)})"
        return f"{caption} The clocks were throttled in {red}."
    known = series.gpu and all(s.throttled is not None for s in series.samples)
    return f"{caption} The clocks were never throttled." if known else caption


def _points(samples: tuple[Sample, ...], key: str, origin: float) -> list[Spec]:
    return [
        {"t": round(s.time - origin, 1), "v": s.values[key], "slow": bool(s.throttled)}
        for s in samples if key in s.values
    ]  # fmt: skip


def _steps(bands: list[Spec], end: float) -> Spec:
    """A bar for each step."""
    x = numeric("from", scale={"domain": [0, end], "nice": False},
                axis={"labels": False, "grid": False, "tickCount": 10})  # fmt: skip
    y = nominal("step", axis={"labelLimit": 110, "ticks": False})
    marks = layer(bands, "bar", {"x": x, "x2": {"field": "to"}, "y": y}, color=colour("series1"))
    return {"width": WIDTH, "height": {"step": 16}, **marks}


def _panel(data: list[Spec], said: str, from_zero: bool, axis: Spec, bands: list[Spec]) -> Spec:
    y = numeric("v", said, scale={"zero": from_zero, "nice": True}, axis={"tickCount": 3, "titleFontSize": 11})
    at = {"x": numeric("t", **axis), "y": y}
    during = {"x": numeric("from", **axis), "x2": {"field": "to"}, "opacity": scaled("shade", [0, 1], [1, 0.35])}
    slow = [d for d in data if d["slow"]]
    layers = [
        layer(bands, "rect", during, color=colour("band")),
        layer(data, "line", at, color=colour("series1"), strokeWidth=1.3),
        layer(slow, "point", at, filled=True, size=14, color=colour("alarm")),
    ]
    return {"width": WIDTH, "height": 64, "layer": [one for one in layers if one["data"]["values"]]}


def _range(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}" if values else ""
