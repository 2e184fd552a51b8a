"""The error of an output tensor against the exact result, and the tolerance for it."""

from __future__ import annotations

import torch

from flashcore import cases
from flashcore.cases import Error, Tolerance


def measure(out: torch.Tensor, right: torch.Tensor) -> Error:
    """The error of ``out`` against ``right`` (float64, all finite)."""
    return cases.measure(out.double(), right)


def tolerance(sdpa_out: torch.Tensor, right: torch.Tensor, declared: tuple[float, float] | None = None) -> Tolerance:
    """:func:`flashcore.cases.tolerance` with PyTorch as the peer, whose output on the same inputs is ``sdpa_out``."""
    return cases.tolerance(measure(sdpa_out, right).max_err, right, declared)
