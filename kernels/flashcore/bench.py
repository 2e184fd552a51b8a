"""Time a kernel against PyTorch in one process, so that the ratio can be trusted where the microseconds cannot.

Each pair is measured in blocks A B B A and B A A B, so that a drifting clock or a busy neighbour hits both sides alike;
the ratio is that of the blocks (:func:`flashcore.stats.paired_ratio`). The kernel is timed against itself in the same
way: that null must be 1 within its interval, or the method is not to be believed on this machine. After the timing
:mod:`flashcore.audit` looks whether what was timed was the work; a figure that did not survive this is never written.
Each of the kernel's and its rivals' rows says how far it is from this GPU's measured roofline.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flashcore import audit, documents, inputs, reference, roofline, stats, timing
from flashcore.clocks import Clocks
from flashcore.errors import AuditFailed
from flashcore.launch import Kernel
from flashcore.shapes import Shape

MIN_ITERATIONS = 100
#: A B B A, then B A A B: whoever comes first after the pause between blocks has no lasting disadvantage.
ORDERS = ((0, 1, 1, 0), (1, 0, 0, 1))
#: Samples in a row before the other side's turn.
RUN = 2
#: Times as many blocks in eager mode: single calls are short, and the processor that makes them is not quiet.
EAGER_BLOCKS = 4
#: What the figures mean; raised whenever they stop being comparable with older ones.
METHOD_VERSION = 2
#: Raw samples kept of each row, and unthrottled blocks that a ratio needs.
MAX_SAMPLES, MIN_BLOCKS = 2000, 5
#: PyTorch's math backend writes all scores to memory, several times over; it is not timed beyond this.
MAX_MATH_SCORES = 2**27
BOUNDED = "sdpa-math"


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
    def throttled(self) -> np.ndarray:
        """Which blocks ran on a throttled GPU."""
        if not self.clocks:
            return np.zeros(len(self.a), dtype=bool)
        return np.array([bool(c["throttled"]) for c in self.clocks])


Report = Callable[[dict[str, Any], dict[str, Any]], None]


def run(
    kernel: Kernel,
    shapes: Mapping[str, Shape],
    *,
    rivals: Sequence[Kernel] = (),
    backends: Sequence[str] | None = None,
    iterations: int = MIN_ITERATIONS,
    modes: Sequence[str] | None = None,
    ceilings: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Time ``kernel`` on every shape and mode; returns the ``benchmark`` document and the export for jq.

    ``backends`` limits PyTorch's implementations (all that work here by default; one at least). ``ceilings`` is a
    document of :mod:`flashcore.peaks`; on a GPU they are measured now if none is given. ``report`` hears each row with
    the comparison it came from.

    Raises:
        AuditFailed: the timed calls were not the work.
    """
    blocks = math.ceil(max(iterations, MIN_ITERATIONS) / (2 * RUN))
    chosen = tuple(modes) if modes else timing.modes(kernel.variant.device)
    ceilings = _ceilings(kernel, ceilings)
    rows: list[dict[str, Any]] = []
    comparisons: list[dict[str, Any]] = []
    audits: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    clocks = Clocks()
    environment = {**_environment(kernel, clocks), "peaks": ceilings["metrics"] if ceilings else None}
    for name, shape in shapes.items():
        for mode in chosen:
            against, missing = _rivals(kernel, shape, rivals, backends)
            bench = Bench(kernel, name, shape, mode, blocks, clocks)
            for row, comparison in bench.against(against):
                if ceilings:
                    row["roofline"] = roofline.distance(shape, mode, ceilings["metrics"], row["stats"]["p50"])
                rows.append(row)
                comparisons.append(comparison)
                if report:
                    report(row, comparison)
            audits.append({"benchmark": bench.title(""), "mode": mode, **bench.audit(ceilings)})
            skipped += [{"shape": name, "mode": mode, **reason} for reason in (*missing, *bench.skipped)]
    headline = "mission" if "mission" in shapes else next(iter(shapes))
    document = documents.document(
        "benchmark",
        method_version=METHOD_VERSION,
        variant=kernel.variant.name,
        label=kernel.built.label,
        configuration=kernel.built.document["configuration"],
        device=environment["device"],
        threads=torch.get_num_threads() if kernel.variant.device == "cpu" else None,
        torch=torch.__version__,
        environment=environment,
        config=shapes[headline].as_dict(),
        benchmarks=rows,
        comparisons=comparisons,
        fastest=fastest(comparisons),
        audits=audits,
        skipped=skipped,
    )
    return document, export(document, shapes)


def fastest(comparisons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The fastest of PyTorch's backends for each benchmark, with the kernel's time over it."""
    found: dict[str, dict[str, Any]] = {}
    for c in comparisons:
        if "/sdpa" not in c["against"]:
            continue
        best = found.get(c["benchmark"])
        if best is None or c["ratio"] > best["ratio"]:
            found[c["benchmark"]] = {k: c[k] for k in ("benchmark", "against", "mode", "ratio", "ci_low", "ci_high")}
    return list(found.values())


def null(kernel: Kernel, name: str, shape: Shape, mode: str, repeats: int) -> dict[str, Any]:
    """The comparison of ``kernel`` with itself, ``repeats`` times: does the method find the 1 that is there?

    covering_1: intervals that contain 1; inside_1pct: intervals within 0.99 to 1.01; both: of those that do both.
    """
    bench = Bench(kernel, name, shape, mode, math.ceil(MIN_ITERATIONS / (2 * RUN)), Clocks())
    found = [bench.null() for _ in range(repeats)]
    covering = [f["ci_low"] <= 1 <= f["ci_high"] for f in found]
    inside = [abs(f["ratio"] - 1) <= 0.01 for f in found]
    return {
        "repeats": repeats,
        "covering_1": sum(covering),
        "inside_1pct": sum(inside),
        "both": sum(c and i for c, i in zip(covering, inside)),  # noqa: B905 (Python 3.9)
        "worst": max((f["ratio"] for f in found), key=lambda r: abs(r - 1)),
        "widest": max(f["ci_high"] - f["ci_low"] for f in found),
    }


def _ceilings(kernel: Kernel, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if given is not None or kernel.variant.device != "cuda":
        return given
    from flashcore import peaks

    return peaks.run()


def _environment(kernel: Kernel, clocks: Clocks) -> dict[str, Any]:
    """Where the figures were taken."""
    cuda = kernel.variant.device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "driver": clocks.driver(),
        "clocks_before": clocks.read(),
    }


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


def _rivals(
    kernel: Kernel, shape: Shape, kernels: Sequence[Kernel], backends: Sequence[str] | None
) -> tuple[list[Rival], list[dict[str, str]]]:
    """The rivals for ``shape``, and which of PyTorch's are not timed, with the reason."""
    wanted = [n for n in reference.names(kernel.variant.device) if backends is None or n in backends]
    skipped = []
    if BOUNDED in wanted and shape.B * shape.H * shape.S * shape.keys > MAX_MATH_SCORES:
        wanted.remove(BOUNDED)
        skipped.append({"rival": BOUNDED, "reason": "it would write all scores of this shape to memory"})
    there = reference.available_backends(*inputs.draw(shape, 0, kernel.variant.device), wanted)
    skipped += [
        {"rival": n, "reason": "PyTorch does not offer it for these inputs here"} for n in wanted if n not in there
    ]
    theirs = [Rival(n, reference.sdpa, lambda n=n: reference.backend(n)) for n in there]  # type: ignore[misc]
    return theirs + [Rival(other.built.label, other) for other in kernels], skipped


class Bench:
    """One kernel, shape and mode, against one rival after the other."""

    def __init__(self, kernel: Kernel, name: str, shape: Shape, mode: str, blocks: int, clocks: Clocks) -> None:
        self.kernel, self.name, self.shape, self.mode = kernel, name, shape, mode
        self.blocks, self.clocks = blocks, clocks
        self.device = kernel.variant.device
        self.seed = inputs.fresh_seeds(1)[0]
        self.sets = timing.places(shape, self.seed, self.device)
        self.skipped: list[dict[str, str]] = []
        self._ours: timing.Timer | None = None
        self._p50 = math.inf

    def title(self, subject: str) -> str:
        """``mission``, ``mission/sdpa``, ``mission/cold``, ``mission/sdpa/cold``: kernel and first mode are unnamed."""
        primary = self.mode == timing.modes(self.device)[0]
        return "/".join(filter(None, (self.name, subject, "" if primary else self.mode)))

    def against(self, rivals: Sequence[Rival]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """(row, comparison) pairs: the kernel's own row with its A/A null, then each rival's."""
        ours = self._timer(self.kernel)
        paired = self._measure(ours, self._timer(self.kernel))
        found = [(self._row(self.kernel.built.label, "", ours, paired.a), self._compare("", paired))]
        for rival in rivals:
            with rival.context():
                try:
                    theirs = timing.make(self.mode, rival.subject, self.shape, self.sets)
                except AuditFailed as e:  # a backend that synchronises cannot be captured; it is timed in eager mode
                    self.skipped.append({"rival": rival.name, "reason": f"{e.message}: {e.cause}"})
                    continue
                paired = self._measure(ours, theirs)
            if len(found) == 1:  # the kernel's own row is taken beside the first rival
                found[0] = (self._row(self.kernel.built.label, "", ours, paired.a), found[0][1])
            found.append((self._row(rival.name, rival.name, theirs, paired.b), self._compare(rival.name, paired)))
        self._ours, self._p50 = ours, found[0][0]["stats"]["p50"]
        return found

    def null(self) -> dict[str, Any]:
        """The kernel against itself, once, with timers of their own."""
        return self._compare("", self._measure(self._timer(self.kernel), self._timer(self.kernel)))

    def audit(self, ceilings: Mapping[str, Any] | None) -> dict[str, Any]:
        """Look whether what :meth:`against` timed was the work (:mod:`flashcore.audit`).

        Raises:
            AuditFailed: it was not.
        """
        assert self._ours is not None, "nothing was timed yet"  # noqa: S101
        if (
            ceilings
            and self.mode != "eager"
            and roofline.impossible(self.shape, self.mode, ceilings["metrics"], self._p50)
        ):
            raise self._refused(AuditFailed(f"{self._p50:.2f} us is less than this GPU's tensor cores need"))
        try:
            return audit.examine(self.kernel, self._ours, self.shape, self.seed)
        except AuditFailed as e:
            raise self._refused(e) from e

    def _timer(self, subject: timing.Subject) -> timing.Timer:
        try:
            return timing.make(self.mode, subject, self.shape, self.sets)
        except AuditFailed as e:
            raise self._refused(e) from e

    def _refused(self, fault: AuditFailed) -> AuditFailed:
        where = f"{self.kernel.built.label} on {self.shape}, {self.mode}"
        return AuditFailed(f"{where}: {fault.message}", cause=fault.cause, hint=fault.hint)

    def _measure(self, a: timing.Timer, b: timing.Timer) -> Paired:
        samples: dict[int, list[list[float]]] = {0: [], 1: []}
        readings = []
        brief = self.mode == "eager" and max(a.sample(), b.sample()) < timing.LONG_US
        for number in range(self.blocks * (EAGER_BLOCKS if brief else 1)):
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
            "launches": timer.launches * int(flat.size),
            "samples": [round(float(s), 3) for s in flat[:MAX_SAMPLES]],
            "stats": stats.summary(flat),
        }

    def _compare(self, rival: str, paired: Paired) -> dict[str, Any]:
        throttled = paired.throttled
        steady = ~throttled
        unthrottled = None
        if throttled.any() and steady.sum() >= MIN_BLOCKS:
            unthrottled = stats.paired_ratio(paired.a[steady], paired.b[steady])
        return {
            "benchmark": self.title(""),
            "against": self.title(rival),
            "null": not rival,  # the kernel against itself
            "mode": self.mode,
            **stats.paired_ratio(paired.a, paired.b),
            "block_ratios": [round(float(r), 5) for r in paired.a.mean(axis=1) / paired.b.mean(axis=1)],
            "throttled_blocks": int(throttled.sum()),
            "unthrottled": unthrottled,
            "clocks": paired.clocks,
        }
