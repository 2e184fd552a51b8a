"""What else differs between two sides: the machine, the compiled kernels, the profiler's counters, other metrics.

Everything here came from a host: nothing need be there or have the right type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from fcctl_remote.base.text import kernel_name
from orchestrator.base.sanitize import listed, number, objects, part, table
from orchestrator.results import tuning as tune_result
from orchestrator.results.tuning import TuneResult

#: Of an environment document and a record's host: what changes from one minute to the next says nothing.
_FLEETING = frozenset(
    {"time", "duration_s", "power_w", "temperature_c", "utilization_pct", "memory_used_mb", "pci", "installed"}
    | {"checks", "summary", "hostname", "load", "throttle_reasons", "complaint", "require", "ecc_uncorrected", "kind"}
    | {"sm_mhz", "mem_mhz", "boot_id"}
)
_RESOURCES = ("registers", "smem_bytes", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "barriers")
_MAX_FACTS, _MAX_KERNELS, _MAX_TEXT = 400, 500, 200
K = TypeVar("K")
V = TypeVar("V")
_THERE, _STALL = "there", "stall "


@dataclass(frozen=True)
class Difference:
    """One fact that is not the same on both sides; None where a side does not have it. ``fact`` says which of those of
    ``name``, if that has several."""

    name: str
    old: Any
    new: Any
    fact: str = ""
    #: How much it matters that it moved, for putting it in order; 0 to 1.
    weight: float = 0.0

    @property
    def change(self) -> float | None:
        """How far it moved, as a share of the larger of the two; None if they are no numbers."""
        old, new = number(self.old), number(self.new)
        if old is None or new is None or old == new:
            return None
        return (new - old) / max(abs(old), abs(new))


def environment(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[Difference]:
    """Facts of the machines and their software that differ, by name. A side of several runs that do not agree among
    themselves shows all that they say."""
    sides = [_united(side) for side in (old, new)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    found = [Difference(name, sides[0].get(name), sides[1].get(name)) for name in names]
    return [d for d in found if d.old != d.new]


def resources(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[Difference]:
    """Registers, shared memory, stack and spills of each compiled kernel that changed; kernels that only one side has
    are named. Takes build documents."""
    return _compared(_kernels(old, _resources_of), _kernels(new, _resources_of))


def profile(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[Difference]:
    """Counters and stall reasons of each profiled kernel that changed, what moved furthest first: percentages by their
    points, stalls by their share of all stalls, the rest by how far it moved as a share. Takes profile documents."""
    found = _compared(_kernels(old, _counters_of), _kernels(new, _counters_of))
    return sorted(found, key=lambda d: -d.weight)


def metrics(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[Difference]:
    """Values of metrics documents that changed, what moved furthest first."""
    sides = [_metrics_of(side) for side in (old, new)]
    found = _changed(*sides)
    return sorted(found, key=lambda d: -abs(d.change or 0.0))


def searches(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[Difference]:
    """What the searches of one name came to, where that is not the same: of each the best, its ratios and its times.
    Takes tuning documents."""
    sides = [{found.name[:_MAX_TEXT]: _found(found) for found in map(tune_result.read, side)} for side in (old, new)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    return [
        replace(one, name=name, fact=one.name)
        for name in names
        for one in _changed(*(side.get(name, {}) for side in sides))
    ]


def _found(result: TuneResult) -> dict[str, Any]:
    best = result.best
    facts: dict[str, Any] = {"strategy": result.search.strategy, "trials": result.trials}
    if best is None:
        return facts
    params = " ".join(f"{name}={value}" for name, value in best.params.items() if result.default.get(name) != value)
    facts.update({"best": params[:_MAX_TEXT], "verdict": best.verdict})
    ratios = {"on what was searched": best.searched, "held out": best.held_out}
    facts.update({f"time over default, {what}": ratio.value for what, ratio in ratios.items() if ratio is not None})
    times = {f"best on {one.case[:60]}, {result.unit}": one.time for one in best.cases if one.time is not None}
    return {**facts, **dict(islice(times.items(), _MAX_FACTS))}


def _united(side: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    seen: dict[str, list[Any]] = {}
    for facts in side:
        for name, value in list(_flat(facts, ""))[:_MAX_FACTS]:
            if value not in seen.setdefault(name, []):
                seen[name].append(value)
    return {name: values[0] if len(values) == 1 else " and ".join(map(str, values)) for name, values in seen.items()}


def _flat(value: Mapping[str, Any], above: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        name = f"{above}{key}"[:_MAX_TEXT]
        if key in _FLEETING or depth > 4:
            continue
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{name}.", depth + 1)
        elif isinstance(inner, list):
            yield name, ", ".join(str(v)[:40] for v in inner[:20] if not isinstance(v, dict | list))
        elif inner is not None:
            yield name, inner[:_MAX_TEXT] if isinstance(inner, str) else inner


@dataclass(frozen=True)
class _Kernel:
    name: str
    label: str  # the variant it was built as
    place: str  # the shape it was profiled on, or the architecture it was compiled for
    facts: dict[str, float]

    @property
    def shown(self) -> str:
        about = ", ".join(word for word in (self.label, self.place) if word)
        return f"{self.name} [{about}]" if about else self.name


def _kernels(
    documents: Iterable[Mapping[str, Any]], facts: Callable[[Mapping[str, Any]], dict[str, float]]
) -> dict[str, _Kernel]:
    """All kernels by what they are shown as; of several launches the last counts."""
    found: dict[str, _Kernel] = {}
    for document in documents:
        label = str(document.get("label") or document.get("variant") or "")[:60]
        shape = part(document, "shape", "name")
        for kernel in objects(listed(document.get("kernels"))[:_MAX_KERNELS]):
            name = kernel_name(str(kernel.get("name") or kernel.get("mangled") or "?")[:_MAX_TEXT])
            made = _Kernel(name, label, str(shape or kernel.get("arch") or "")[:60], facts(kernel))
            found[made.shown] = made
    return found


def _compared(old: Mapping[str, _Kernel], new: Mapping[str, _Kernel]) -> list[Difference]:
    """Facts of the kernels that both sides have; of a place with one kernel each, whatever they are called; and the
    kernels that only one side has."""
    pairs, only_old, only_new = paired(old, new, lambda kernel: kernel.place)
    found = [
        Difference(_both(old[before], new[after]), d.old, d.new, d.name, _weight(d, old[before], new[after]))
        for before, after in pairs
        for d in _changed(old[before].facts, new[after].facts)
    ]
    found += [Difference(name, _THERE, None) for name in only_old]
    return found + [Difference(name, None, _THERE) for name in only_new]


def paired(
    old: Mapping[K, V], new: Mapping[K, V], kind: Callable[[V], object]
) -> tuple[list[tuple[K, K]], list[K], list[K]]:
    """The keys of both sides that belong together, in the new side's order, and those left over of each: the same key,
    or the only one left of its ``kind`` on either side."""
    pairs = {key: key for key in new if key in old}
    left_old, left_new = [key for key in old if key not in new], [key for key in new if key not in old]
    for key in list(left_new):
        here = [other for other in left_new if kind(new[other]) == kind(new[key])]
        there = [other for other in left_old if kind(old[other]) == kind(new[key])]
        if len(here) == len(there) == 1:
            (other,) = there
            pairs[key] = other
            left_new.remove(key)
            left_old.remove(other)
    return [(pairs[key], key) for key in new if key in pairs], left_old, left_new


def _both(old: _Kernel, new: _Kernel) -> str:
    """The label of a pair of kernels: their name; if the names differ, both, without template arguments."""
    if old.shown == new.shown:
        return new.shown
    return f"{new.place}: {old.name.partition('<')[0]} -> {new.name.partition('<')[0]}"


def _weight(difference: Difference, old: _Kernel, new: _Kernel) -> float:
    moved = abs((number(difference.new) or 0.0) - (number(difference.old) or 0.0))
    if difference.name.endswith("_pct"):
        return min(1.0, moved / 100)
    if difference.name.startswith(_STALL):
        totals = (sum(v for k, v in kernel.facts.items() if k.startswith(_STALL)) for kernel in (old, new))
        return min(1.0, moved / (max(totals) or 1.0))
    return abs(difference.change or 0.0)


def _resources_of(kernel: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key in _RESOURCES if (value := number(kernel.get(key))) is not None}


def _counters_of(kernel: Mapping[str, Any]) -> dict[str, float]:
    return _figures(kernel.get("metrics"), 200) | _figures(kernel.get("stalls"), 200, _STALL)


def _metrics_of(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: figure for one in documents for name, figure in _figures(one.get("metrics"), _MAX_FACTS).items()}


def _figures(values: object, most: int, prefix: str = "") -> dict[str, float]:
    """The first ``most`` of them, those that are finite numbers."""
    pairs = ((f"{prefix}{name}"[:_MAX_TEXT], number(value)) for name, value in islice(table(values).items(), most))
    return {name: figure for name, figure in pairs if figure is not None}


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    found = [Difference(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]
    return [d for d in found if d.old != d.new and not _alike(d)]


def _alike(difference: Difference) -> bool:
    """Whether two numbers differ by rounding only."""
    old, new = number(difference.old), number(difference.new)
    return old is not None and new is not None and math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-12)
