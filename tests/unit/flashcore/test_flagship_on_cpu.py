"""The flagship's logic without a GPU, beyond what every kernel is asked: types, head dimensions, shared heads, choice.

Not covered, by nature: what the compiler makes of it, memory ordering, and speed.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcore import registry, roundings
from flashcore.launch import DTYPES, LOWER_RIGHT
from flashcore.library import Args
from flashcore.reference import expected
from flashcore.registry import VARIANTS
from tests.support.cuda_on_cpu import build as cuda_on_cpu
from tests.support.cuda_on_cpu.build import compile_on_cpu
from tests.support.cuda_on_cpu.launch import among_nans, arguments, launch
from tests.support.flagship_tilings import BEHIND, SKIPPING
from tests.support.tiers import sampled

CONFIGURATIONS = [
    {},
    {"TILE_M": 32, "TILE_N": 32, "WARPS_KV": 4, "STAGGERED": 1},
    {"TILE_M": 32, "WARP_ROWS": 32, "TILE_N": 32, "WARPS_KV": 4, "STAGES": 2, "TENSOR_SUMS": 1},
    {"TILE_M": 64, "TILE_N": 32, "WARPS_KV": 2, "STAGES": 3, "PIPELINED": 1, "TENSOR_SUMS": 1},
    {"TILE_M": 64, "WARP_ROWS": 32, "TILE_N": 32, "STAGES": 2, "PIPELINED": 1, "TENSOR_SUMS": 1},
]

#: S_q, S_kv
LENGTHS = [(1, 1), (17, 17), (65, 63), (1, 200), (130, 1), (40, 97), (20, 300)]


def in_one_worker(settings: dict[str, int]) -> Any:
    """A parameter whose tests share a worker, so that its library is compiled once."""
    name = "-".join(f"{k}={v}" for k, v in settings.items()) or "auto"
    marks = [pytest.mark.group(f"flagship-{name}")]
    if settings not in CONFIGURATIONS[1:2]:
        marks.append(pytest.mark.full)
    return pytest.param(settings, marks=marks, id=name)


with_auto = pytest.mark.group("flagship-auto")


@pytest.fixture(scope="module", params=[in_one_worker(one) for one in CONFIGURATIONS])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not request.param:
        return request.getfixturevalue("auto")
    return compile_on_cpu(VARIANTS["flagship"], request.param, tmp_path_factory.mktemp("flagship"))


def excess(
    library: ctypes.CDLL,
    queries: tuple[int, int, int, int],
    keys: tuple[int, int],
    dtype: torch.dtype = torch.float16,
    causal: bool = False,
    scale: float = 0.125,
    seed: int = 1,
) -> float:
    """The largest part of the tolerance that the errors use, on random inputs among NaN; ``keys`` are H_kv and S_kv.
    The output starts as NaN."""
    (B, H, S_q, D), shared = queries, keys
    generator = torch.Generator().manual_seed(seed)
    q, k, v, out = (among_nans(dtype, B, *n, D, generator) for n in ((H, S_q), shared, shared, (H, S_q)))
    launch(library, arguments(q, k, v, out.fill_(torch.nan), scale=scale, causal=causal))
    return roundings.judge(out.double(), expected(q, k, v, causal=causal, scale=scale)).used


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_right_on_awkward_lengths(
    library: ctypes.CDLL, lengths: tuple[int, int], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):  # copies late, copies at once
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))
        assert excess(library, (1, 2, lengths[0], 64), (2, lengths[1]), causal=causal, seed=seed) <= 1


def right_with_shared_heads_of_keys(library: ctypes.CDLL, D: int, dtypes: Sequence[torch.dtype] = DTYPES) -> None:
    for dtype in dtypes:
        assert excess(library, (2, 6, 33, D), (2, 70), dtype=dtype, causal=True) <= 1, (D, dtype)


@pytest.mark.full
@with_auto
@pytest.mark.parametrize("D", VARIANTS["flagship"].head_dims)
def test_both_types_and_head_dimensions_with_shared_heads_of_keys(auto: ctypes.CDLL, D: int) -> None:
    right_with_shared_heads_of_keys(auto, D)


#: As the library has them: rows of 160 bytes in groups, of 192 with keys that are no power of two, of 512 with queries
#: read in each step.
OTHER_DIMENSIONS = [
    {"HEAD_DIM": 80, "TILE_M": 32, "TILE_N": 32, "WARPS_KV": 2, "STAGES": 2, "PIPELINED": 1, "TENSOR_SUMS": 1},
    {"HEAD_DIM": 80, "TILE_M": 128, "WARP_ROWS": 32, "TILE_N": 32, "STAGES": 2, "PIPELINED": 1, "TENSOR_SUMS": 1},
    {"HEAD_DIM": 96, "TILE_M": 64, "TILE_N": 48, "STAGES": 2, "PIPELINED": 1, "TENSOR_SUMS": 1, "BFLOAT16": 1},
    {"HEAD_DIM": 256, "TILE_M": 64, "TILE_N": 64, "SHARED_Q": 1},
    {"HEAD_DIM": 256, "TILE_M": 32, "TILE_N": 32, "WARPS_KV": 2, "SHARED_Q": 1},
]  # fmt: skip


def size(tile: dict[str, int]) -> str:
    return f"{tile['HEAD_DIM']}x{tile['TILE_M']}x{tile['TILE_N']}"


@pytest.mark.parametrize("tile", sampled(OTHER_DIMENSIONS, ["80x32x32"], size))
def test_other_head_dimensions(tile: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two threads touch the same shared memory without a barrier between, either."""
    library = compile_on_cpu(VARIANTS["flagship"], tile, tmp_path, races=True)
    D, dtype = tile["HEAD_DIM"], DTYPES[tile.get("BFLOAT16", 0)]
    for seed, (S_q, S_kv) in enumerate([(17, 17), (65, 63), (1, 200), (130, 1), (193, 193)]):
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))
        for causal in (False, True):
            assert excess(library, (1, 2, S_q, D), (1, S_kv), dtype, causal, seed=seed) <= 1, (S_q, S_kv)
    assert excess(library, (1, 1, 70, D), (1, 150), dtype, scale=-2.0) <= 1


@pytest.mark.full
@pytest.mark.parametrize("number", [0, 1])
def test_a_tiling_for_large_heads_with_shared_heads_of_keys(number: int, tmp_path: Path) -> None:
    tile = {
        "TILE_M": 32, "WARP_ROWS": 32, "TILE_N": 32, "WARPS_KV": 2, "HEAD_DIM": 128, "SHARED_Q": 1, "STAGES": 2,
        "BFLOAT16": number,
    }  # fmt: skip
    library = compile_on_cpu(VARIANTS["flagship"], tile, tmp_path)
    right_with_shared_heads_of_keys(library, 128, [DTYPES[number]])
    other = Args(B=1, H=1, S_q=1, S_kv=1, D=128, scale=1.0, dtype=1 - number)
    assert library.flashcore_forward(other) == 1


def test_a_negative_scale_and_large_scores(library: ctypes.CDLL) -> None:
    assert excess(library, (1, 1, 70, 64), (1, 150), scale=-2.0) <= 1


@pytest.mark.parametrize("wrong", [{"H": 3, "H_kv": 2}, {"H": 2, "D": 112}], ids=["heads of keys", "head dimension"])
def test_what_it_does_not_take(library: ctypes.CDLL, wrong: dict[str, int]) -> None:
    assert library.flashcore_forward(Args(**{"B": 1, "S_q": 1, "S_kv": 1, "D": 64, "scale": 1.0, **wrong})) == 1


@pytest.mark.parametrize("library", [in_one_worker(CONFIGURATIONS[1])], indirect=True)
def test_a_tiling_without_masks_refuses_them(library: ctypes.CDLL) -> None:
    mask = torch.ones(1, dtype=torch.bool)
    for fields in ({"S_kv": 2, "causal": LOWER_RIGHT}, {"S_kv": 1, "mask": mask.data_ptr()}):
        assert library.flashcore_forward(Args(B=1, H=1, S_q=1, D=64, scale=1.0, **fields)) == 1


@pytest.mark.full
@pytest.mark.parametrize("tile", [pytest.param(one, id=name) for name, one in {**SKIPPING, **BEHIND}.items()])
def test_no_warp_leaves_its_output_where_another_still_reads_keys(
    tile: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compile_on_cpu(VARIANTS["flagship"], tile, tmp_path, races=True)
    D, dtype = tile.get("HEAD_DIM", 64), DTYPES[tile.get("BFLOAT16", 0)]
    for seed in (1, 2):
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))
        assert excess(library, (1, 1, 193, D), (1, 193), dtype=dtype, causal=True, seed=seed) <= 1, seed


@pytest.mark.full
@with_auto
def test_on_an_l4_only_tilings_that_fit_it_are_chosen(auto_on_l4: ctypes.CDLL, tmp_path: Path) -> None:
    """A choice that an L4 has no shared memory for would fail to launch."""
    for D, lengths in ((64, (64, 256)), (128, (64,))):
        for S in lengths:
            assert excess(auto_on_l4, (1, 1, S, D), (1, S)) <= 1, (D, S)
    refused = compile_on_cpu(VARIANTS["flagship"], {"TILE_M": 32, "TILE_N": 128, "WARPS_KV": 4}, tmp_path)
    args = Args(B=1, H=1, S_q=1, S_kv=1, D=64, scale=1.0)
    assert refused.flashcore_forward(args) == 1  # 133 KB


#: A file, what is there, and what is put in its place.
FAULTS = {
    "P V summed up in FP16": (
        "mma_tiles.cuh",
        "(out[i][column], p[i], b[0], b[1]);",
        "(out[i][column], p[i], b[0], b[1]); for (float &x : out[i][column]) x = __float2half(x);",
    ),
    "a gain of 0.05 %": (
        "online_softmax.cuh",
        "p[i][r] = pack<T>(x, y);",
        "p[i][r] = pack<T>(x * 1.0005f, y * 1.0005f);",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(("fault", "keys"), [("", 512), ("P V summed up in FP16", 512), ("a gain of 0.05 %", 64)])
def test_a_planted_fault_is_above_the_tolerance(
    fault: str, keys: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(registry.CSRC, tmp_path / "csrc")
    if fault:
        file, there, instead = FAULTS[fault]
        source = tmp_path / "csrc" / file
        text = source.read_text()
        assert text.count(there) == 1
        source.write_text(text.replace(there, instead))
    monkeypatch.setattr(cuda_on_cpu, "CSRC", tmp_path / "csrc")
    tile = {"TILE_M": 32, "TILE_N": 64, "STAGES": 2, "PIPELINED": 1}
    library = compile_on_cpu(VARIANTS["flagship"], tile, tmp_path)
    assert (excess(library, (1, 1, 64, 64), (1, keys)) > 1) == bool(fault)
