"""extended.cu without a GPU: windows, softcap, ALiBi, and packed sequences, on each of its tilings."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcore import eligible, inputs, roundings
from flashcore.build import Built
from flashcore.extras import LOWER_RIGHT, Scores
from flashcore.launch import DTYPES, Kernel
from flashcore.library import Args
from flashcore.packed import attention_varlen
from flashcore.reference import expected
from flashcore.registry import VARIANTS
from flashcore.shapes import Shape
from tests.support.cuda_on_cpu.build import compile_on_cpu
from tests.support.cuda_on_cpu.launch import arguments, launch, masked_by

pytestmark = [pytest.mark.group("extended"), pytest.mark.full]
#: For all calls, and the one for windows and packed sequences alone.
TILING, WINDOWED = (1, 2), 3


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Any two threads that touch the same shared memory without a barrier between fail a launch."""
    return compile_on_cpu(VARIANTS["extended"], {}, tmp_path_factory.mktemp("extended"), races=True)


def launched(library: ctypes.CDLL, tensors: Any, scores: Scores, **options: Any) -> torch.Tensor:
    out = torch.full_like(tensors[0], torch.nan)
    args = arguments(*tensors, out)
    scores.fill(args)
    scores.point(args)
    for name, value in options.items():
        setattr(args, name, value)
    launch(library, args)
    return out


def judge(out: torch.Tensor, right: roundings.Expected) -> None:
    assert not out[(right.right == 0).all(-1)].any()  # rows that see no key
    assert roundings.judge(out.double(), right).used <= 1


WINDOWS = [(0, 0), (5, -1), (-1, 3), (64, 64), (63, 0), (130, 1), (1000, 1000), (-1, -1)]


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("tiling", [*TILING, WINDOWED])
@pytest.mark.parametrize("causal", [0, 1, LOWER_RIGHT], ids=["full", "causal", "lower right"])
def test_windows(library: ctypes.CDLL, causal: int, tiling: int, D: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one key and wider than all; fewer queries than keys and more, so that some rows see none."""
    lengths = [(70, 70), (1, 200), (150, 40), (40, 201)]
    for seed, window in enumerate(WINDOWS):
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))  # odd: copies come late
        S_q, S_kv = lengths[seed % 4]
        tensors = inputs.draw(Shape(1, 2, S_q, D, S_kv, 1), seed, "cpu")
        scores = Scores(window)
        out = launched(library, tensors, scores, causal=causal, tiling=tiling)
        judge(out, expected(*tensors, causal=causal, scores=scores))


@pytest.mark.parametrize("tiling", TILING)
def test_caps_and_slopes(library: ctypes.CDLL, tiling: int) -> None:
    slopes = torch.tensor([[0.5, 0.03, 2.0, 0.0], [1.0, 0.1, 0.25, 0.7]])
    for number, (values, scores, scale) in enumerate(
        [
            ("plain", Scores(softcap=1.5), 0.125),
            ("large", Scores(softcap=50.0), 0.125),
            ("large", Scores(softcap=30.0, slopes=slopes[0]), -0.125),
            ("plain", Scores(slopes=slopes), 0.3),
            ("hot_row", Scores((20, 4), 20.0, slopes), 0.125),
            ("plain", Scores(slopes=slopes[0], softcap=2.0), 0.0),
        ]
    ):
        tensors = inputs.draw(Shape(2, 4, 90, 64, 140, 4), number, "cpu", values)
        out = launched(library, tensors, scores, scale=scale, tiling=tiling)
        judge(out, expected(*tensors, scale=scale, scores=scores))


@pytest.mark.parametrize("tiling", TILING)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_at_once_with_a_mask_and_a_large_head(library: ctypes.CDLL, dtype: torch.dtype, tiling: int) -> None:
    shape = Shape(7, 2, 70, 128, 192, 1)
    tensors = inputs.draw(shape, 3, "cpu", dtype=dtype)
    scores = Scores((40, -1), 10.0, torch.tensor([0.2, 0.02]))
    for kind in ("left", "rows"):
        mask = inputs.mask(kind, shape, 1, "cpu")
        out = launched(library, tensors, scores, causal=LOWER_RIGHT, tiling=tiling, **masked_by(mask))
        judge(out, expected(*tensors, causal=LOWER_RIGHT, mask=mask, scores=scores))


def test_without_any_of_it_the_masked_loop_is_the_flagships(library: ctypes.CDLL) -> None:
    tensors = inputs.draw(Shape(1, 2, 100, 64), 1, "cpu")
    for causal in (0, 1):
        judge(launched(library, tensors, Scores(), causal=causal), expected(*tensors, causal=causal))


@pytest.mark.parametrize("tiling", [*TILING, WINDOWED])
@pytest.mark.parametrize("causal", [0, LOWER_RIGHT], ids=["full", "lower right"])
def test_packed_sequences(library: ctypes.CDLL, causal: int, tiling: int) -> None:
    """Empty ones, with queries and no keys, keys and no queries; of one row; longer than a tile."""
    torch.manual_seed(0)
    queries, keys = (0, 5, 1, 130, 7, 64), (9, 0, 300, 130, 64, 3)
    q, k, v = (torch.randn(1, h, sum(n), 64).half() for h, n in ((4, queries), (2, keys), (2, keys)))
    starts = [torch.tensor([0, *n]).cumsum(0).int() for n in (queries, keys)]
    changed = Scores((50, 2)) if tiling == WINDOWED else Scores((50, 2), 5.0, torch.rand(6, 4))
    for scores in (Scores(), changed):
        out = launched(
            library, (q, k, v), scores, causal=causal, tiling=tiling, B=6, S_q=max(queries), S_kv=max(keys),
            starts_q=starts[0].data_ptr(), starts_k=starts[1].data_ptr(),
        )  # fmt: skip
        for b in range(6):
            here, there = (slice(int(s[b]), int(s[b + 1])) for s in starts)
            if queries[b] and keys[b]:
                slopes = None if scores.slopes is None else scores.slopes[b]
                own = Scores(scores.window, scores.softcap, slopes)
                right = expected(q[:, :, here], k[:, :, there], v[:, :, there], causal=causal, scores=own)
                judge(out[:, :, here], right)
            else:
                assert not out[:, :, here].any()


def test_more_sequences_than_a_grid_has_blocks_are_several_launches(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch takes at most 65,535; here two."""
    variant, file = replace(VARIANTS["extended"], device="cpu"), Path(library._name)
    kernel = Kernel(Built(variant, variant.configure(), file, file, {}, "extended"))
    starts = torch.tensor([0, 3, 3, 20, 70, 71], dtype=torch.int32)
    tensors = [torch.randn(71, heads, 64).half() for heads in (4, 2, 2)]
    slopes = torch.rand(5, 4)

    def call() -> torch.Tensor:
        return attention_varlen(*tensors, starts, starts, 50, 50, causal=True, alibi_slopes=slopes)

    right = call()  # by the definition
    monkeypatch.setattr(eligible, "MAX_GRID", 2)
    monkeypatch.setattr(eligible, "fits", lambda *_: True)
    monkeypatch.setattr(eligible, "kernel", lambda _name: kernel)
    launches: list[int] = []
    monkeypatch.setattr(
        kernel, "_launch", lambda args, n, launch=kernel._launch: (launches.append(args.B), launch(args, n))
    )
    assert torch.allclose(call().float(), right.float(), atol=2e-3)
    assert launches == [2, 2, 1]


def test_what_it_does_not_take(library: ctypes.CDLL) -> None:
    for wrong in (
        {"D": 96},
        {"H_kv": 3},
        {"S_kv": 0},
        {"tiling": 4},
        {"tiling": WINDOWED, "softcap": 1.0},
        {"tiling": WINDOWED, "slopes": 16},
        {"tiling": WINDOWED, "mask": 16},
        {"tiling": WINDOWED, "D": 128, "starts_q": 16, "starts_k": 16},
        {"dtype": 2},
        {"softcap": -1.0},
        {"starts_q": 16},
    ):
        args = Args(**{"B": 1, "H": 4, "H_kv": 2, "S_q": 1, "S_kv": 9, "D": 64, "scale": 1.0, **wrong})
        assert library.flashcore_forward(args) == 1, wrong
