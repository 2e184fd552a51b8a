"""What else differs between two sides: the machine, the compiled kernels, the profiler's counters, other metrics.

Everything here came from a host: nothing need be there or have the right type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.timings import number

#: Of an environment document and a record's host: what changes from one minute to the next says nothing.
_FLEETING = frozenset(
    {
        "time",
        "duration_s",
        "power_w",
        "temperature_c",
        "utilization_pct",
        "memory_used_mb",
        "pci",
        "installed",
        "checks",
    }
    | {"summary", "hostname", "load", "throttle_reasons", "complaint", "require", "ecc_uncorrected", "kind"}
    | {"sm_mhz", "mem_mhz"}
)
_RESOURCES = ("registers", "smem_bytes", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "barriers")
#: Counters that are rates or shares; others (bytes, instructions) may be any size.
_MAX_FACTS, _MAX_KERNELS, _MAX_TEXT = 400, 500, 200


@dataclass(frozen=True)
class Difference:
    """One fact that is not the same on both sides; None where a side does not have it."""

    name: str
    old: Any
    new: Any

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
    """Registers, shared memory, stack and spills of each compiled kernel (``kernel [arch] registers``) that changed;
    kernels that only one side has are named whole. Takes build documents."""
    return _changed(_kernels(old, _resources_of), _kernels(new, _resources_of))


def profile(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[Difference]:
    """Counters and stall reasons of each profiled kernel that changed, what moved furthest first. Takes profile
    documents."""
    found = _changed(_kernels(old, _counters_of), _kernels(new, _counters_of))
    return sorted(found, key=lambda d: -abs(d.change or 0.0))


def metrics(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[Difference]:
    """Values of metrics documents that changed, what moved furthest first."""
    sides = [_metrics_of(side) for side in (old, new)]
    found = _changed(*sides)
    return sorted(found, key=lambda d: -abs(d.change or 0.0))


# ------------------------------------------------------------------------------------------------ facts
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


# ------------------------------------------------------------------------------------------------ kernels
def _kernels(documents: Iterable[Mapping[str, Any]], facts: Any) -> dict[str, Any]:
    """``kernel fact`` -> value, over all documents; of kernels of one name the last counts."""
    found: dict[str, Any] = {}
    for document in documents:
        label = document.get("label") or document.get("variant")
        shape = document.get("shape")
        where = shape.get("name") if isinstance(shape, dict) else None
        kernels = document.get("kernels")
        for kernel in kernels[:_MAX_KERNELS] if isinstance(kernels, list) else []:
            if isinstance(kernel, dict):
                found.update(_named(kernel, [label, where], facts(kernel)))
    return found


def _named(kernel: Mapping[str, Any], context: list[Any], facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    name = str(kernel.get("name") or kernel.get("mangled") or "?")[:_MAX_TEXT]
    about = [str(part)[:60] for part in (*context, kernel.get("arch")) if part]
    shown = f"{name} [{', '.join(about)}]" if about else name
    return ((f"{shown} {fact}", value) for fact, value in facts.items())


def _resources_of(kernel: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key in _RESOURCES if (value := number(kernel.get(key))) is not None}


def _counters_of(kernel: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for group, prefix in (("metrics", ""), ("stalls", "stall ")):
        values = kernel.get(group)
        for key, value in list(values.items())[:200] if isinstance(values, dict) else []:
            if number(value) is not None:
                found[f"{prefix}{str(key)[:80]}"] = number(value)
    return found


def _metrics_of(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for document in documents:
        values = document.get("metrics")
        for key, value in list(values.items())[:_MAX_FACTS] if isinstance(values, dict) else []:
            if number(value) is not None:
                found[str(key)[:_MAX_TEXT]] = number(value)
    return found


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    found = [Difference(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]
    return [d for d in found if d.old != d.new and not _alike(d)]


def _alike(difference: Difference) -> bool:
    """Whether two numbers differ by rounding only."""
    old, new = number(difference.old), number(difference.new)
    return old is not None and new is not None and math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-12)
