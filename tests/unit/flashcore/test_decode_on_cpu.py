"""The logic of decode.cu without a GPU: rows shared by heads, splits and who merges them, and how many are chosen.

Not covered, by nature: what the compiler makes of it, memory ordering between blocks (which run one by one), and
speed.
"""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace

import pytest
import torch

from flashcore import roundings
from flashcore.build import Built
from flashcore.errors import Unsupported
from flashcore.extras import LOWER_RIGHT, Pages, Scores
from flashcore.launch import DTYPES, Kernel
from flashcore.library import Args
from flashcore.reach import Device
from flashcore.reference import expected
from flashcore.registry import VARIANTS
from tests.support.cuda_on_cpu.build import compile_on_cpu
from tests.support.cuda_on_cpu.launch import among_nans, arguments, launch, run
from tests.unit.flashcore.test_packed_and_paged_operators import in_pages

pytestmark = [pytest.mark.group("decode"), pytest.mark.full]  # to compile it takes seven seconds of a processor


def prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.flashcore_workspace_bytes.argtypes = [ctypes.POINTER(Args)]
    library.flashcore_workspace_bytes.restype = ctypes.c_size_t
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Any two threads that touch the same shared memory without a barrier between fail a launch."""
    return prepared(compile_on_cpu(VARIANTS["decode"], {}, tmp_path_factory.mktemp("decode"), races=True))


class Call:
    """Arguments and memory of a launch; ``queries`` are B, H, S_q, D, ``keys`` H_kv and S_kv."""

    def __init__(
        self,
        queries: tuple[int, int, int, int],
        keys: tuple[int, int],
        splits: int = 0,
        dtype: torch.dtype = torch.float16,
        causal: int = False,
        scale: float = 0.125,
        scores: Scores | None = None,
    ) -> None:
        (B, H, S_q, D), (H_kv, S_kv) = queries, keys
        self.causal, self.scale, self.scores = causal, scale, scores
        self.q = among_nans(dtype, B, H, S_q, D)
        self.k, self.v = (among_nans(dtype, B, H_kv, S_kv, D) for _ in range(2))
        self.out = among_nans(dtype, B, H, S_q, D)
        self.args = arguments(self.q, self.k, self.v, self.out, scale=scale, causal=causal, tiling=splits)
        if scores is not None:
            scores.fill(self.args)

    def used(self, library: ctypes.CDLL, workspace: torch.Tensor | None = None) -> float:
        """The part of the tolerance that the errors of a launch use. The workspace begins as NaN and ends unharmed
        behind what was asked for."""
        size = library.flashcore_workspace_bytes(self.args)
        memory = torch.full((size + 64,), 255, dtype=torch.uint8) if workspace is None else workspace
        self.args.workspace = memory.data_ptr()
        self.out.fill_(torch.nan)
        launch(library, self.args)
        assert bool((memory[size : size + 64] == 255).all())
        right = expected(self.q, self.k, self.v, causal=self.causal, scale=self.scale, scores=self.scores)
        return roundings.judge(self.out.double(), right).used


@pytest.mark.parametrize(("splits", "causal"), [(s, c) for s in (1, 3, 11) for c in (0, 1, LOWER_RIGHT)])
def test_right_for_any_number_of_rows_and_keys(
    library: ctypes.CDLL, splits: int, causal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row to several tiles of them, with heads that share keys on both sides of a tile's edge; one key to several
    steps of each warp; splits that have no keys."""
    torch.manual_seed(0)
    for seed, (H, S_q, H_kv, S_kv) in enumerate(
        [(1, 1, 1, 1), (4, 1, 1, 700), (5, 1, 5, 33), (16, 1, 2, 150), (3, 11, 1, 97), (2, 40, 2, 31), (12, 2, 4, 400)]
    ):
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))  # odd: copies come late
        assert Call((2, H, S_q, 64), (H_kv, S_kv), splits, causal=causal).used(library) <= 1, (H, S_q, H_kv, S_kv)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [64, 128])
def test_both_types_and_head_dimensions(library: ctypes.CDLL, D: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    for splits in (1, 5):
        for H in (8, 24):  # half of an mma's rows, and more
            assert Call((2, H, 1, D), (2, 300), splits, dtype, scale=-0.3).used(library) <= 1, (splits, H)


@pytest.mark.parametrize("splits", [0, 1, 5])
def test_a_window_hides_all_but_the_last_keys_of_each_query(library: ctypes.CDLL, splits: int) -> None:
    """Of one key, within a tile, across several, and wider than all; rows that see none; more rows than a row tile."""
    torch.manual_seed(6)
    shapes = [(4, 1, 1, 700), (6, 5, 2, 333), (2, 40, 2, 300), (2, 9, 1, 5)]
    causal = itertools.cycle((0, LOWER_RIGHT, LOWER_RIGHT))
    for (H, S_q, H_kv, S_kv), left in itertools.product(shapes, (0, 20, 150, -1)):
        call = Call((1, H, S_q, 64), (H_kv, S_kv), splits, causal=next(causal), scores=Scores((left, 0)))
        assert call.used(library) <= 1, (H, S_q, H_kv, S_kv, left, call.causal)


def test_a_launch_leaves_its_workspace_ready_for_its_replay(library: ctypes.CDLL) -> None:
    """As a graph launches again and again, with the same arguments in the same memory, whatever that holds at first."""
    torch.manual_seed(2)
    call = Call((1, 4, 1, 64), (1, 500), splits=7)
    workspace = torch.randint(0, 255, (library.flashcore_workspace_bytes(call.args) + 64,), dtype=torch.uint8)
    workspace[-64:] = 255
    for _ in range(3):
        assert call.used(library, workspace) <= 1
        assert not workspace[:8].any()  # of those that have arrived
        call.v.normal_()


def test_keys_of_minus_infinity_have_no_weight(library: ctypes.CDLL) -> None:
    """Whole splits of them, too: infinity minus infinity must not come up."""
    torch.manual_seed(3)
    for splits in (1, 4):
        call = Call((1, 4, 1, 64), (1, 512), splits)
        call.q[..., 0] = 1.0
        call.k[:, :, :300, 0] = -torch.inf
        assert call.used(library) <= 1


@pytest.mark.parametrize("settings", [{"WARPS": 4, "BUFFERS": 1}], ids=str)
def test_other_tiles(settings: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> None:
    library = prepared(compile_on_cpu(VARIANTS["decode"], settings, tmp_path_factory.mktemp("decode"), races=True))
    torch.manual_seed(4)
    for splits in (1, 3):
        for D in (64, 128):
            assert Call((1, 6, 3, D), (2, 1000), splits, causal=False).used(library) <= 1, (splits, D)


def test_pages_in_any_order_and_lengths_on_the_device(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No key at all, one page and many; what lies behind the last key is NaN."""
    folder = tmp_path_factory.mktemp("paged")
    library = prepared(compile_on_cpu(VARIANTS["paged"], {}, folder, races=True))
    variant = replace(VARIANTS["paged"], device="cpu")
    kernel = Kernel(Built(variant, variant.configure(), *(folder / "paged.so",) * 2, {}, "paged"))
    torch.manual_seed(5)
    for keys, (H, S_q, H_kv, S, D) in itertools.product(
        (16, 64), ((4, 1, 2, 100, 64), (2, 1, 1, 5000, 64), (8, 3, 1, 300, 128))
    ):
        q, k, v = (torch.randn(3, h, n, D).half() for h, n in ((H, S_q), (H_kv, S), (H_kv, S)))
        lengths = torch.tensor([S, 0, S // 2 + 1], dtype=torch.int32)
        key_cache, value_cache, table = in_pages(k, v, keys)
        pages = {"page_keys": keys, "table": table.data_ptr(), "table_stride": table.stride(0)}
        for splits, causal, left in ((0, 0, None), (4, 0, None), (0, 2, None), (4, 2, None), (2, 2, 40), (1, 0, 130)):
            scores = None if left is None else Scores((left, 0))
            window = {} if left is None else {"window_left": left + 1, "window_right": 1}
            out = run(library, q, key_cache, value_cache, causal=causal, tiling=splits, S_kv=table.shape[1] * keys,
                      lengths=lengths.data_ptr(), **pages, **window)  # fmt: skip
            assert not out[1].any()
            for b in (0, 2):
                one = slice(b, b + 1), slice(None), slice(int(lengths[b]))
                right = expected(q[b : b + 1], k[one], v[one], causal=causal, scores=scores)
                assert roundings.judge(out[b : b + 1].double(), right).used <= 1, (keys, H, splits, causal, left, b)
        by_name = kernel.extended((Pages(table, lengths),), q, key_cache, value_cache, causal=LOWER_RIGHT)
        assert roundings.judge(by_name[2:].double(), expected(q[2:], k[2:, :, : lengths[2]], v[2:, :, : lengths[2]],
                                                              causal=LOWER_RIGHT)).used <= 1  # fmt: skip
        for k_one, v_one in ((k, v), (among_nans(k.dtype, *k.shape), among_nans(k.dtype, *k.shape))):  # as if of pages
            assert roundings.judge(kernel(q, k_one, v_one).double(), expected(q, k_one, v_one)).used <= 1
    with pytest.raises(Unsupported, match="cannot be read as pages"):
        kernel(q, k, torch.cat((v, v), 2)[:, :, : v.shape[2]])
    args = Args(B=1, H=1, H_kv=1, S_q=1, S_kv=64, D=64, scale=1.0)
    for wrong in ({"page_keys": 0}, {"page_keys": 24}, {"page_keys": 16}, {"page_keys": 16, "causal": 1}):
        for name, value in wrong.items():
            setattr(args, name, value)
        assert library.flashcore_forward(args) == 1, wrong  # the third: no table


def test_what_it_does_not_take(library: ctypes.CDLL) -> None:
    for wrong in (
        {"page_keys": 16},
        {"D": 96},
        {"H_kv": 3},
        {"S_kv": 0},
        {"B": 70000},
        {"tiling": -1},
        {"tiling": 257},
        {"dtype": 2},
        {"softcap": 1.0},
        {"window_left": 9},  # and any key behind
        {"window_left": 9, "window_right": 1, "causal": 1},
    ):
        args = Args(**{"B": 1, "H": 4, "H_kv": 2, "S_q": 1, "S_kv": 9, "D": 64, "scale": 1.0, **wrong})
        assert library.flashcore_workspace_bytes(args) == 0
        assert library.flashcore_forward(args) == 1, wrong
    args = Args(B=1, H=4, H_kv=2, S_q=1, S_kv=900, D=64, scale=1.0, tiling=3)
    assert library.flashcore_forward(args) == 1  # and no workspace


def choice(library: ctypes.CDLL, chip: tuple[int, int], B: int, H_kv: int, rows: int, keys: int, D: int) -> int:
    """``chip``: multiprocessors, and how many blocks each holds at a time."""
    args = Args(B=B, H=H_kv * rows, H_kv=H_kv, S_q=1, S_kv=keys, D=D, scale=1.0)
    device = Device(chip[0], 99 * 1024, 8, 9)
    return int(library.flashcore_choice(ctypes.byref(args), ctypes.byref(device), (ctypes.c_int32 * 1)(chip[1])))


L4, HOPPER = (58, 1), (132, 2)


def test_as_many_splits_as_fill_the_multiprocessors_and_no_more(library: ctypes.CDLL) -> None:
    for chip in (L4, HOPPER):
        for B, H_kv, keys in ((1, 8, 4096), (1, 1, 32768), (8, 8, 4096), (1, 32, 4096)):
            splits = choice(library, chip, B, H_kv, 4, keys, 128)
            assert 0.4 * chip[0] <= B * H_kv * splits <= 3 * chip[0] * chip[1], (chip, B, H_kv, keys, splits)
        assert choice(library, chip, 32, 32, 1, 32768, 64) == 1  # more heads than places for blocks
        assert choice(library, chip, 1, 8, 4, 16, 128) == 1  # one tile of keys
        assert choice(library, chip, 1, 8, 4, 128, 128) == 1  # a merge would take longer
    args = Args(B=1, H=32, H_kv=8, S_q=1, S_kv=4096, D=128, scale=1.0, causal=1)
    device = Device(132, 99 * 1024, 9, 0)
    assert library.flashcore_choice(ctypes.byref(args), ctypes.byref(device), (ctypes.c_int32 * 1)(2)) == 1  # one key
