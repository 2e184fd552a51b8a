"""The kernels' logic without a GPU: the same source, compiled for the processor (tests/support/cuda_on_cpu).

Not covered, by nature: what the compiler makes of it, memory ordering, and speed.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcore import inputs, roundings
from flashcore.check import Guarded
from flashcore.reference import expected
from flashcore.registry import VARIANTS
from flashcore.shapes import Shape
from tests.support.cuda_on_cpu.build import compile_on_cpu
from tests.support.cuda_on_cpu.launch import arguments, launch

#: Tile sizes that show each way a kernel can be cut up; every one is a library of its own.
CONFIGURATIONS = [
    ("baseline", {}),
    ("wmma", {}),
    ("wmma", {"TILE_N": 32, "WARP_ROWS": 32}),
    ("wmma", {"TILE_N": 32, "WARPS": 2, "WARP_ROWS": 16}),
    ("fused", {}),
    ("fused", {"STAGES": 1, "WARPS_KV": 1}),
    ("fused", {"TILE_M": 64, "TILE_N": 64, "WARPS_KV": 2, "WARP_ROWS": 32}),
    ("stage2", {}),
    ("stage2", {"TILE_M": 64, "TILE_N": 32, "WARPS": 2, "STAGES": 3}),
    ("stage5", {}),
    ("stage5", {"TILE_M": 32, "TILE_N": 32, "NUM_PRODUCER_WARPS": 2, "STAGES": 3}),
    ("stage5", {"TILE_M": 128, "TILE_N": 32, "STAGES": 4, "PERSISTENT": 0}),
]

SHAPES = [
    Shape(1, 2, 1, 64),
    Shape(2, 2, 17, 64),
    Shape(1, 1, 63, 64),
    Shape(1, 1, 65, 64),
    Shape(1, 1, 1, 64, S_kv=200),
    Shape(1, 1, 130, 64, S_kv=1),
    Shape(1, 1, 40, 64, S_kv=97),
    Shape(1, 1, 97, 64, S_kv=40),
    Shape(1, 1, 20, 64, S_kv=300),
]


def among_nans(tensor: torch.Tensor, heads_last: bool) -> torch.Tensor:
    """The same values with NaN before, after and between them: rows of 80, and [B,S,H,D] order if ``heads_last``."""
    order = tensor.transpose(1, 2) if heads_last else tensor
    rows = order.shape[:-1]
    buffer = torch.full(((rows.numel() + 2 * 64) * 80,), torch.nan, dtype=tensor.dtype)
    inner = buffer[64 * 80 : -64 * 80].view(*rows, 80)[..., 8:72]
    inner.copy_(order)
    return inner.transpose(1, 2) if heads_last else inner


def label(configuration: tuple[str, dict[str, int]]) -> str:
    return "-".join([configuration[0], *(f"{k}={v}" for k, v in configuration[1].items())])


def in_one_worker(configuration: tuple[str, dict[str, int]]) -> Any:
    """A parameter whose tests share a worker, so that its library is compiled once.

    Two of them are enough for ``make test``.
    """
    marks = [pytest.mark.group(label(configuration))]
    if configuration not in (CONFIGURATIONS[5], CONFIGURATIONS[7]):
        marks.append(pytest.mark.full)
    return pytest.param(configuration, marks=marks, id=label(configuration))


@pytest.fixture(scope="module", params=[in_one_worker(one) for one in CONFIGURATIONS])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    name, overrides = request.param
    fragments = "Ampere" if name == "wmma" else "Scattered"
    return compile_on_cpu(VARIANTS[name], overrides, tmp_path_factory.mktemp(name), fragments)


def refusal(library: ctypes.CDLL, shape: Shape, seed: int, values: str, causal: bool, scale: float) -> str | None:
    """Why the kernel's output is not right, None if it is."""
    tensors = inputs.draw(shape, seed, "cpu", values)
    q, k, v = (among_nans(t, heads_last=seed % 2 == 1) for t in tensors)
    target = Guarded(shape, "cpu", heads_last=seed % 2 == 0)
    code = library.flashcore_forward(arguments(q, k, v, target.out, causal=int(causal), scale=scale))
    if code:
        return str(library.flashcore_error(code).decode())
    fault = roundings.judge(target.out.double(), expected(q, k, v, causal=causal, scale=scale)).fault
    return fault or (None if target.intact() else "wrote outside its output")


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_on_awkward_lengths(
    library: ctypes.CDLL, shape: Shape, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):  # copies late, copies at once
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))
        assert refusal(library, shape, seed, "plain", causal, 0.125) is None, f"seed {seed}"


@pytest.mark.parametrize(("values", "scale"), [("large", 0.125), ("hot_row", 0.3), ("negative", -0.2), ("plain", 0.0)])
def test_right_on_hostile_values(library: ctypes.CDLL, values: str, scale: float) -> None:
    assert refusal(library, Shape(1, 1, 70, 64), 3, values, True, scale) is None


@pytest.mark.full
@pytest.mark.parametrize("producers", [1, 2])
def test_persistent_blocks_share_out_groups_of_heads(producers: int, tmp_path: Path) -> None:
    """Four heads of so many keys that L2 takes three, a smaller last group, and more row tiles than blocks."""
    tile = {"TILE_M": 32, "TILE_N": 32, "NUM_PRODUCER_WARPS": producers}
    library = compile_on_cpu(VARIANTS["stage5"], tile, tmp_path)
    assert refusal(library, Shape(1, 4, 70, 64, S_kv=20_000), 1, "plain", True, 0.125) is None


@pytest.mark.full
def test_wmma_has_no_32_rows_where_its_code_for_a_device_has_none(tmp_path: Path) -> None:
    shape = Shape(1, 20, 257, 64, S_kv=33)  # rows for 60 blocks
    library = compile_on_cpu(VARIANTS["wmma"], {}, tmp_path, "Ampere", arch=890)
    assert refusal(library, shape, 1, "plain", True, 0.125) is None
    (tmp_path / "wide").mkdir()
    wide = compile_on_cpu(VARIANTS["wmma"], {"WARP_ROWS": 32}, tmp_path / "wide", "Ampere", arch=890)
    assert refusal(wide, shape, 1, "plain", True, 0.125) == "cudaErrorInvalidValue"


@pytest.mark.full
@pytest.mark.parametrize("fragments", ["Scattered", "Apart"])
def test_wmma_is_refused_where_fragments_lie_otherwise(fragments: str, tmp_path: Path) -> None:
    library = compile_on_cpu(VARIANTS["wmma"], {}, tmp_path, fragments)
    assert refusal(library, Shape(1, 1, 17, 64), 1, "plain", False, 0.125) == "cudaErrorNotSupported"


def test_keys_of_minus_infinity_have_no_weight(library: ctypes.CDLL) -> None:
    """Whole tiles of them, the first one, too: infinity minus infinity must not come up."""
    q, k, v = inputs.draw(Shape(1, 1, 33, 64, S_kv=200), 5, "cpu")
    q[..., 0] = 1.0
    k[:, :, :64, 0] = k[:, :, 128:192, 0] = -torch.inf
    out = torch.full_like(q, torch.nan)
    launch(library, arguments(q, k, v, out, scale=0.125))
    assert roundings.judge(out.double(), expected(q, k, v, scale=0.125)).fault is None
