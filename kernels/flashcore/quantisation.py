"""What 8-bit operands cost in accuracy, without building a kernel for each idea: attention simulated on a processor.

    python -m flashcore.quantisation [--lengths 512,2048,8192]

Rounding is exact (signed bytes, E4M3 to nearest and saturating, FP16), sums are FP64. As in csrc/fp8.cu there are 64
keys in a step, weights are rounded below the running maximum of their row, and the sum that normalises them is that of
the rounded weights; what differs is which operand has how many bits, and for how many of its elements one scale stands.
tests/unit/flashcore/test_eight_bits_on_cpu.py holds the scheme that was built against the kernel.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashcore import roundings
from flashcore.reference import attention64

KEYS = 64  # of a step
LARGEST_BYTE, LARGEST_E4M3 = 127.0, 448.0
TINY = 1e-30


@dataclass(frozen=True)
class Scheme:
    """``qk``: int8, e4m3 or exact. ``v``: e4m3, int8, e4m3x2 (a second term for what the first leaves) or exact. ``p``:
    e4m3, int8 or exact. ``qk_scale``: what shares a scale: a row, a block of 64 rows, a head; ``v_scale``: a channel,
    its part in a block of 64 keys, a head. ``smooth``: K and V without their means. For csrc/int8.cu: ``qk_scale`` lane
    is a row of Q and what one lane has of K, ``p`` half FP16, ``smooth`` sample K without a sample's mean."""

    qk: str = "int8"
    qk_scale: str = "row"
    v: str = "e4m3"
    v_scale: str = "channel"
    p: str = "e4m3"
    smooth: str = "mean"


INT8 = Scheme(qk_scale="lane", v="exact", p="half", smooth="sample")
SCHEMES = {
    "built: int8 QK, E4M3 PV": Scheme(),
    "E4M3 QK, E4M3 PV": Scheme(qk="e4m3"),
    "exact QK, E4M3 PV": Scheme(qk="exact"),
    "int8 QK, exact PV": Scheme(v="exact", p="exact"),
    "QK scale for 64 rows": Scheme(qk_scale="block"),
    "QK scale for a head": Scheme(qk_scale="head"),
    "V scale for a channel and 64 keys": Scheme(v_scale="block"),
    "V scale for a head": Scheme(v_scale="head"),
    "int8 V, 64 keys; E4M3 P": Scheme(v="int8", v_scale="block"),
    "two E4M3 terms for V": Scheme(v="e4m3x2"),
    "int8 QK, int8 PV": Scheme(v="int8", p="int8"),
    "means not subtracted": Scheme(smooth=""),
    "int8 QK, FP16 PV": INT8,
}


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """The nearest E4M3, beyond 448 to 448."""
    rounded = x.clamp(-LARGEST_E4M3, LARGEST_E4M3).float().to(torch.float8_e4m3fn)
    return rounded.double()


def int8(x: torch.Tensor) -> torch.Tensor:
    """The nearest signed byte."""
    return x.clamp(-LARGEST_BYTE, LARGEST_BYTE).round()


def half(x: torch.Tensor) -> torch.Tensor:
    return x.half().double()


def exact(x: torch.Tensor) -> torch.Tensor:
    return x


ROUND: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "int8": (int8, LARGEST_BYTE), "e4m3": (e4m3, LARGEST_E4M3), "exact": (exact, 1.0), "half": (half, 1.0),
}  # fmt: skip


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """Attention of ``q`` [H, rows, D] over ``k`` and ``v`` [H, keys, D], in FP64 but for what ``scheme`` rounds."""
    q, k, v = q.double() * q.shape[-1] ** -0.5, k.double(), v.double()
    mean = v.mean(1, keepdim=True) if scheme.smooth == "mean" else torch.zeros_like(v[:, :1])
    if scheme.smooth == "sample":
        k = torch.stack([head - roundings.sampled_mean(head) for head in k])
    elif scheme.smooth:
        k = k - k.mean(1, keepdim=True)
    q = _rounded(q, scheme.qk, _reach(q, scheme.qk_scale, by_row=True))
    if scheme.qk_scale == "lane":
        sizes = torch.stack([roundings.of_groups(head.abs().amax(1), k.shape[-1]) for head in k])
        k = _rounded(k, scheme.qk, sizes[..., None].expand_as(k))
    else:
        k = _rounded(k, scheme.qk, _reach(k, scheme.qk_scale, by_row=True))
    v = _values(v - mean, scheme)
    weigh, most_weight = ROUND[scheme.p]
    out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=torch.float64)
    total = torch.zeros(*q.shape[:2], 1, dtype=torch.float64)
    maximum = torch.full_like(total, -math.inf)
    for first in range(0, k.shape[1], KEYS):
        scores = q @ k[:, first : first + KEYS].transpose(1, 2)
        higher = torch.maximum(maximum, scores.amax(2, keepdim=True))
        weights = weigh(torch.exp(scores - higher) * most_weight) / most_weight
        keep = torch.exp(maximum - higher)
        out = out * keep + weights @ v[:, first : first + KEYS]
        total = total * keep + weights.sum(2, keepdim=True)
        maximum = higher
    return (out / total + mean).half().double()


def _values(v: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    reach = _reach(v, scheme.v_scale, by_row=False)
    if scheme.v != "e4m3x2":
        return _rounded(v, scheme.v, reach)
    first = _rounded(v, "e4m3", reach)
    return first + _rounded(v - first, "e4m3", _reach(v - first, scheme.v_scale, by_row=False))


def _rounded(x: torch.Tensor, kind: str, reach: torch.Tensor) -> torch.Tensor:
    nearest, largest = ROUND[kind]
    unit = largest / (reach + TINY)
    return nearest(x * unit) / unit


def _reach(x: torch.Tensor, scale: str, by_row: bool) -> torch.Tensor:
    """The largest magnitude among what shares a scale, for each element of ``x`` [H, rows, D]."""
    size = x.abs()
    if scale == "head":
        return size.amax((1, 2), keepdim=True).expand_as(x)
    if scale == "block":
        parts = [p.amax((1, 2) if by_row else 1, keepdim=True).expand_as(p) for p in size.split(KEYS, dim=1)]
        return torch.cat(parts, dim=1)
    return size.amax(2 if by_row else 1, keepdim=True).expand_as(x)


# ------------------------------------------------------------------------------------------------ inputs
KINDS = ("plain", "bias", "outlier channels", "outlier entries", "outlier entries, V too")


def draw(kind: str, keys: int, rows: int, heads: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FP16 inputs [heads, .., 64]: a bias on channels of K and V; some channels far larger; 0.1 % of entries x 10."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(heads, n, 64, generator=generator) for n in (rows, keys, keys))
    if kind == "bias":
        k, v = (x + b * torch.randn(64, generator=generator) for x, b in ((k, 4.0), (v, 2.0)))
    elif kind == "outlier channels":
        k[..., ::29] += 12
        q[..., ::29] *= 3
        v[..., ::29] += 8
    elif kind.startswith("outlier entries"):
        for x in (q, k, v) if kind.endswith("too") else (q, k):
            x[torch.rand(x.shape, generator=generator) < 0.001] *= 10
    return q.half(), k.half(), v.half()


@dataclass
class Errors:
    """``largest``: of the outputs. ``most``: the largest error. ``rms``: of the errors over that of the outputs."""

    largest: float = 0.0
    most: float = 0.0
    rms: float = 0.0

    def add(self, out: torch.Tensor, right: torch.Tensor) -> None:
        wrong = out - right
        self.largest = max(self.largest, float(right.abs().max()))
        self.most = max(self.most, float(wrong.abs().max()))
        self.rms = max(self.rms, float(wrong.norm() / right.norm()))


def measure(kind: str, keys: int, *, rows: int = 256, heads: int = 2, draws: int = 2) -> dict[str, Errors]:
    """The worst of some draws, for each scheme."""
    found = {name: Errors() for name in SCHEMES}
    for seed in range(draws):
        q, k, v = draw(kind, keys, min(rows, keys), heads, seed)
        right = attention64(q[None], k[None], v[None])[0]
        for name, scheme in SCHEMES.items():
            found[name].add(attend(q, k, v, scheme), right)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,2048,8192")
    print("| S | inputs | operands | max error | of the largest output | relative RMS |\n|---|---|---|---|---|---|")
    for keys in map(int, parser.parse_args().lengths.split(",")):
        for kind in KINDS:
            for name, e in measure(kind, keys).items():
                print(f"| {keys} | {kind} | {name} | {e.most:.2g} | {100 * e.most / e.largest:.2g} % | {e.rms:.2g} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
