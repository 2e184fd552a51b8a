"""Calls of a kernel's library that was compiled by :mod:`tests.support.cuda_on_cpu.build`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from flashcore.launch import DTYPES
from flashcore.library import Args, Strides


def among_nans(
    dtype: torch.dtype, B: int, heads: int, rows: int, D: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Normal values in a slice of a [B, S, H, D] tensor of NaN, as a cache of keys is one."""
    outer = torch.full((B, rows + 2, heads, D + 16), torch.nan, dtype=dtype)
    inner = outer[:, 1:-1, :, 8:-8].transpose(1, 2)
    return inner.copy_(torch.randn(B, heads, rows, D, generator=generator))


def arguments(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, **options: Any) -> Args:
    """A call on these tensors, which must live as long; ``options`` are more of its fields."""
    B, H, S_q, D = q.shape
    args = Args(B=B, H=H, H_kv=k.shape[1], S_q=S_q, S_kv=k.shape[2], D=D, scale=D**-0.5, dtype=DTYPES.index(q.dtype))
    for name, x in (("q", q), ("k", k), ("v", v), ("o", out)):
        setattr(args, name, x.data_ptr())
        setattr(args, name + "_stride", Strides(*x.stride()[:3]))
    for name, value in options.items():
        setattr(args, name, value)
    return args


def masked_by(mask: torch.Tensor) -> dict[str, Any]:
    """The fields of a mask that is repeated along its dimensions of 1."""
    strides = (mask.stride(n) if mask.shape[n] > 1 else 0 for n in range(3))
    return {"mask": mask.data_ptr(), "mask_stride": Strides(*strides)}


def launch(library: ctypes.CDLL, args: Args) -> None:
    code = library.flashcore_forward(args)
    assert code == 0, library.flashcore_error(code)


def run(library: ctypes.CDLL, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    """The output of a kernel that needs a workspace; outputs and workspace start as NaN."""
    out = torch.full_like(q, torch.nan)
    args = arguments(q, k, v, out, **options)
    library.flashcore_workspace_bytes.argtypes = [ctypes.POINTER(Args)]
    library.flashcore_workspace_bytes.restype = ctypes.c_size_t
    workspace = torch.full((library.flashcore_workspace_bytes(args),), 0xFF, dtype=torch.uint8)
    args.workspace = workspace.data_ptr()
    launch(library, args)
    return out


def check_refusals(library: ctypes.CDLL, *wrong: dict[str, int]) -> None:
    """The library, which needs a workspace, refuses each of these arguments, and a call without a workspace."""
    library.flashcore_workspace_bytes.restype = ctypes.c_size_t
    for each in wrong:
        args = Args(**{"B": 1, "H": 1, "S_q": 1, "S_kv": 1, "D": 64, "workspace": 16, **each})
        assert library.flashcore_forward(args) == 1
        assert library.flashcore_workspace_bytes(ctypes.byref(args)) == 0
    assert library.flashcore_forward(Args(B=1, H=1, S_q=1, S_kv=1, D=64)) == 1
