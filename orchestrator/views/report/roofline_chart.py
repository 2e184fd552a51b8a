"""The roofline: what was achieved, below the ceilings measured on the same GPU."""

from __future__ import annotations

import math

from orchestrator.views.report.blocks import Chart
from orchestrator.views.report.drawing import SERIES, WIDTH, Spec, colour
from orchestrator.views.report.model import Report, Row

Line = tuple[tuple[float, float], tuple[float, float]]


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
    if not rows or not compute or not dram or min(compute, dram) <= 0:
        return None
    caption = (
        f"Achieved arithmetic rate{f' ({mode})' if mode else ''} on {gpu} below ceilings measured on it:"
        f" tensor cores {compute:.0f} TFLOP/s, DRAM {dram:.0f} GB/s{f', L2 cache {l2:.0f} GB/s' if l2 else ''}."
        " Small shapes are bound by the launch, which has no place in this picture; the table names what bounds each."
    )
    cells = tuple(
        (r.label, r.case, f"{intensity(r.shape or {}):.0f}", f"{tflops(r):.1f}", f"{100 * tflops(r) / compute:.1f} %",
         "" if r.roofline_pct is None else f"{r.roofline_pct:.0f} % ({r.roofline_bound})")
        for r in rows
    )  # fmt: skip
    header = ("", "shape", "FLOP per byte", "TFLOP/s", "of the tensor ceiling", "time at the nearest ceiling")
    rates = {"DRAM": dram, "L2 cache": l2 or 0.0}
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
    x: Spec = {
        "field": "x", "type": "quantitative", "title": "arithmetic intensity, FLOP per byte of Q, K, V and O",
        "scale": {"type": "log", "domain": [left, right], "nice": False},
        "axis": {"values": _round_values(left, right, (1, 2, 5)), "format": "~r"},
    }  # fmt: skip
    y: Spec = {
        "field": "y", "type": "quantitative", "title": "TFLOP/s",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"values": _round_values(low, high, (1, 3)), "format": "~r"},
    }  # fmt: skip
    return {"width": WIDTH, "height": 360, "layer": [*_roofs(roofs, x, y, compute), _points(shown, names, x, y)]}


def _roofs(roofs: dict[str, Line], x: Spec, y: Spec, compute: float) -> list[Spec]:
    line = {"type": "line", "color": colour("soft"), "strokeWidth": 1.5, "aria": False}
    layers: list[Spec] = []
    for name, ends in roofs.items():
        level = ends[0][1] == compute
        beside = {"baseline": "bottom", "dy": -3} if level else {"baseline": "top", "dx": 10, "dy": 1}
        label = {"type": "text", "align": "left", "color": colour("soft"), "aria": False, **beside}
        start = {"x": ends[0][0] * 1.15, "y": ends[0][1] * (1 if level else 1.15)}
        layers += [
            {"data": {"values": [{"x": a, "y": b} for a, b in ends]}, "mark": line, "encoding": {"x": x, "y": y}},
            {"data": {"values": [start]}, "mark": {**label, "text": name}, "encoding": {"x": x, "y": y}},
        ]
    return layers


def _points(rows: list[Row], names: list[str], x: Spec, y: Spec) -> Spec:
    points = [
        {"x": intensity(r.shape or {}), "y": tflops(r), "kernel": "SDPA" if r.is_reference else r.label,
         "shape": r.case, "said": f"{r.label}, {r.case}: {tflops(r):.1f} TFLOP/s"}
        for r in rows
    ]  # fmt: skip
    colours = [colour(s) for s in (*SERIES[: len(names)], SERIES[-1])]
    return {
        "data": {"values": points},
        "mark": {"type": "point", "size": 70, "opacity": 0.95, "strokeWidth": 2},
        "encoding": {
            "x": x,
            "y": y,
            "color": {"field": "kernel", "type": "nominal", "title": "kernel", "sort": None,
                      "scale": {"domain": [*names, "SDPA"], "range": colours}},
            "shape": {"field": "shape", "type": "nominal", "title": "shape", "sort": None},
            "description": {"field": "said"},
        },
    }  # fmt: skip


def _round_values(low: float, high: float, steps: tuple[int, ...]) -> list[float]:
    """Round values for a logarithmic axis."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [s * 10.0**e for e in exponents for s in steps if low <= s * 10.0**e <= high]
