"""How far an output is from the right one, and how far it may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

#: The brief's absolute tolerance. Alone it is far too loose: outputs at S = 512 are themselves below 0.3.
MAX_ERR = 0.06
#: Root mean square error relative to the output's own.
REL_RMS = 1e-3
#: Times PyTorch's own error on the same inputs.
SDPA_FACTOR = 2.0
#: One rounding to FP16, relative to the largest value: no kernel can be asked for less, and where PyTorch happens to be
#: exact (a single key) twice nothing would be nothing.
HALF_ULP = 2.0**-11
FP32_SLACK = 1e-5


@dataclass(frozen=True)
class Error:
    max_err: float  # NaN and infinity count as infinite; they are counted apart, too
    mean_err: float
    rel_rms: float
    nan: int
    inf: int


@dataclass(frozen=True)
class Tolerance:
    max_err: float
    rel_rms: float
    sdpa_max_err: float | None = None  # PyTorch's own, on the same inputs

    def refusal(self, error: Error) -> str | None:
        """Why ``error`` is too large, None if it is not."""
        if error.nan or error.inf:
            return f"{error.nan} NaN and {error.inf} infinite outputs (outputs start as NaN: unwritten ones count)"
        if error.max_err > self.max_err:
            return f"max error {error.max_err:.3g} is above {self.max_err:.3g}"
        if error.rel_rms > self.rel_rms:
            return f"relative RMS error {error.rel_rms:.3g} is above {self.rel_rms:.3g}"
        return None

    def as_dict(self) -> dict[str, Any]:
        return {
            "max_err": self.max_err,
            "rel_rms": self.rel_rms,
            "sdpa_max_err": self.sdpa_max_err,
            "brief_max_err": MAX_ERR,
        }


def measure(out: torch.Tensor, right: torch.Tensor) -> Error:
    """The error of ``out`` against ``right`` (float64, all finite)."""
    got = out.double()
    nan, inf = int(torch.isnan(got).sum()), int(torch.isinf(got).sum())
    if nan or inf:
        finite = torch.isfinite(got)
        got, right = got[finite], right[finite]
    if got.numel() == 0:
        return Error(float("inf"), float("inf"), float("inf"), nan, inf)
    difference = (got - right).abs()
    size = float(right.square().mean().sqrt())
    rms = float(difference.square().mean().sqrt())
    return Error(float(difference.max()), float(difference.mean()), rms / size if size else rms, nan, inf)


def tolerance(sdpa_out: torch.Tensor, right: torch.Tensor, declared: tuple[float, float] | None = None) -> Tolerance:
    """What a kernel with FP16 output and FP32 sums may differ by on these inputs, given PyTorch's output on them; or
    one that computes with fewer bits, by what is ``declared`` (registry.Variant.tolerance)."""
    theirs = measure(sdpa_out, right).max_err
    if declared is not None:
        return Tolerance(declared[0] * max(1.0, float(right.abs().max())), declared[1], theirs)
    floor = HALF_ULP * float(right.abs().max()) + FP32_SLACK
    return Tolerance(min(MAX_ERR, max(SDPA_FACTOR * theirs, floor)), REL_RMS, theirs)
