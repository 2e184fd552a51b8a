"""What a launch may ask for beside scale and masks: caps, biases and windows of scores; packed sequences; pages.

Each is an :class:`Extra` of :meth:`flashcore.launch.Kernel.extended`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from flashcore.errors import Unsupported

if TYPE_CHECKING:
    import torch

    from flashcore.library import Args

#: Of a window that has no end on a side.
UNBOUNDED = -1
ANY = (UNBOUNDED, UNBOUNDED)
#: ``causal`` of a mask whose diagonal ends in the lower right corner.
LOWER_RIGHT = 2


class Extra(Protocol):
    def needs(self, causal: int) -> str:
        """The field of :class:`~flashcore.variant.Variant` that must be true for a variant to take it."""

    @property
    def key(self) -> Hashable:
        """All that a launch depends on but addresses."""

    def fill(self, args: Args) -> None:
        """Set what :attr:`key` tells."""

    def point(self, args: Args) -> None:
        """Set addresses."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Query i stands at key i + S_kv - S_q, or at key i under a causal mask of the upper left corner.

    window: how many keys before its place and behind it a query sees, ``UNBOUNDED`` for all.
    softcap: a scaled score s becomes ``softcap * tanh(s / softcap)``; 0: it stays.
    slopes: of ALiBi, float32, [H] or [B, H]: less the slope of the head times the distance of the key. After the cap.
    """

    window: tuple[int, int] = ANY
    softcap: float = 0.0
    slopes: torch.Tensor | None = None

    def needs(self, causal: int) -> str:
        ends = causal == LOWER_RIGHT or (not causal and self.window[1] == 0)
        return "window" if ends and not self.softcap and self.slopes is None else "scores"

    @property
    def key(self) -> Hashable:
        slopes = self.slopes
        return self.window, self.softcap, slopes is not None and (slopes.shape, slopes.stride(), slopes.get_device())

    def fill(self, args: Args) -> None:
        args.window_left, args.window_right = (min(bound, 2**30) + 1 for bound in self.window)
        args.softcap = self.softcap
        if self.slopes is not None and self.slopes.dim() == 2 and len(self.slopes) > 1:
            args.slope_batch = self.slopes.stride(0)

    def point(self, args: Args) -> None:
        args.slopes = None if self.slopes is None else self.slopes.data_ptr()

    def check(self, query: torch.Tensor) -> None:
        """Raises RuntimeError, as PyTorch's operators do: what ``query`` [B, H, .., D] cannot have."""
        if min(self.window) < UNBOUNDED or not 0 <= self.softcap < float("inf"):
            raise RuntimeError(f"window {self.window} must be -1 or more, softcap {self.softcap} 0 or more, and finite")
        slopes = self.slopes
        if slopes is None:
            return
        right = slopes.dim() in (1, 2) and tuple(slopes.shape) == tuple(query.shape[:2])[-slopes.dim() :]
        if not right or str(slopes.dtype) != "torch.float32" or slopes.stride(-1) != 1 or slopes.device != query.device:
            raise RuntimeError(
                f"alibi_slopes is {slopes.dtype} {list(slopes.shape)}, strides {slopes.stride()}, on {slopes.device}; "
                f"it must be float32, contiguous, [H] or [B, H] of query {list(query.shape)}, on {query.device}"
            )

    def of(self, batch: int, head: int | slice = slice(None)) -> Scores:
        """The same of one batch, and of one head or of all."""
        if self.slopes is None:
            return self
        slopes = self.slopes if self.slopes.dim() == 1 else self.slopes[batch if len(self.slopes) > 1 else 0]
        return replace(self, slopes=slopes[head])

    def batches(self, first: int, most: int) -> Scores:
        """The same of ``most`` batches from ``first`` on."""
        if self.slopes is None or self.slopes.dim() == 1:
            return self
        return replace(self, slopes=self.slopes[first : first + most])

    def applied(self, scores: torch.Tensor, causal: int) -> torch.Tensor:
        """Scaled ``scores`` [.., S_q, S_kv] with all of this and a causal mask; minus infinity for what is not seen."""
        import torch

        S_q, S_kv = scores.shape[-2:]
        align = 0 if causal == 1 else S_kv - S_q
        ahead = torch.arange(S_q, device=scores.device)[:, None] + align - torch.arange(S_kv, device=scores.device)
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.slopes is not None:
            scores = scores - self.slopes.to(scores.dtype)[..., None, None] * ahead.abs()
        left, right = self.window[0], 0 if causal else self.window[1]
        hidden = (ahead > left) & (left >= 0) | (-ahead > right) & (right >= 0)
        return scores.masked_fill(hidden, float("-inf"))

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
        causal: int = False,
        scale: float | None = None,
    ) -> torch.Tensor:
        """Attention [.., H, S_q, D] by the definition, in float32 or the inputs' wider type: where no kernel takes a
        call. ``mask`` is boolean or added to scores; a query that sees no key gives 0."""
        import torch

        dtype = torch.promote_types(query.dtype, torch.float32)
        share = query.shape[-3] // key.shape[-3]
        q, k, v = query.to(dtype), *(x.to(dtype).repeat_interleave(share, dim=-3) for x in (key, value))
        factor = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
        scores = self.applied(q @ k.mT * factor, causal)
        if mask is not None:
            boolean = mask.dtype is torch.bool
            scores = scores.masked_fill(~mask, float("-inf")) if boolean else scores + mask
        weights = torch.softmax(scores, -1).masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0)
        return (weights @ v).to(query.dtype)


@dataclass(frozen=True, eq=False)
class Packed:
    """Sequences one behind the other in the dimension S of [1, H, total, D]: where each begins and the last one ends,
    [B + 1] int32 on the tensors' device, and the length of the longest. Nothing on the host reads the former."""

    starts_q: torch.Tensor
    starts_k: torch.Tensor
    longest_q: int
    longest_k: int

    @property
    def count(self) -> int:
        return len(self.starts_q) - 1

    def sequences(self, first: int, most: int) -> Packed:
        """``most`` sequences from ``first`` on, or as many as there are."""
        starts = (starts[first : first + most + 1] for starts in (self.starts_q, self.starts_k))
        return Packed(*starts, self.longest_q, self.longest_k)

    def needs(self, _causal: int) -> str:
        return "packed"

    @property
    def key(self) -> Hashable:
        return self.count, self.longest_q, self.longest_k

    def fill(self, args: Any) -> None:
        args.B, args.S_q, args.S_kv = self.count, self.longest_q, self.longest_k

    def point(self, args: Any) -> None:
        args.starts_q, args.starts_k = self.starts_q.data_ptr(), self.starts_k.data_ptr()


@dataclass(frozen=True, eq=False)
class Pages:
    """Keys and values in pages, [pages, H_kv, keys of a page, D] for [B, H_kv, S_kv, D]; a page has 16, 32, .. 256.

    table: numbers of pages, [B, n] int32; lengths: keys of each batch, [B] int32; both on the tensors' device, where
    nothing on the host reads them. longest: no length is more; None: what n pages hold.
    """

    table: torch.Tensor
    lengths: torch.Tensor
    longest: int | None = None

    def needs(self, _causal: int) -> str:
        return "pages"

    @property
    def key(self) -> Hashable:
        return self.table.shape, self.table.stride(), self.longest

    def fill(self, args: Args) -> None:
        args.page_keys = args.S_kv
        most = self.table.shape[1] * args.page_keys
        args.S_kv = most if self.longest is None else min(most, self.longest)
        args.table_stride = self.table.stride(0)

    def point(self, args: Args) -> None:
        args.table, args.lengths = self.table.data_ptr(), self.lengths.data_ptr()


class Whole(Pages):
    """Of :func:`with_pages`: pages of 16 keys that begin anywhere in tensors [B, H_kv, S_kv, D], a row apart."""

    def fill(self, args: Args) -> None:
        args.page_keys, args.table_stride = 16, self.table.stride(0)
        args.k_stride.batch, args.v_stride.batch = args.k_stride.row, args.v_stride.row


def with_pages(extras: tuple[Extra, ...], k: torch.Tensor, v: torch.Tensor) -> tuple[Extra, ...]:
    """``extras``; if they have none, with ``k`` and ``v`` as pages where they lie, as a kernel of pages is checked and
    timed on what others take.

    Raises:
        Unsupported: their strides differ, or a batch does not begin a number of rows behind the one before.
    """
    if any(isinstance(extra, Pages) for extra in extras):
        return extras
    if k.dim() != 4:
        return extras  # refused with what else cannot be done
    B, _, S, _ = k.shape
    batch, _, row, _ = k.stride()
    if k.stride() != v.stride() or not row or (B > 1 and batch % row):
        raise Unsupported("k and v cannot be read as pages", cause=f"their strides are {k.stride()} and {v.stride()}")
    return *extras, _whole(B, S, batch // row if B > 1 else 0, k.device)


@functools.lru_cache(64)
def _whole(B: int, S: int, rows: int, device: torch.device) -> Whole:
    import torch

    pages = torch.arange(-(-S // 16), device=device) * 16 + torch.arange(B, device=device)[:, None] * rows
    return Whole(pages.int(), torch.full((B,), S, dtype=torch.int32, device=device))


def alike(query: torch.Tensor, *others: torch.Tensor) -> None:
    """Raises RuntimeError: of another type than ``query``, or on another device."""
    if any(x.dtype != query.dtype or x.device != query.device for x in others):
        found = ", ".join(f"{x.dtype} on {x.device}" for x in (query, *others))
        raise RuntimeError(f"query, key and value must have one type and be on one device, not {found}")


def asked(kernel: Any, options: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """``kernel`` with these arguments of a call, of which ``scores`` and ``packed`` are each an :class:`Extra`."""
    extras = tuple(options[name] for name in ("scores", "packed") if name in options)
    plain = {name: value for name, value in options.items() if name not in ("scores", "packed")}
    return functools.partial(kernel.extended, extras, **plain) if extras else functools.partial(kernel, **plain)


def with_lower_right(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """``mask``, boolean or added to scores, and the causal one whose diagonal ends in the lower right corner."""
    import torch

    S_q, S_kv = query.shape[-2], key.shape[-2]
    causal = torch.ones(S_q, S_kv, dtype=torch.bool, device=query.device).tril(S_kv - S_q)
    if mask is None:
        return causal
    return mask & causal if mask.dtype is torch.bool else mask.masked_fill(~causal, float("-inf"))
