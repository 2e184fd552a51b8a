"""Every tiling that a library chooses from, forced one by one (``Variant.tilings``): a choice by shape launches few.

Each is checked on lengths beside tile sizes, on both sides, with and without a causal mask; many steps and many blocks;
shared heads of keys; hostile values and other scales; strided inputs and outputs; and must give the same bits again.
Those that take masks are checked on them, too: padding on either side with hostile lengths, holes, masks of rows and
heads, a causal mask whose diagonal ends in the lower right corner; those that change scores: windows, caps, slopes.
Inputs and what they must give are computed once for all tilings of a type and head dimension.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from flashcore.errors import FlashcoreError
from flashcore.extras import ANY, LOWER_RIGHT, Scores
from flashcore.shapes import Shape
from flashcore.variant import Variant

if TYPE_CHECKING:
    import torch

    from flashcore.cases import Trial
    from flashcore.launch import Kernel

Report = Callable[[dict[str, Any]], None]

#: S_q and S_kv.
TAILS = ((1, 1), (1, 300), (130, 1), (17, 129), (65, 63), (129, 257), (300, 77), (77, 300))
#: For a sanitizer, which watches each instruction: B, H, S_q, heads of keys, S_kv; the last one has several steps for
#: each group of any tiling.
WATCHED = ((1, 2, 65, 2, 65), (2, 4, 33, 2, 130), (1, 1, 70, 1, 1100))
REPEATS = 3
_NAME = re.compile(r"(\d+)x(\d+)x(\d+),(\d+),(\d+)p?s?t?q?m?c?w?")
#: Bytes of shared memory that a block may have, by compute capability; others: the last (csrc/flagship.cuh).
SHARED = {(8, 0): 163, (8, 7): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (10, 3): 227}
LEAST = 99
#: In a variant of several libraries the first number of those that take masks (csrc/flagship_choice.cuh).
MASKED_FROM = 101
#: A number that no library has.
BEYOND = 10_000


class Sizes(NamedTuple):
    rows: int
    warp_rows: int
    keys: int
    groups: int
    stages: int


@dataclass(frozen=True)
class Tiling:
    number: int  # among those of its type and head dimension, as the library counts them
    dtype: str
    D: int
    name: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.D} {self.name}"

    @property
    def _sizes(self) -> list[Sizes]:
        """Of the tiling and, if it has one, of the second tiling for the last blocks; none for a number of splits."""
        found = [_NAME.fullmatch(one) for one in self.name.split("+")]
        return [Sizes(*map(int, one.groups())) for one in found if one]

    @property
    def masked(self) -> bool:
        """Whether it takes masks."""
        return self.name.endswith(("m", "mc"))

    @property
    def scored(self) -> bool:
        """Whether it takes windows, caps and slopes."""
        return self.name.endswith("c")

    @property
    def windowed(self) -> bool:
        """Whether it takes windows, but neither masks, nor caps and slopes."""
        return self.name.endswith("w")

    def takes(self, case: Case) -> bool:
        """Numbers of splits take a causal mask to the lower right corner, and windows that end there, but no others."""
        if self.windowed:
            return not (case.mask or case.softcap or case.alibi)
        lower_right = self.masked or not self._sizes
        window = Scores(case.window, case.softcap).needs(case.causal) == "window" and not case.alibi
        scored = self.scored or not case.scored or (window and not self._sizes)
        return scored and (self.masked or not case.mask) and (lower_right or case.causal != LOWER_RIGHT)

    @property
    def warps(self) -> int:
        rows, warp_rows, _, groups, _ = self._sizes[0]
        return rows // warp_rows * groups

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: kSharedBytes of flagship_tiling.cuh."""
        return max(self._shared)

    @property
    def _shared(self) -> list[int]:
        return [
            2 * self.D * rows + (8 * groups * rows if groups > 1 else 0) + 4 * groups * stages * keys * self.D
            for rows, _, keys, groups, stages in self._sizes
        ]

    @property
    def least_shared(self) -> int:
        """The shared memory per block, in bytes, that a device must allow for this tiling: kLeastShared in C++. 0 where
        the name does not tell sizes: that of a number of splits (csrc/decode.cu), which fit any."""
        if not self._sizes:
            return 0
        first = self._sizes[0]
        large = ("q" in self.name and first.warp_rows > 16) or self.shared > self._shared[0]
        return max(self.shared, 100 * 1024) if large else self.shared

    def fits(self, capability: tuple[int, int]) -> bool:
        return self.least_shared <= SHARED.get(capability, LEAST) * 1024


def of(variant: Variant) -> list[Tiling]:
    return [one for dtype, D in variant.tilings for one in among(variant, dtype, D)]


def among(variant: Variant, dtype: str, D: int) -> list[Tiling]:
    """Those of a type and head dimension."""
    plain, with_masks = itertools.count(1), itertools.count(MASKED_FROM)
    found = []
    for name in variant.tilings[dtype, D]:
        apart = len(variant.libraries) > 1 and name.endswith("m")
        found.append(Tiling(next(with_masks if apart else plain), dtype, D, name))
    return found


def chosen_from(kernel: Kernel) -> list[Tiling]:
    """Those of this library, which is one that chooses, or none."""
    variant = kernel.variant
    return of(variant) if variant.tilings and kernel.built.configuration == variant.configure() else []


# ------------------------------------------------------------------------------------------------ check
@dataclass(frozen=True)
class Case:
    label: str
    shape: Shape
    values: str = "plain"
    causal: int = False
    heads: int = 0  # of K and V; 0: as of Q
    scale: float | None = None
    layout: str = ""  # of Q, K, V and the output: packed, sliced, [B,S,H,D]
    repeats: int = 1
    mask: str = ""  # one of inputs.MASKS
    window: tuple[int, int] = ANY  # here and below: of flashcore.extras.Scores
    softcap: float = 0.0
    alibi: bool = False

    @property
    def scored(self) -> bool:
        return self.window != ANY or self.softcap > 0 or self.alibi

    def options(self, seed: int, device: str) -> dict[str, Any]:
        from flashcore import inputs

        found: dict[str, Any] = {"causal": self.causal} | ({} if self.scale is None else {"scale": self.scale})
        found |= {"mask": inputs.mask(self.mask, self.shape, seed, device)} if self.mask else {}
        slopes = inputs.slopes(self.shape.H, device) if self.alibi else None
        return found | ({"scores": Scores(self.window, self.softcap, slopes)} if self.scored else {})


def cases(D: int) -> Iterator[Case]:
    from flashcore.cases import HOSTILE

    for causal in (False, True):
        for S_q, S_kv in TAILS:
            yield Case("tails", Shape(1, 3, S_q, D, S_kv), causal=causal)
        yield Case("many steps", Shape(1, 2, 1025, D), causal=causal, repeats=REPEATS)
        yield Case("many blocks", Shape(3, 16, 200, D), causal=causal)
        yield Case("shared heads", Shape(2, 6, 100, D, 130), causal=causal, heads=2)
        yield Case("few queries", Shape(2, 12, 3, D, 700), causal=causal, heads=3)
        for layout in ("[B,S,H,D]", "packed", "sliced"):
            yield Case(layout, Shape(2, 4, 130, D), causal=causal, layout=layout)
        for values in HOSTILE:
            yield Case(values, Shape(1, 4, 320, D), values, causal=causal)
    for scale in (0.03, 0.3, -0.3):
        yield Case("scale", Shape(1, 4, 320, D), scale=scale)
    for heads in (1, 2, 5):
        yield Case("one query", Shape(2, 10, 1, D, 1000), heads=heads, layout="[B,S,H,D]", repeats=REPEATS)
    yield from _with_masks(D)
    yield from _with_scores(D)


def _with_masks(D: int) -> Iterator[Case]:
    from flashcore.inputs import MASKS

    for S_q, S_kv in TAILS:
        yield Case("lower right", Shape(1, 3, S_q, D, S_kv), causal=LOWER_RIGHT)
    yield Case("lower right", Shape(1, 2, 500, D, 1025), causal=LOWER_RIGHT, repeats=REPEATS)
    yield Case("few queries", Shape(2, 12, 3, D, 700), causal=LOWER_RIGHT, heads=3)
    for mask, causal, S_kv in itertools.product(MASKS, (False, LOWER_RIGHT), (192, 201)):  # 16 bytes at once, or not
        yield Case(mask, Shape(7, 2, 70, D, S_kv), causal=causal, mask=mask)
    yield Case("many steps", Shape(7, 2, 33, D, 1040), mask="left", repeats=REPEATS)
    yield Case("shared heads", Shape(2, 6, 100, D, 130), causal=LOWER_RIGHT, heads=2, mask="heads", layout="[B,S,H,D]")
    yield Case("hot_row", Shape(2, 2, 320, D), "hot_row", mask="holes", scale=-0.3)


def _with_scores(D: int) -> Iterator[Case]:
    from flashcore.cases import HOSTILE

    windows = itertools.cycle(((0, 0), (1, 5), (64, 0), (100, -1), (-1, 20), (10_000, 10_000), (63, 64)))
    for causal, (S_q, S_kv) in itertools.product((False, False, True, LOWER_RIGHT), TAILS):
        yield Case("window", Shape(1, 2, S_q, D, S_kv), causal=causal, window=next(windows))
    for values in HOSTILE:
        yield Case(values, Shape(1, 4, 320, D), values, softcap=30.0, scale=-0.3)
        yield Case(values, Shape(1, 4, 320, D), values, causal=True, window=(70, 0), alibi=True)
    for width, keys in itertools.product((0, 100, 1500), (700, 2100)):
        yield Case("window", Shape(2, 12, 3, D, keys), causal=LOWER_RIGHT, heads=3, window=(width, 0))
    yield Case("shared heads", Shape(2, 6, 100, D, 130), heads=2, softcap=2.0, alibi=True, layout="[B,S,H,D]")
    yield Case("many steps", Shape(1, 2, 1025, D), window=(300, 200), softcap=50.0, alibi=True, repeats=REPEATS)
    for mask in ("left", "rows"):
        yield Case(mask, Shape(7, 2, 70, D, 192), causal=LOWER_RIGHT, mask=mask, window=(40, 0), softcap=5.0)


def run(kernel: Kernel, seed: int, report: Report | None = None) -> list[dict[str, Any]]:
    """One entry for each tiling of ``kernel``, with status passed, failed or unavailable (not for this GPU, and refused
    by the library) and the worst of its launches. Calls ``report`` with each."""
    capability = _capability(kernel)
    found = []
    for dtype, D in kernel.variant.tilings:
        tilings = among(kernel.variant, dtype, D)
        usable = [one for one in tilings if one.fits(capability)]
        worst = _judged(kernel, usable, seed)
        beyond = _refusal(kernel.forced(BEYOND), dtype, D)
        for one in tilings:
            entry = {"name": one.name, "dtype": dtype, "D": D, "number": one.number}
            if one in usable:
                entry |= _entry(*worst[one], "" if beyond else "a tiling that does not exist ran")
            else:
                refused = _refusal(kernel.forced(one.number), dtype, D)
                status = "unavailable" if refused else "failed"
                message = f"needs {one.least_shared} bytes of shared memory a block" + ("" if refused else ", but ran")
                entry |= {"status": status, "message": message, "launches": 0, "used": None}
            found.append(entry)
            if report:
                report(entry)
    return found


def _capability(kernel: Kernel) -> tuple[int, int]:
    import torch

    return torch.cuda.get_device_capability() if kernel.variant.device == "cuda" else (0, 0)


def counted(entries: Sequence[dict[str, Any]]) -> dict[str, int]:
    states = [entry["status"] for entry in entries]
    return {"total": len(states), **{s: states.count(s) for s in ("passed", "failed", "unavailable")}}


def _entry(worst: Trial, launches: int, lie: str) -> dict[str, Any]:
    where = f"{worst.label}, shape {worst.shape}"
    fault = worst.fault or lie
    return {
        "status": "failed" if fault else "passed",
        "message": f"{where}: {fault}" if fault else f"worst: {where}",
        "launches": launches,
        "used": round(worst.used, 4) if worst.used < float("inf") else None,
        **(
            {k: v for k, v in asdict(worst.error).items() if k in ("max_err", "rel_rms", "gain")} if worst.error else {}
        ),
    }


def _judged(kernel: Kernel, tilings: Sequence[Tiling], seed: int) -> dict[Tiling, tuple[Trial, int]]:
    """The worst launch of each, and how many it had."""
    from flashcore.reference import expected_of

    forced = {one: kernel.forced(one.number) for one in tilings}
    worst: dict[Tiling, tuple[Trial, int]] = {}
    for at, case in enumerate(cases(tilings[0].D) if tilings else ()):
        if not any(one.takes(case) for one in tilings):
            continue
        tensors = _tensors(case, tilings[0].dtype, kernel.variant.device, seed + at)
        options = case.options(seed + at, kernel.variant.device)
        known = expected_of(kernel.variant, tensors, kernel.built.configuration, **options)
        for one in tilings:
            if not one.takes(case):
                continue
            trial = _launched(forced[one], case, tensors, known, options)
            before, launches = worst.get(one, (trial, 0))
            worst[one] = max(before, trial, key=lambda t: t.badness), launches + case.repeats
    return worst


def _tensors(case: Case, dtype: str, device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    from flashcore import inputs

    shape = case.shape
    if case.layout == "sliced":
        shape = Shape(shape.B, shape.H, shape.S + 9, shape.D)
    q, k, v = inputs.draw(shape, seed, device, case.values, dtype=getattr(torch, dtype), heads=case.heads)
    if case.layout == "sliced":
        q, k, v = (x[:, :, 5 : 5 + case.shape.S] for x in (q, k, v))
    elif case.layout == "packed":
        q, k, v = torch.stack((q, k, v), dim=2).permute(2, 0, 1, 3, 4).unbind(0)
    elif case.layout:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    return q, k, v


def _launched(kernel: Kernel, case: Case, tensors: Any, known: Any, options: dict[str, Any]) -> Trial:
    import torch

    from flashcore import guarded

    first: torch.Tensor | None = None
    trials = []
    for _ in range(case.repeats):
        target = guarded.Guarded(
            case.shape, kernel.variant.device, case.layout != "packed" and bool(case.layout), tensors[0].dtype
        )
        trial = guarded.judge(kernel, case.label, case.shape, tensors, target, known, **options)
        first = target.out if first is None else first
        if trial.fault is None and not torch.equal(first, target.out):
            trial = replace(trial, fault="different bits for the same inputs")
        trials.append(trial)
    return max(trials, key=lambda t: t.badness)


def _refusal(kernel: Kernel, dtype: str, D: int) -> str:
    """Why a launch is refused, or nothing."""
    import torch

    from flashcore import inputs

    tensors = inputs.draw(Shape(1, 1, 16, D), 0, kernel.variant.device, dtype=getattr(torch, dtype))
    try:
        kernel(*tensors)
    except FlashcoreError as e:
        return str(e)
    return ""


# ------------------------------------------------------------------------------------------------ for a sanitizer
def launches(kernel: Kernel) -> int:
    """Launch every tiling that this GPU can run, on small odd shapes, for a sanitizer to watch; returns how often."""
    import torch

    from flashcore import inputs

    capability = _capability(kernel)
    count = 0
    for one in chosen_from(kernel):
        if not one.fits(capability):
            continue
        forced = kernel.forced(one.number)
        for number, (B, H, S, heads, S_kv) in enumerate(WATCHED):
            shape = Shape(B, H, S, one.D, S_kv)
            tensors = inputs.draw(shape, number, kernel.variant.device, dtype=getattr(torch, one.dtype), heads=heads)
            turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]
            forced(*tensors)
            forced(*turned, causal=True)
            count += 2
            if one.scored or one.windowed:
                capped = (5.0, inputs.slopes(H, kernel.variant.device)) if one.scored else ()
                forced.extended((Scores((20, 3), *capped),), *tensors)
                count += 1
            for mask in inputs.MASKS if one.masked else ():
                forced(*tensors, causal=LOWER_RIGHT, mask=inputs.mask(mask, shape, number, kernel.variant.device))
                count += 1
    return count
