"""The flagship's masks without a GPU: padding, holes, masks of rows and heads, both corners of a causal one."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from flashcore import inputs, roundings
from flashcore.extras import LOWER_RIGHT
from flashcore.launch import DTYPES
from flashcore.reference import expected
from flashcore.registry import VARIANTS
from flashcore.shapes import Shape
from tests.support.cuda_on_cpu.build import compile_on_cpu
from tests.support.cuda_on_cpu.launch import arguments, launch, masked_by

#: As the library has them: groups and pipelined, one group and plain, one stage.
TILINGS: dict[str, dict[str, int]] = {
    "pipelined": {"TILE_M": 32, "WARPS_KV": 2, "STAGES": 2, "PIPELINED": 1, "TENSOR_SUMS": 1},
    "plain": {"TILE_M": 64, "WARP_ROWS": 32, "STAGES": 2, "TENSOR_SUMS": 1},
    "groups": {"TILE_M": 32, "WARPS_KV": 2, "STAGES": 2, "TENSOR_SUMS": 1},
    "staggered": {"TILE_M": 32, "WARPS_KV": 2, "STAGGERED": 1, "HEAD_DIM": 128, "BFLOAT16": 1},
}


def in_one_worker(name: str) -> Any:
    """A parameter whose tests share a worker, so that its library is compiled once."""
    marks = [pytest.mark.group(f"masked-{name}"), *([] if name == "pipelined" else [pytest.mark.full])]
    return pytest.param(name, marks=marks, id=name)


class Masked:
    """A tiling that takes masks."""

    def __init__(self, name: str, library: ctypes.CDLL) -> None:
        self.library, self.tile = library, TILINGS[name]
        self.D, self.dtype = self.tile.get("HEAD_DIM", 64), DTYPES[self.tile.get("BFLOAT16", 0)]

    def run(
        self,
        sizes: tuple[int, int, int, int],
        heads: int,
        causal: int,
        mask: torch.Tensor | None,
        unread: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The output, of which each row that sees no key is 0 and the others pass; ``sizes`` are B, H, S_q, S_kv. Where
        ``unread``, keys and values are NaN."""
        B, H, S_q, S_kv = sizes
        shape = Shape(B, H, S_q, self.D, S_kv)
        q, k, v = inputs.draw(shape, 5, "cpu", dtype=self.dtype, heads=heads)
        right = expected(q, k, v, causal=causal, scale=0.125, mask=mask)
        for x in (k, v) if unread is not None else ():
            x[:, :, unread] = torch.nan
        out = torch.full_like(q, torch.nan)
        hidden = {} if mask is None else masked_by(mask)
        launch(self.library, arguments(q, k, v, out, scale=0.125, causal=causal, **hidden))
        assert not out[(right.right == 0).all(-1)].any()
        assert roundings.judge(out.double(), right).used <= 1
        return out


@pytest.fixture(scope="module", params=[in_one_worker(name) for name in TILINGS])
def masked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Masked:
    folder = tmp_path_factory.mktemp("masked")
    return Masked(request.param, compile_on_cpu(VARIANTS["flagship"], TILINGS[request.param], folder, masked=True))


@pytest.mark.parametrize("causal", [0, LOWER_RIGHT], ids=["full", "lower-right"])
@pytest.mark.parametrize("kind", inputs.MASKS)
def test_a_mask_hides_what_it_says(masked: Masked, kind: str, causal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    B, H = (2, 2) if kind in ("holes", "rows", "heads") else (7, 1)  # one sequence for each length of padding
    # 16 bytes of the mask at once, or one after the other
    for number, S_kv in ((0, 192), (1, 201))[int(causal == LOWER_RIGHT) :]:
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(number))  # copies at once, copies late
        masked.run((B, H, 40, S_kv), 1, causal, inputs.mask(kind, Shape(B, H, 40, masked.D, S_kv), number, "cpu"))


@pytest.mark.parametrize("lengths", [(1, 1), (1, 200), (130, 1), (65, 63), (40, 97), (97, 40), (64, 128)], ids=str)
def test_a_diagonal_that_ends_in_the_lower_right_corner(masked: Masked, lengths: tuple[int, int]) -> None:
    masked.run((1, 2, *lengths), 2, LOWER_RIGHT, None)


def test_both_corners_are_one_where_lengths_are_the_same(masked: Masked) -> None:
    upper, lower = (masked.run((1, 2, 70, 70), 2, causal, None) for causal in (1, LOWER_RIGHT))
    assert torch.equal(upper, lower)


def test_what_padding_holds_is_not_read_where_a_tile_is_left_out(masked: Masked) -> None:
    """Whole tiles before the keys, and all behind them: NaN there would be NaN of zero weights."""
    place = torch.arange(300)
    mask = ((place >= 70) & (place < 140))[None, None, None]
    masked.run((1, 1, 20, 300), 1, 0, mask, unread=(place < 64) | (place >= 140))


@pytest.mark.full
@pytest.mark.parametrize("name", TILINGS)
def test_no_thread_touches_what_another_one_still_needs(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compile_on_cpu(
        VARIANTS["flagship"], TILINGS[name], tmp_path_factory.mktemp("races"), races=True, masked=True
    )
    watched = Masked(name, library)
    for seed in (1, 2):
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))
        for kind in ("left", "rows", "triangle"):
            mask = inputs.mask(kind, Shape(3, 1, 70, watched.D, 193), seed, "cpu")
            watched.run((3, 1, 70, 193), 1, LOWER_RIGHT, mask)
