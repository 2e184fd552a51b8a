"""Which kernel takes a call of the operators, and that kernel, built for the GPUs that are here."""

from __future__ import annotations

import functools
import threading
import warnings

import torch

from flashcore import build, registry
from flashcore.errors import FlashcoreError
from flashcore.extras import LOWER_RIGHT
from flashcore.launch import DTYPES, Kernel, mask_fits

#: The kernel that computes, and the one where at most so many queries, those of all heads that share keys, read at
#: least so many keys: with fewer the flagship is as fast. Each is compiled when it is first needed.
VARIANT, DECODE = registry.VARIANTS["flagship"], "decode"
EXTENDED = registry.VARIANTS["extended"]  # for windows, softcap, ALiBi and packed sequences
MOST_ROWS, LEAST_KEYS = 16, 1024
#: Of the flagship's head dimensions, those that were checked and timed on a GPU.
HEAD_DIMS = (64, 80, 96, 128, 256)
#: cp.async and mma.sync as the flagship uses them came with this compute capability.
OLDEST = (8, 0)
#: A grid's second and third dimension: heads, batches, and row tiles of at least 16 rows under a causal mask.
MAX_GRID = 65535

_building = threading.Lock()


def chosen(query: torch.Tensor, key: torch.Tensor, causal: int, mask: torch.Tensor | None) -> tuple[str, int]:
    """The variant for tensors that fit, and which of its libraries."""
    if query.dim() != 4 or key.dim() != 4:
        return VARIANT.name, 0
    masked = mask is not None or (causal == LOWER_RIGHT and query.shape[2] != key.shape[2])
    few = query.shape[1] * query.shape[2] <= MOST_ROWS * key.shape[1] and key.shape[2] >= LEAST_KEYS
    D = query.shape[3]
    if few and mask is None and D in registry.VARIANTS[DECODE].head_dims:
        return DECODE, 0
    return VARIANT.name, VARIANT.library_of(D, masked)


def fits(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: int,
    enable_gqa: bool,
    mask: torch.Tensor | None = None,
) -> bool:
    """Whether the flagship takes these tensors."""
    if not query.is_cuda or query.dim() != 4 or key.dim() != 4 or value.shape != key.shape:
        return False
    B, H, S, D = query.shape
    heads = key.shape[1]
    if key.shape[0] != B or key.shape[3] != D or not heads or (heads != H and (not enable_gqa or H % heads)):
        return False
    if query.dtype not in DTYPES or D not in HEAD_DIMS or not query.numel() or not key.numel():
        return False
    if H > MAX_GRID or B > MAX_GRID or (causal and S > 16 * MAX_GRID) or not _takes(mask, query, key, causal):
        return False
    same = key.dtype is value.dtype is query.dtype and key.device == value.device == query.device
    return same and _recent(query.get_device()) and all(aligned(t) for t in (query, key, value))


def _takes(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, causal: int) -> bool:
    """Whether the flagship takes these masks; PyTorch refuses ``mask`` beside ``is_causal``."""
    D = query.shape[3]
    if causal == LOWER_RIGHT and D not in VARIANT.lower_right:
        return False
    if mask is None:
        return True
    if D not in VARIANT.masks or causal == 1:
        return False
    full = (*query.shape[:3], key.shape[2])
    return mask.device == query.device and mask.dim() <= 4 and mask_fits(four(mask), full)


def four(mask: torch.Tensor) -> torch.Tensor:
    """``mask`` with leading dimensions of 1, four in all."""
    return mask.expand(*(1,) * (4 - mask.dim()), *mask.shape)


def aligned(tensor: torch.Tensor) -> bool:
    """Rows of 16-byte pieces at multiples of 16 bytes, which is how they are copied."""
    if tensor.data_ptr() % VARIANT.alignment or not tensor.data_ptr():
        return False
    *strides, last = tensor.stride()
    unit = VARIANT.alignment // tensor.element_size()
    return last == 1 and not any(s % unit for n, s in zip(tensor.shape, strides) if n > 1)  # noqa: B905 (Python 3.9)


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy where nothing but the places of its rows keeps a kernel from it."""
    pieces = tensor.dtype in DTYPES and not tensor.shape[-1] * tensor.element_size() % VARIANT.alignment
    return tensor.clone() if pieces and not aligned(tensor) else tensor


@functools.cache
def _recent(device: int) -> bool:
    return torch.cuda.get_device_capability(device) >= OLDEST


def kernel(variant: str, library: int = 0) -> Kernel | None:
    """A kernel, whose first and whose given library are compiled for the GPUs that are here; None, after one warning,
    where that cannot be done."""
    with _building:
        return _built(variant, library)


@functools.cache
def _built(variant: str, library: int) -> Kernel | None:
    try:
        found = {torch.cuda.get_device_capability(n) for n in range(torch.cuda.device_count())}
        archs = ",".join(f"{major}{minor}" for major, minor in sorted(found) if (major, minor) >= OLDEST)
        return Kernel(build.build(registry.VARIANTS[variant], archs=archs, libraries=(library,)))
    except FlashcoreError as e:
        warnings.warn(f"flashcore calls PyTorch instead: {e}", RuntimeWarning, stacklevel=4)
        return None
