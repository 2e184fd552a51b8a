"""Launch a kernel that needs a workspace, compiled by :mod:`tests.support.cuda_on_cpu.build`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from flashcore.library import Args, Strides


def run(library: ctypes.CDLL, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    """The kernel's output; outputs and workspace start as NaN."""
    B, H, S_q, D = q.shape
    out = torch.full_like(q, torch.nan)
    args = Args(B=B, H=H, H_kv=k.shape[1], S_q=S_q, S_kv=k.shape[2], D=D, scale=D**-0.5)
    for name, value in options.items():
        setattr(args, name, value)
    for name, x in (("q", q), ("k", k), ("v", v), ("o", out)):
        setattr(args, name, x.data_ptr())
        setattr(args, name + "_stride", Strides(*x.stride()[:3]))
    library.flashcore_workspace_bytes.argtypes = [ctypes.POINTER(Args)]
    library.flashcore_workspace_bytes.restype = ctypes.c_size_t
    workspace = torch.full((library.flashcore_workspace_bytes(args),), 0xFF, dtype=torch.uint8)
    args.workspace = workspace.data_ptr()
    code = library.flashcore_forward(args)
    assert code == 0, library.flashcore_error(code)
    return out


def check_refusals(library: ctypes.CDLL, *wrong: dict[str, int]) -> None:
    """The library, which needs a workspace, refuses each of these arguments, and a call without a workspace."""
    library.flashcore_workspace_bytes.restype = ctypes.c_size_t
    for each in wrong:
        args = Args(**{"B": 1, "H": 1, "S_q": 1, "S_kv": 1, "D": 64, "workspace": 16, **each})
        assert library.flashcore_forward(args) == 1
        assert library.flashcore_workspace_bytes(ctypes.byref(args)) == 0
    assert library.flashcore_forward(Args(B=1, H=1, S_q=1, S_kv=1, D=64)) == 1
