"""Benchmark documents, which come from a host and are not trusted, as rows to compare and measurements to index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any

from fcctl_remote.base.estimates import NEEDS
from orchestrator.base.sanitize import listed, number, objects, table, worded
from orchestrator.results.compare.effect import Effect, Launch
from orchestrator.results.records import UNVERIFIED
from orchestrator.results.timings import MAX_ENTRIES, controls, entries, method_of

MAX_SAMPLES = 100_000
#: What is so many times the median of its launch, or so small a part of it, is no time of the same thing.
FAR = 1e6
#: From this share of blocks or samples on, a benchmark counts as throttled.
THROTTLED_SHARE = 0.1
#: Telemetry's reasons that mean a GPU ran slower than it could; a clock that somebody chose is no throttling.
THROTTLES = frozenset(
    {"sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake", "sw_thermal_slowdown"}
    | {"hw_thermal_slowdown", "hw_power_brake_slowdown"}
)


@dataclass(frozen=True)
class Conditions:
    """What a time depends on besides the code. None where nobody said."""

    device: str | None = None  # the GPU, or the processor of what ran on none
    driver: str | None = None
    sm_mhz: float | None = None  # in the middle of the measurement
    power_limit_w: float | None = None
    throttled: bool | None = None
    threads: int | None = None
    mig: bool | None = None


@dataclass(frozen=True)
class Key:
    """Which benchmark it is."""

    name: str
    variant: str
    mode: str


@dataclass(frozen=True)
class Row:
    """One benchmark as one process measured it."""

    key: Key
    launch: Launch
    unit: str  # empty where the document states none
    shape: tuple[tuple[str, int], ...]
    method: str  # of measuring: the tool and its version of the method
    is_control: bool  # code that is not ours, timed beside ours
    conditions: Conditions
    p50: float | None = None
    time: float | None = None  # when its run was created, seconds since 1970 by the controller's clock


@dataclass(frozen=True)
class GpuActivity:
    """What telemetry saw of the GPU while a step worked it."""

    sm_mhz: float | None = None
    throttled: bool | None = None


@dataclass(frozen=True)
class Machine:
    """The machine of a run: its record's host facts, and what telemetry saw during the step."""

    host: dict[str, Any] = field(default_factory=dict)
    busy: GpuActivity = GpuActivity()
    time: float | None = None  # of the run, as a row has it


def rows_of(document: dict[str, Any], machine: Machine) -> list[Row]:
    """Every entry of one benchmark document that has a time. Entries of one name count up: ``copy``, ``copy#2``."""
    raw = objects(document.get("benchmarks"))[:MAX_ENTRIES]
    timed = entries(document)
    theirs = {id(t) for t in controls(timed)}  # a timing may hold a dictionary, and so has no hash
    paired = _paired(document)
    seen: dict[Key, int] = {}
    rows = []
    for timing, entry in zip(timed, raw, strict=True):
        beside = paired.get(timing.name, [])
        groups = max(1, *(_whole(c.get("replicates")) or 1 for c in beside)) if beside else 1
        samples, left_out = _samples(entry.get("samples"))
        launch = Launch(samples, timing.stats, groups, left_out)
        if launch.value("p50") is None and launch.value("mean") is None and not left_out:
            continue
        key = Key(timing.name, timing.variant, timing.mode)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 1:
            key = Key(f"{timing.name}#{seen[key]}", timing.variant, timing.mode)
        rows.append(
            Row(
                key=key,
                launch=launch,
                unit=timing.unit if entry.get("unit") else "",
                shape=tuple(sorted((timing.shape or {}).items())),
                method=method_of(document),
                is_control=id(timing) in theirs,
                conditions=_conditions(document, beside, machine),
                p50=timing.p50,
                time=machine.time,
            )
        )
    return rows


def _paired(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The comparisons that each benchmark took part in, by its name."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for comparison in objects(document.get("comparisons")):
        for name in {str(comparison.get("benchmark")), str(comparison.get("against"))}:
            by_name.setdefault(name, []).append(comparison)
    return by_name


def _conditions(document: dict[str, Any], beside: list[dict[str, Any]], machine: Machine) -> Conditions:
    environment = table(document.get("environment"))
    gpu = table(machine.host.get("gpu"))
    named = document.get("device") or environment.get("device") or gpu.get("name")
    on_cpu = named == "cpu" or not (named or gpu.get("present"))
    if on_cpu:
        cpu = table(machine.host.get("cpu")).get("model") or machine.host.get("machine")
        return Conditions(device=worded(cpu), threads=_whole(document.get("threads")))
    clocks, throttled = _clocks(beside)
    return Conditions(
        device=worded(named),
        driver=worded(environment.get("driver") or gpu.get("driver")),
        sm_mhz=clocks or machine.busy.sm_mhz,
        power_limit_w=number(gpu.get("power_limit_w")),
        throttled=machine.busy.throttled if throttled is None else throttled,
        mig=gpu["mig"] if isinstance(gpu.get("mig"), bool) else None,
    )


def _clocks(comparisons: list[dict[str, Any]]) -> tuple[float | None, bool | None]:
    """The SM clock (middle of its readings, MHz) while these were measured, and whether that was throttled."""
    readings: list[float] = []
    blocks, throttled = 0, 0.0
    for comparison in comparisons:
        clocks = comparison.get("clocks")
        throttled += number(comparison.get("throttled_blocks")) or 0.0
        if isinstance(clocks, dict):  # as published: extremes only
            extremes = clocks.get("sm_mhz")
            readings += [v for v in map(number, extremes if isinstance(extremes, list) else [extremes]) if v]
            blocks += int(number(clocks.get("readings")) or 0)
        else:
            each = objects(clocks)
            readings += [v for v in (number(c.get("sm_mhz")) for c in each) if v]
            blocks += len(each)
    return median(readings) if readings else None, throttled >= THROTTLED_SHARE * blocks if blocks else None


def _samples(value: object) -> tuple[tuple[float, ...], int]:
    """Those that can be times, and how many cannot: not a finite number above 0, or too far from the others."""
    given = listed(value)[:MAX_SAMPLES]
    times = [v for v in map(number, given) if v is not None and v > 0]
    middle = median_low(times) if times else 0.0
    times = [v for v in times if middle / FAR <= v <= middle * FAR]
    return tuple(times), len(given) - len(times)


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


#: Share of the samples of a launch that may be left out because they cannot be times.
MOST_LEFT_OUT = 0.05
#: Metrics that depend on the number of samples, and by how much those numbers may differ.
BY_COUNT, ALIKE = ("min", "p90", "p99"), 1.1
#: Times of one benchmark so many times apart are in different units, if nobody states one.
OTHER_UNIT = 100.0


def obstacles(old: Sequence[Row], new: Sequence[Row], metric: str, effect: Effect | None) -> list[str]:
    """Why a difference of ``metric`` would mean nothing."""
    reasons = [
        f"{row.launch.left_out} of {row.launch.left_out + len(row.launch.samples)} samples of a launch are not valid "
        f"times"
        for row in (*old, *new)
        if row.launch.left_out > MOST_LEFT_OUT * (row.launch.left_out + len(row.launch.samples))
    ][:1]
    imported = [name for name, side in (("old", old), ("new", new)) if any(r.method == UNVERIFIED for r in side)]
    if imported:
        reasons.append(f"the figures of the {' and the '.join(imported)} side are {UNVERIFIED}")
    counts = [min(row.launch.count for row in side) for side in (old, new)]
    most = max(row.launch.count for row in (*old, *new))
    if metric in BY_COUNT and most > ALIKE * min(counts):
        reasons.append(f"the {metric} of {min(counts)} samples against that of {most}: compare --metric p50")
    if effect is None:
        needs = NEEDS.get(metric)
        reasons.append(f"no {metric}" + (f": it needs {needs} samples per launch" if needs else ""))
    elif not new[0].unit and abs(math.log(effect.ratio)) > math.log(OTHER_UNIT):
        factor = max(effect.ratio, 1 / effect.ratio)
        reasons.append(f"the unit is not stated, and the times differ by a factor of {factor:.0f}")
    return reasons


def sample_notes(old: Sequence[Row], new: Sequence[Row], metric: str) -> list[str]:
    """What a reader of the figures has to know."""
    rows = (*old, *new)
    notes = []
    left_out = sum(row.launch.left_out for row in rows)
    if left_out:
        notes.append(f"fcctl does not use {left_out} of {left_out + sum(len(r.launch.samples) for r in rows)} samples: "
        f"not finite, not above 0, or more than a million times off the median")  # fmt: skip
    lost = sum(row.launch.value(metric) is None for row in rows)
    if lost:
        notes.append(f"fcctl does not use {lost} of {len(rows)} launches: {metric} is missing")
    if not any(row.unit for row in rows):
        notes.append("the unit is not stated: fcctl assumes the same unit on both sides")
    return notes
