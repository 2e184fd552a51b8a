"""The fields of documents that gates read: a name that is nearly one of fcctl's own is a typing error.

A step may write documents with fields of its own, so an unknown name alone is none. Names that differ in figures only
(``p95``) are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from fcctl_remote import wire
from fcctl_remote.base.ncu_metrics import METRICS
from fcctl_remote.gates.syntax import Key, Path, parse
from orchestrator.base.errors import edits

#: The fields within a field; of one that is not listed nothing is known.
_IN: dict[str, str] = {
    "step": " ".join((*wire.DOCUMENT_KINDS, "status", "exit_code", "duration_s", "attempts")),
    "build": "kernels archs tool variant cached duration_s",
    "build.kernels": "name mangled arch registers smem_bytes stack_bytes spill_store_bytes spill_load_bytes barriers",
    "correctness": "summary cases",
    "correctness.summary": "total passed failed skipped max_err mean_err",
    "correctness.cases": "name group passed status duration_s message max_err mean_err nan inf tolerance shape seed",
    "benchmark": "benchmarks comparisons environment device label",
    "benchmark.benchmarks": "name variant mode unit stats samples shape roofline state status",
    "benchmark.benchmarks.stats": "n p50 p90 p99 min max mean stddev",
    "profile": "kernels targets",
    "profile.kernels": "name grid block metrics stalls compute_capability",
    "profile.kernels.metrics": " ".join(metric.key for metric in METRICS),
    "metrics": "metrics",
    "host": "gpu cuda ncu torch cpu cpus compiler disk env machine os platform release tools checks summary",
    "host.gpu": "name count present compute_capability arch driver cuda_version memory_mb memory_used_mb clocks mig",
}


def misspelt(expr: str) -> Iterator[tuple[str, str, str]]:
    """Of a valid gate: each field that is nearly a known one, what it is a field of, and the known one."""
    for path in _paths(parse(expr)):
        names = [path.root, *(part.name for part in path.parts if isinstance(part, Key))]
        if names[0] in ("steps", "step"):  # steps.ID.KIND, step.KIND
            names = names[2:] if names[0] == "steps" else names[1:]
            names = ["step", *names]
        for count, name in enumerate(names[1:], 1):
            place = ".".join(names[:count]).removeprefix("step.")
            if known := _near(name, _IN.get(place, "").split()):
                yield name, place, known


def _paths(node: Any) -> Iterator[Path]:
    if isinstance(node, Path):
        yield node
    elif isinstance(node, tuple):
        for part in node:
            yield from _paths(part)


#: Letters that look like a figure: ``p5O``.
_LOOK_ALIKE = str.maketrans("oil", "011")
#: In shorter names one letter makes another word: ``mad`` is no ``max``.
_LONG = 4


def _near(name: str, known: Sequence[str]) -> str | None:
    """The known name from which ``name`` differs in a letter or two."""
    if name in known:
        return None
    letters, most = re.sub(r"\d", "", name), max(1, len(name) // 6) if len(name) >= _LONG else 0
    for one in known:
        if name.lower().translate(_LOOK_ALIKE) == one:
            return one
        if edits(name, one) <= most and re.sub(r"\d", "", one) != letters:
            return one
    return None
