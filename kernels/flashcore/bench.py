"""Time a kernel against PyTorch in one process, so that the ratio can be trusted where the microseconds cannot.

Each pair is measured in blocks A B B A and B A A B, so that a drifting clock or a busy neighbour hits both sides alike;
the ratio is that of the blocks (:func:`flashcore.stats.paired_ratio`). The kernel is timed against itself in the same
way: that null must be 1 within its interval, or the method is not to be believed on this machine. After the timing the
inputs are replaced where they lie, outputs poisoned, and what the timed calls then compute is compared with float64,
which a kernel that remembers old results, or skips part of the work, does not survive.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flashcore import documents, inputs, reference, stats, timing
from flashcore.clocks import Clocks
from flashcore.compare import measure, tolerance
from flashcore.errors import FlashcoreError
from flashcore.launch import Kernel
from flashcore.shapes import Shape

MIN_ITERATIONS = 100
#: A B B A, then B A A B: whoever comes first after the pause between blocks has no lasting disadvantage.
ORDERS = ((0, 1, 1, 0), (1, 0, 0, 1))
#: Samples in a row before the other side's turn.
RUN = 2
#: Times as many blocks in eager mode: single calls are short, and the processor that makes them is not quiet.
EAGER_BLOCKS = 4
#: Device work after the stop event that the audit forgives: the cost of looking, and a share of what was timed.
LATE_US, LATE_SHARE = 200.0, 0.2


class AuditFailed(FlashcoreError):
    """The timed kernel did not do the work."""


@dataclass(frozen=True)
class Rival:
    """What the kernel is compared with: a PyTorch backend or another variant."""

    name: str
    subject: timing.Subject
    context: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


@dataclass(frozen=True)
class Paired:
    a: np.ndarray  # [blocks, samples per block], us
    b: np.ndarray
    clocks: list[dict[str, Any]]  # one reading per block, empty without a GPU

    @property
    def throttled_blocks(self) -> int:
        return sum(bool(c["throttled"]) for c in self.clocks)


Report = Callable[[dict[str, Any], dict[str, Any]], None]


def run(
    kernel: Kernel,
    shapes: Mapping[str, Shape],
    *,
    rivals: Sequence[Kernel] = (),
    backends: Sequence[str] | None = None,
    iterations: int = MIN_ITERATIONS,
    report: Report | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Time ``kernel`` on every shape and mode; returns the ``benchmark`` document and the export for jq.

    ``backends`` limits PyTorch's implementations (all that work here by default; one at least). ``report`` hears each
    row with the comparison it came from.

    Raises:
        AuditFailed: the outputs of the timed calls are wrong.
    """
    blocks = math.ceil(max(iterations, MIN_ITERATIONS) / (2 * RUN))
    rows: list[dict[str, Any]] = []
    comparisons: list[dict[str, Any]] = []
    clocks = Clocks()
    for name, shape in shapes.items():
        for mode in timing.modes(kernel.variant.device):
            against = _rivals(kernel, shape, rivals, backends)
            bench = _Bench(kernel, name, shape, mode, blocks, clocks)
            for row, comparison in bench.against(against):
                rows.append(row)
                comparisons.append(comparison)
                if report:
                    report(row, comparison)
    built = kernel.built.document
    headline = "mission" if "mission" in shapes else next(iter(shapes))
    document = documents.document(
        "benchmark",
        variant=kernel.variant.name,
        configuration=built["configuration"],
        device=torch.cuda.get_device_name() if kernel.variant.device == "cuda" else "cpu",
        threads=torch.get_num_threads() if kernel.variant.device == "cpu" else None,
        torch=torch.__version__,
        config=shapes[headline].as_dict(),
        benchmarks=rows,
        comparisons=comparisons,
    )
    return document, export(document, shapes)


def export(document: Mapping[str, Any], shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """``bench_export.json``: .results.<shape>.{flashcore,pytorch}.p50, .config, .speedup, as jq scripts read it.

    ``speedup`` is PyTorch's p50 over the kernel's on the mission shape (on the only shape, if another was timed).
    """
    rows = {row["name"]: row for row in document["benchmarks"]}
    results = {}
    for name in shapes:
        pytorch = next((r for n, r in rows.items() if n.startswith(f"{name}/sdpa")), None)
        results[name] = {"flashcore": rows[name]["stats"], **({"pytorch": pytorch["stats"]} if pytorch else {})}
    headline = "mission" if "mission" in shapes else next(iter(shapes))
    ours, theirs = results[headline]["flashcore"], results[headline].get("pytorch")
    return {
        "variant": document["variant"],
        "device": document["device"],
        "unit": "us",
        "mode": rows[headline]["mode"],
        "config": document["config"],
        "results": results,
        "speedup": round(theirs["p50"] / ours["p50"], 4) if theirs else None,
    }


def _rivals(kernel: Kernel, shape: Shape, kernels: Sequence[Kernel], backends: Sequence[str] | None) -> list[Rival]:
    there = reference.available_backends(*inputs.draw(shape, 0, kernel.variant.device))
    chosen = [n for n in there if backends is None or n in backends]
    theirs = [Rival(n, reference.sdpa, lambda n=n: reference.backend(n)) for n in chosen]  # type: ignore[misc]
    return theirs + [Rival(other.variant.name, other) for other in kernels]


class _Bench:
    """One kernel, shape and mode, against one rival after the other."""

    def __init__(self, kernel: Kernel, name: str, shape: Shape, mode: str, blocks: int, clocks: Clocks) -> None:
        self.kernel, self.name, self.shape, self.mode = kernel, name, shape, mode
        self.blocks, self.clocks = blocks * (EAGER_BLOCKS if mode == "eager" else 1), clocks
        self.device = kernel.variant.device
        self.seed = inputs.fresh_seeds(1)[0]
        self.sets = timing.places(shape, self.seed, self.device)

    def title(self, subject: str) -> str:
        """``mission``, ``mission/sdpa``, ``mission/cold``, ``mission/sdpa/cold``: kernel and first mode are unnamed."""
        primary = self.mode == timing.modes(self.device)[0]
        return "/".join(filter(None, (self.name, subject, "" if primary else self.mode)))

    def against(self, rivals: Sequence[Rival]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """(row, comparison) pairs: the kernel's own row with its A/A null, then each rival's."""
        ours = self._timer(self.kernel)
        twin = self._timer(self.kernel)
        null = self._measure(ours, twin)
        found = [(self._row(self.kernel.variant.name, "", ours, null.a), self._compare("", null))]
        for rival in rivals:
            with rival.context():
                theirs = self._timer(rival.subject)
                paired = self._measure(ours, theirs)
            if len(found) == 1:  # the kernel's own row is taken beside the first rival
                found[0] = (self._row(self.kernel.variant.name, "", ours, paired.a), found[0][1])
            found.append((self._row(rival.name, rival.name, theirs, paired.b), self._compare(rival.name, paired)))
        self._audit(ours)
        return found

    def _timer(self, subject: timing.Subject) -> timing.Timer:
        return timing.make(self.mode, subject, self.shape, self.sets)

    def _measure(self, a: timing.Timer, b: timing.Timer) -> Paired:
        samples: dict[int, list[list[float]]] = {0: [], 1: []}
        readings = []
        for number in range(self.blocks):
            block: dict[int, list[float]] = {0: [], 1: []}
            for side in ORDERS[number % 2]:
                timer = (a, b)[side]
                timer.lead_in()
                block[side] += [timer.sample() for _ in range(RUN)]
            for side, values in block.items():
                samples[side].append(values)
            reading = self.clocks.read()
            readings += [reading] if reading else []
        return Paired(np.array(samples[0]), np.array(samples[1]), readings)

    def _row(self, variant: str, subject: str, timer: timing.Timer, samples: np.ndarray) -> dict[str, Any]:
        flat = samples.reshape(-1)
        return {
            "name": self.title(subject),
            "variant": variant,
            "shape": self.shape.as_dict(),
            "mode": self.mode,
            "unit": "us",
            "launches_per_sample": timer.launches,
            "samples": [round(float(s), 3) for s in flat],
            "stats": stats.summary(flat),
        }

    def _compare(self, rival: str, paired: Paired) -> dict[str, Any]:
        return {
            "benchmark": self.title(""),
            "against": self.title(rival),
            "null": not rival,  # the kernel against itself
            "mode": self.mode,
            **stats.paired_ratio(paired.a, paired.b),
            "block_ratios": [round(float(r), 5) for r in paired.a.mean(axis=1) / paired.b.mean(axis=1)],
            "throttled_blocks": paired.throttled_blocks,
            "clocks": paired.clocks,
        }

    def _audit(self, timer: timing.Timer) -> None:
        """Whether the calls that were timed compute attention of what lies in their inputs now."""
        where = f"{self.kernel.variant.name} on {self.shape}, {self.mode}"
        if isinstance(timer, timing.Events):
            timed, late = timer.late_us()
            if late > LATE_US + LATE_SHARE * timed:
                raise AuditFailed(
                    f"{where}: the device worked {late:.0f} us on after the stop event",
                    cause="the kernel's work is not all on the stream that was timed, so its time means nothing",
                )
        for number, tensors in enumerate(timer.sets):
            fresh = inputs.draw(self.shape, self.seed + 1 + number % 3, self.device)
            for old, new in zip(tensors, fresh):  # noqa: B905 (Python 3.9)
                old.copy_(new)
        for tensors, out in timer.outputs():
            right = reference.attention64(*tensors)
            fault = tolerance(reference.sdpa(*tensors), right).refusal(measure(out, right))
            if fault:
                raise AuditFailed(
                    f"{where}: the timed calls gave wrong results: {fault}",
                    cause="inputs were replaced in place after the timing; a kernel must read them again at each call",
                    hint="python -m flashcore check " + self.kernel.variant.name,
                )
