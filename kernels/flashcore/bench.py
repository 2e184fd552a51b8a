"""Time a kernel against PyTorch in turns, so that the ratio can be trusted where the microseconds cannot.

Neither is in this process, which has the inputs, the clock and the verdict (:mod:`flashcore.sampling`).
Each pair is measured in blocks A B B A and B A A B, so that a drifting clock or a busy neighbour hits both sides alike.
The blocks belong to replicates: each has buffers in another place and graphs of its own, whose capture order, and in
cold mode whose buffers, the two sides exchange from one replicate to the next. The ratio and its interval are those of
the replicates (:func:`flashcore.stats.paired_ratio`). The kernel is timed against itself in the same way: that null
must be 1 within its interval, or the method is not to be believed on this machine; what it shows is the ``floor`` under
the width of every other interval of the same shape and mode. After the timing :mod:`flashcore.audit` looks whether what
was timed was the work; a figure that did not survive this is never written. Each row has its distance to the roofline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flashcore import advice, audit, documents, peaks, reference, roofline, sampling, separate, stats, timing
from flashcore.clocks import Clocks
from flashcore.errors import AuditFailed, LaunchFailed
from flashcore.separate import Kernel
from flashcore.shapes import Shape
from flashcore.tuned import Tuned

MIN_ITERATIONS = 100
#: A B B A, then B A A B: whoever comes first after the pause between blocks has no lasting disadvantage.
ORDERS = ((0, 1, 1, 0), (1, 0, 0, 1))
#: Samples in a row before the other side's turn.
RUN, EAGER_RUN = 2, 4
#: Independent repetitions of a comparison, an even number: each order of capture as often as the other.
REPLICATES = timing.PLACES
#: Replicates whose timers the audit looks at.
AUDITED = (0, REPLICATES // 2, REPLICATES - 1)
#: Times as many blocks in eager mode: the processor is disturbed for milliseconds on end, and 4 times were not enough.
EAGER_BLOCKS = 8
#: What the figures mean; raised whenever they stop being comparable with older ones.
METHOD_VERSION = 4
#: Raw samples kept of each row, and unthrottled replicates that a ratio needs.
MAX_SAMPLES, MIN_REPLICATES = 2000, 5
#: PyTorch's math backend writes all scores to memory, several times over; it is not timed beyond so many.
BOUNDED, MAX_MATH_SCORES = "sdpa-math", 2**27


@dataclass(frozen=True)
class Rival:
    """What the kernel is compared with: a PyTorch backend or another variant."""

    name: str
    subject: separate.Subject


@dataclass(frozen=True)
class Paired:
    a: np.ndarray  # [replicates, blocks, samples per block], us
    b: np.ndarray
    clocks: list[dict[str, Any]]  # one reading per block, empty without a GPU

    @property
    def throttled(self) -> np.ndarray:
        """[replicates, blocks]: which blocks ran on a throttled GPU."""
        if not self.clocks:
            return np.zeros(self.a.shape[:2], dtype=bool)
        return np.array([bool(c["throttled"]) for c in self.clocks]).reshape(self.a.shape[:2])


Report = Callable[[dict[str, Any], dict[str, Any]], None]
Pair = tuple[sampling.Timer, sampling.Timer]


def run(
    kernel: Kernel | Tuned,
    shapes: Mapping[str, Shape],
    *,
    rivals: Sequence[Kernel | Tuned] = (),
    backends: Sequence[str] | None = None,
    iterations: int = MIN_ITERATIONS,
    modes: Sequence[str] | None = None,
    ceilings: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Time ``kernel`` on every shape and mode; returns the ``benchmark`` document and the export for jq.

    ``backends`` limits PyTorch's implementations (all that work here by default; one at least). ``ceilings`` is a
    document of :mod:`flashcore.peaks`; on a GPU they are measured now if none is given. Calls ``report`` with each
    row and its comparison.

    Raises:
        AuditFailed: the timed calls were not the work.
    """
    blocks = blocks_for(iterations)
    chosen = tuple(modes) if modes else timing.modes(kernel.variant.device)
    if ceilings is None:
        ceilings = peaks.run() if kernel.variant.device == "cuda" else peaks.processor()
    theirs = separate.Runner(kernel.variant.device, trusted=True)
    rows: list[dict[str, Any]] = []
    comparisons: list[dict[str, Any]] = []
    audits: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    clocks = Clocks()
    environment = {**_environment(kernel, clocks), "peaks": ceilings["metrics"]}
    for name, shape in shapes.items():
        for mode in chosen:
            against, missing = _rivals(kernel, shape, rivals, backends, theirs)
            bench = Bench(kernel.for_shape(shape), name, shape, mode, blocks, clocks)
            for row, comparison in bench.against(against):
                row["roofline"] = roofline.distance(shape, mode, ceilings["metrics"], row["stats"]["p50"])
                if comparison["null"]:  # the kernel's own row
                    row["grade"] = advice.grade_of(row, name, environment["device"])
                rows.append(row)
                comparisons.append(comparison)
                if report:
                    report(row, comparison)
            audits.append({"benchmark": bench.title(""), "mode": mode, **bench.audit(ceilings)})
            skipped += [{"shape": name, "mode": mode, **reason} for reason in (*missing, *bench.skipped)]
    theirs.close()
    headline = "mission" if "mission" in shapes else next(iter(shapes))
    document = documents.document(
        "benchmark",
        method_version=METHOD_VERSION,
        variant=kernel.variant.name,
        label=kernel.label,
        configuration=kernel.for_shape(shapes[headline]).built.configuration,
        parameters_from=_parents(kernel, shapes),
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
    return document, documents.export(document, shapes)


def _parents(kernel: Kernel | Tuned, shapes: Mapping[str, Shape]) -> list[str]:
    """The runs whose figures chose the configurations."""
    choices = [kernel.choice(shape) for shape in shapes.values()] if isinstance(kernel, Tuned) else []
    return sorted({choice.run for choice in choices if choice.run})


def blocks_for(iterations: int) -> int:
    """Blocks of each replicate for ``iterations`` samples per side, an even number: as many A B B A as B A A B."""
    return 2 * math.ceil(max(iterations, MIN_ITERATIONS) / (REPLICATES * 2 * 2 * RUN))


def fastest(comparisons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The fastest of PyTorch's backends for each benchmark, with the kernel's time over it."""
    found: dict[str, dict[str, Any]] = {}
    for c in comparisons:
        if not any(f"/{name}" in c["against"] for name in ("sdpa", reference.FLEX)):
            continue
        best = found.get(c["benchmark"])
        if best is None or c["ratio"] > best["ratio"]:
            found[c["benchmark"]] = {k: c[k] for k in ("benchmark", "against", "mode", "ratio", "ci_low", "ci_high")}
    return list(found.values())


def null(kernel: Kernel | Tuned, name: str, shape: Shape, mode: str, repeats: int) -> dict[str, Any]:
    """The comparison of ``kernel`` with itself, ``repeats`` times: does the method find the 1 that is there?

    As with a rival, the intervals are not narrower than the floor of one null of the run, one measured before these.
    covering_1: intervals that contain 1; covering_1_unfloored: without that floor; inside_1pct: ratios within 1 % of 1;
    both: of those that are inside and whose interval contains 1.
    """
    bench = Bench(kernel.for_shape(shape), name, shape, mode, blocks_for(MIN_ITERATIONS), Clocks())
    floor = stats.floor_of(bench.null_and_floored(0.0)[0])
    pairs = [bench.null_and_floored(floor) for _ in range(repeats)]
    found = [floored for _, floored in pairs]
    covering = [_contains_1(f) for f in found]
    inside = [abs(f["ratio"] - 1) <= 0.01 for f in found]
    return {
        "repeats": repeats,
        "floor": floor,
        "covering_1": sum(covering),
        "covering_1_unfloored": sum(_contains_1(plain) for plain, _ in pairs),
        "inside_1pct": sum(inside),
        "both": sum(c and i for c, i in zip(covering, inside)),  # noqa: B905 (Python 3.9)
        "worst": max((f["ratio"] for f in found), key=lambda r: abs(r - 1)),
        "widest": max(f["ci_high"] - f["ci_low"] for f in found),
    }


def _contains_1(comparison: Mapping[str, Any]) -> bool:
    return bool(comparison["ci_low"] <= 1 <= comparison["ci_high"])


def _environment(kernel: Kernel | Tuned, clocks: Clocks) -> dict[str, Any]:
    """Where the figures were taken."""
    cuda = kernel.variant.device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "driver": clocks.driver(),
        "clocks_before": clocks.read(),
    }


def _rivals(
    kernel: Kernel | Tuned,
    shape: Shape,
    kernels: Sequence[Kernel | Tuned],
    backends: Sequence[str] | None,
    runner: separate.Runner,
) -> tuple[list[Rival], list[dict[str, str]]]:
    """The rivals for ``shape``, and which of PyTorch's are not timed, with the reason."""
    device = kernel.variant.device
    wanted = [n for n in reference.names(device, shape) if backends is None or n in backends]
    skipped = []
    if BOUNDED in wanted and shape.B * shape.H * shape.S * shape.keys > MAX_MATH_SCORES:
        wanted.remove(BOUNDED)
        skipped.append({"rival": BOUNDED, "reason": "this backend would write all scores of this shape to memory"})
    there = reference.available_backends(shape, device, wanted)
    skipped += [
        {"rival": n, "reason": "PyTorch does not offer this backend for these inputs on this machine"}
        for n in wanted
        if n not in there
    ]
    theirs = [Rival(n, runner.backend(n)) for n in there]
    return theirs + [Rival(other.label, other.for_shape(shape)) for other in kernels], skipped


class Bench:
    """One kernel, shape and mode, against one rival after the other."""

    def __init__(self, kernel: Kernel, name: str, shape: Shape, mode: str, blocks: int, clocks: Clocks) -> None:
        self.kernel, self.name, self.shape, self.mode = kernel, name, shape, mode
        self.blocks, self.clocks = blocks, clocks
        self.device = kernel.variant.device
        self.sets = sampling.places(shape, self.device, mode)
        self.skipped: list[dict[str, str]] = []
        self._kept = sampling.Reservoir()
        self._audited: list[sampling.Timer] = []
        self._p50 = math.inf

    def title(self, subject: str) -> str:
        """``mission``, ``mission/sdpa``, ``mission/cold``, ``mission/sdpa/cold``: kernel and first mode are unnamed."""
        primary = self.mode == timing.modes(self.device)[0]
        return "/".join(filter(None, (self.name, subject, "" if primary else self.mode)))

    def against(self, rivals: Sequence[Rival]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """(row, comparison) pairs: the kernel's own row with its A/A null, then each rival's."""
        ours = self._source(self.kernel, self._kept)
        paired = self._measure(ours, ours)
        null = self._compare("", paired)
        floor = stats.floor_of(null)
        found = [(self._own(ours, paired.a), null)]
        for rival in rivals:
            try:
                theirs = self._source(rival.subject)
                theirs.timer(0, 1)
            except (AuditFailed, LaunchFailed) as e:
                # A backend that synchronises is not captured, but timed in eager mode; FlexAttention may not compile.
                if rival.name not in reference.BACKENDS:
                    raise
                self.skipped.append({"rival": rival.name, "reason": f"{e.message}: {e.cause}"})
                continue
            paired = self._measure(ours, theirs)
            if len(found) == 1:  # the kernel's own row is taken beside the first rival
                found[0] = (self._own(ours, paired.a), null)
            found.append(
                (self._row(rival.name, rival.name, theirs, paired.b), self._compare(rival.name, paired, floor))
            )
        self._p50 = found[0][0]["stats"]["p50"]
        return found

    def null_and_floored(self, floor: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """The kernel against itself, once; the same samples with an interval that is not narrower than ``floor``."""
        source = self._source(self.kernel)
        paired = self._measure(source, source)
        return self._compare("", paired), self._compare("", paired, floor)

    def audit(self, ceilings: Mapping[str, Any]) -> dict[str, Any]:
        """Check that what :meth:`against` timed was the work (:mod:`flashcore.audit`); raises AuditFailed otherwise."""
        assert self._audited, "nothing was measured yet"  # noqa: S101
        try:
            found: dict[str, Any] = {}
            for timer in self._audited:
                found.update(timer.audit())
            if self.device == "cuda":
                found["least_us"] = sampling.refuse_impossible(self.kernel, self.shape, self.mode, self._p50)
            built, kept = self.kernel.built, self._kept.all()
            found["outputs_checked"] = audit.outputs(built.variant, kept, built.configuration, self.shape)
            # Last: a kernel that leaves work out is too fast as well, and its wrong results say more.
            bits = {"": 16, "qk": 12, "all": 8}[self.kernel.variant.eight_bits]
            if roofline.impossible(self.shape, self.mode, ceilings["metrics"], self._p50, bits):
                raise AuditFailed(f"{self._p50:.2f} us is less than this machine needs for the arithmetic")
            return found
        except AuditFailed as e:
            raise self._refused(e) from e

    def _source(self, subject: separate.Subject, kept: sampling.Reservoir | None = None) -> sampling.Source:
        return sampling.Source(self.mode, subject, self.sets, kept)

    def _pair(self, a: sampling.Source, b: sampling.Source, replicate: int) -> Pair:
        """The two timers of a replicate; who is captured first, and gets the memory there is first, alternates."""
        try:
            if replicate % 2:
                second = b.timer(replicate, 1)
                return a.timer(replicate, 0), second
            return a.timer(replicate, 0), b.timer(replicate, 1)
        except AuditFailed as e:
            raise self._refused(e) from e

    def _refused(self, fault: AuditFailed) -> AuditFailed:
        where = f"{self.kernel.built.label} on {self.shape}, {self.mode}"
        return AuditFailed(f"{where}: {fault.message}", cause=fault.cause, hint=fault.hint)

    @reference.one_thread()
    def _measure(self, a: sampling.Source, b: sampling.Source) -> Paired:
        """Time ``a``, the kernel, against ``b``; the timers that :data:`AUDITED` names are kept."""
        samples: dict[int, list[list[list[float]]]] = {0: [], 1: []}
        readings = []
        self._audited = []
        brief = self.mode == "eager" and max(a.call_us, b.call_us) < timing.LONG_US
        blocks, run = (self.blocks * EAGER_BLOCKS, EAGER_RUN) if brief else (self.blocks, RUN)
        for replicate in range(REPLICATES):
            pair = self._pair(a, b, replicate)
            self._audited += [pair[0]] if replicate in AUDITED else []
            for values in samples.values():
                values.append([])
            for number in range(blocks):
                block = self._block(pair, ORDERS[(number + replicate // 2) % 2], run)
                for side, taken in enumerate(block):
                    samples[side][-1].append(taken)
                reading = self.clocks.read()
                readings += [reading] if reading else []
        return Paired(np.array(samples[0]), np.array(samples[1]), readings)

    @staticmethod
    def _block(pair: Pair, order: Sequence[int], run: int) -> tuple[list[float], list[float]]:
        taken: tuple[list[float], list[float]] = ([], [])
        for side in order:
            pair[side].lead_in()
            taken[side].extend(pair[side].sample() for _ in range(run))
        return taken

    def _own(self, source: sampling.Source, samples: np.ndarray) -> dict[str, Any]:
        row = self._row(self.kernel.label, "", source, samples)
        return {**row, "configuration": self.kernel.built.configuration}

    def _row(self, variant: str, subject: str, source: sampling.Source, samples: np.ndarray) -> dict[str, Any]:
        flat = samples.reshape(-1)
        return {
            "name": self.title(subject),
            "variant": variant,
            "shape": self.shape.as_dict(),
            "mode": self.mode,
            "unit": "us",
            "launches_per_sample": source.launches,
            "launches": source.launches * int(flat.size),
            "samples": [round(float(s), 3) for s in flat[:MAX_SAMPLES]],
            "stats": stats.summary(flat),
        }

    def _compare(self, rival: str, paired: Paired, floor: float | None = None) -> dict[str, Any]:
        throttled = paired.throttled
        steady = ~throttled.any(axis=1)
        least = floor or 0.0
        unthrottled = None
        if throttled.any() and steady.sum() >= MIN_REPLICATES:
            unthrottled = stats.paired_ratio(paired.a[steady], paired.b[steady], floor=least)
        ratios = stats.block_ratios(paired.a, paired.b)
        return {
            "benchmark": self.title(""),
            "against": self.title(rival),
            "null": not rival,  # the kernel against itself
            "mode": self.mode,
            **stats.paired_ratio(paired.a, paired.b, floor=least),
            "floor": floor,
            "replicates": len(ratios),
            "block_ratios": [round(float(r), 5) for r in ratios.reshape(-1)],
            "throttled_blocks": int(throttled.sum()),
            "unthrottled": unthrottled,
            "clocks": paired.clocks,
        }
