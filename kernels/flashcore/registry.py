"""Every kernel variant: its source, the inputs it takes, and its compile-time parameters with their legal values.

To add a kernel: put its file in ``csrc/``, and a :class:`flashcore.variant.Variant` in ``VARIANTS``. Build, check,
bench, profile and the search over ``Variant.space()`` need nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flashcore.errors import UsageError, nearest
from flashcore.ladder import NAMED
from flashcore.variant import Constraint, Parameter, Variant

CSRC = Path(__file__).resolve().parent / "csrc"


def _stage2_shared_bytes(c: Mapping[str, int]) -> int:
    """kSharedBytes of stage2.cu: K, V with padded rows, Q or the weights in its place, a number per row."""
    rows, keys = c["TILE_M"], c["TILE_N"]
    return c["STAGES"] * keys * (128 + 144) + rows * max(128, 2 * (keys + 8)) + 4 * rows


#: Parameters of the flagship where TILE_M is 0.
_CHOSEN_BY_SHAPE = {
    "TILE_M": 0, "WARP_ROWS": 16, "TILE_N": 64, "WARPS_KV": 1, "STAGES": 1, "PIPELINED": 0, "MIN_BLOCKS": 0,
    "STAGGERED": 0, "TENSOR_SUMS": 0, "SHARED_Q": 0, "HEAD_DIM": 64, "BFLOAT16": 0,
}  # fmt: skip
_MASKED = ("32x16x64,2,2ptm", "64x16x64,1,2tm", "128x32x64,1,2tm")
_FOR_128 = ("32x16x64,4,1s", "64x16x64,2,1s", "64x16x64,1,2pt", "128x32x64,1,2tq", "32x16x64,2,1sm", "64x16x64,1,2ptm")
_FOR_80 = ("32x16x32,2,2pt", "64x16x48,1,2pt", "128x32x32,1,2pt", "128x32x48,1,2pt", "64x16x64,1,2ptm")
_FOR_96 = (*_FOR_80[:3], "128x32x64,1,1tq", _FOR_80[4])
_FOR_256 = ("32x16x32,2,1q", "64x16x64,1,1q", "128x16x32,1,1q")
_TYPES = ("float16", "bfloat16")
_FLAGSHIP_TILINGS = {
    ("float16", 64): (
        "16x16x16,4,2pt", "16x16x32,4,2pt", "16x16x64,4,2pt", "32x16x128,4,1s", "32x16x128,2,1s", "32x16x64,2,2pt",
        "64x16x64,1,2pt", "64x32x64,2,2pt", "128x32x64,1,2pt", "80x16x128,2,1stq",
        "128x32x64,1,2pt+64x32x64,2,2pt", "128x32x64,1,2pt+32x32x32,4,2pt", "128x32x64,1,2pt+64x16x64,1,2pt", *_MASKED,
    ),
    ("bfloat16", 64): (
        "16x16x32,4,2pt", "32x16x128,4,1s", "32x16x128,2,1s", "32x16x64,2,2pt", "64x32x64,2,2pt", "128x32x64,1,2pt",
        "80x16x128,2,1stq", *_MASKED,
    ),
    **{(dtype, 80): _FOR_80 for dtype in _TYPES}, **{(dtype, 96): _FOR_96 for dtype in _TYPES},
    **{(dtype, 128): _FOR_128 for dtype in _TYPES}, **{(dtype, 256): _FOR_256 for dtype in _TYPES},
}  # fmt: skip
_EXTENDED_FOR = {
    64: ("64x16x64,1,2tmc", "128x32x64,1,2tmc", "128x32x64,1,2ptw"),
    128: ("64x16x64,1,2tmc", "128x32x64,1,2tqmc", "128x32x64,1,2tqw"),
}
_EXTENDED_TILINGS = {(dtype, D): names for dtype in _TYPES for D, names in _EXTENDED_FOR.items()}


def _flagship_warps(c: Mapping[str, int]) -> int:
    return c["TILE_M"] // c["WARP_ROWS"] * c["WARPS_KV"]


VARIANTS: dict[str, Variant] = {
    v.name: v
    for v in (
        Variant(
            name="baseline",
            device="cuda",
            source=CSRC / "baseline.cu",
            summary="scalar, one block per query row, online softmax",
            parameters=(Parameter("KEYS", (32, 64, 128, 256), 64, "keys per tile"),),
            alignment=4,  # half2 loads
        ),
        Variant(
            name="wmma",
            device="cuda",
            source=CSRC / "wmma.cu",
            summary="both products on tensor cores through nvcuda::wmma, weights passed on in registers",
            parameters=(
                Parameter("TILE_N", (32, 64), 64, "keys per tile"),
                Parameter("WARPS", (2, 4, 8), 4, "warps per block"),
                Parameter("WARP_ROWS", (0, 16, 32), 0, "query rows per warp; 0: chosen by shape and device"),
            ),
            alignment=16,  # rows are read and written 16 bytes at a time
        ),
        Variant(
            name="fused",
            device="cuda",
            source=CSRC / "fused.cu",
            summary="mma.sync with probabilities in registers, swizzled cp.async tiles, keys divided between warps",
            parameters=(
                Parameter("TILE_M", (16, 32, 64, 128), 32, "query rows per block"),
                Parameter("TILE_N", (32, 64, 128), 32, "keys per warp and step"),
                Parameter("STAGES", (1, 2), 2, "number of buffers for K and for V"),
                Parameter("WARPS_KV", (1, 2, 4, 8), 4, "warps that divide the keys of the same rows"),
                Parameter("WARP_ROWS", (16, 32), 16, "query rows per warp"),
            ),
            constraints=(
                Constraint(
                    "a block must have whole warps: TILE_M >= WARP_ROWS", lambda c: c["TILE_M"] >= c["WARP_ROWS"]
                ),
                Constraint(
                    "a warp's scores must fit its registers: WARP_ROWS * TILE_N <= 2048",
                    lambda c: c["WARP_ROWS"] * c["TILE_N"] <= 2048,
                ),
                Constraint(
                    "a block of 512 threads has 128 registers for each: beyond 256, WARP_ROWS * TILE_N <= 512",
                    lambda c: c["TILE_M"] // c["WARP_ROWS"] * c["WARPS_KV"] <= 8 or c["WARP_ROWS"] * c["TILE_N"] <= 512,
                ),
                Constraint(
                    "Q, K and V must fit 99 KB of shared memory: TILE_M + 2 * STAGES * WARPS_KV * TILE_N <= 792",
                    lambda c: c["TILE_M"] + 2 * c["STAGES"] * c["WARPS_KV"] * c["TILE_N"] <= 792,
                ),
                Constraint(
                    "the data that the warps merge must fit in shared memory: TILE_M * (128 + 288 * (WARPS_KV - 1)) "
                    "<= 99 * 1024",
                    lambda c: c["TILE_M"] * (128 + 288 * (c["WARPS_KV"] - 1)) <= 99 * 1024,
                ),
            ),
            alignment=16,  # cp.async copies 16 bytes at a time
        ),
        Variant(
            name="stage2",
            device="cuda",
            source=CSRC / "stage2.cu",
            summary="tiles copied ahead by cp.async, mma.sync for QK, WMMA for PV with its weights in shared memory",
            parameters=(
                Parameter("TILE_M", (32, 64, 128), 64, "query rows per block"),
                Parameter("TILE_N", (32, 64, 128), 64, "keys per tile"),
                Parameter(
                    "STAGES", (2, 3, 4), 2, "tiles of K and V in shared memory: one in use, the others being loaded"
                ),
                Parameter("WARPS", (2, 4, 8), 4, "warps per block, which divide its rows"),
            ),
            constraints=(
                Constraint(
                    "a warp processes one or two blocks of 16 rows: TILE_M is 16 or 32 times WARPS",
                    lambda c: c["TILE_M"] // c["WARPS"] in (16, 32),
                ),
                Constraint(
                    "with 32 rows per warp only 32 keys fit its registers: TILE_M = 32 * WARPS needs TILE_N = 32",
                    lambda c: c["TILE_M"] // c["WARPS"] == 16 or c["TILE_N"] == 32,
                ),
                Constraint("the tiles must fit 99 KB of shared memory", lambda c: _stage2_shared_bytes(c) <= 99 * 1024),
            ),
            alignment=16,  # cp.async copies 16 bytes at a time
        ),
        Variant(
            name="stage5",
            device="cuda",
            source=CSRC / "stage5.cu",
            summary="producer warps fill rings of K and V tiles for consumer warps, in persistent blocks",
            parameters=(
                Parameter("NUM_PRODUCER_WARPS", (1, 2), 1, "warps that only copy: one for K and V, or one each"),
                Parameter("TILE_M", (32, 64, 128), 64, "query rows per block, 16 per consumer warp"),
                Parameter("TILE_N", (32, 64, 128), 64, "keys per tile"),
                Parameter("STAGES", (2, 3, 4), 2, "slots per ring: tiles of K, and of V, in flight or in use"),
                Parameter("PERSISTENT", (0, 1), 1, "1: persistent blocks, with several row tiles; 0: one per row tile"),
            ),
            constraints=(
                Constraint(
                    "both rings must fit 99 KB of shared memory: STAGES * TILE_N <= 384",
                    lambda c: c["STAGES"] * c["TILE_N"] <= 384,
                ),
                Constraint(
                    "a block of 128 rows has 168 registers per thread, too few for 128 keys: TILE_M * TILE_N <= 8192",
                    lambda c: c["TILE_M"] * c["TILE_N"] <= 8192,
                ),
            ),
            alignment=16,  # cp.async copies 16 bytes at a time
        ),
        Variant(
            name="flagship",
            device="cuda",
            source=CSRC / "flagship.cu",
            summary="more fusion: independent groups of warps, the next scores computed in place, tiling chosen by "
            "shape and device",
            parameters=(
                Parameter("TILE_M", (0, 16, 32, 64, 80, 96, 128), 0, "query rows per block; 0: all chosen by shape"),
                Parameter("WARP_ROWS", (16, 32), 16, "query rows per warp"),
                Parameter("TILE_N", (16, 32, 48, 64, 128), 64, "keys per warp and step"),
                Parameter("WARPS_KV", (1, 2, 4, 8), 1, "groups of warps that divide the keys of the same rows"),
                Parameter("STAGES", (1, 2, 3, 4), 1, "tiles of K, and of V, in flight or in use, per group"),
                Parameter(
                    "PIPELINED", (0, 1), 0, "1: compute QK of the next tile between the exponentials of this one"
                ),
                Parameter(
                    "MIN_BLOCKS", (0, 1, 2, 3, 4), 0, "blocks per multiprocessor for which the registers must be enough"
                ),
                Parameter("STAGGERED", (0, 1), 0, "1: half of the groups start their copies after the others"),
                Parameter("TENSOR_SUMS", (0, 1), 0, "1: compute row sums by mma with a column of ones"),
                Parameter("SHARED_Q", (0, 1), 0, "1: read queries from shared memory in each step"),
                Parameter("HEAD_DIM", (64, 80, 96, 128, 256), 64, "head dimension of a library with one tiling"),
                Parameter("BFLOAT16", (0, 1), 0, "1: a library with one tiling is for bfloat16 instead of FP16"),
                Parameter("SWIZZLE", (0, 1), 1, "0: no swizzle, to measure the cost of bank conflicts"),
            ),
            constraints=(
                Constraint(
                    "TILE_M=0 chooses the other parameters: do not set them",
                    lambda c: c["TILE_M"] > 0 or all(c[name] == value for name, value in _CHOSEN_BY_SHAPE.items()),
                ),
                Constraint(
                    "a block must have whole warps: TILE_M is a multiple of WARP_ROWS",
                    lambda c: c["TILE_M"] % c["WARP_ROWS"] == 0,
                ),
                Constraint(
                    "a warp's scores must fit its registers: WARP_ROWS * TILE_N <= 2048; pipelined, 16 rows: 1024",
                    lambda c: c["WARP_ROWS"] * c["TILE_N"] <= 2048 >> (c["PIPELINED"] and c["WARP_ROWS"] == 16),
                ),
                Constraint(
                    "a block of 512 threads has 128 registers for each: beyond 256, WARP_ROWS * TILE_N <= 1024",
                    lambda c: (
                        _flagship_warps(c) <= 8 or (_flagship_warps(c) <= 16 and c["WARP_ROWS"] * c["TILE_N"] <= 1024)
                    ),
                ),
                Constraint(
                    "a warp's output must fit its registers: WARP_ROWS * HEAD_DIM <= 4096",
                    lambda c: c["WARP_ROWS"] * c["HEAD_DIM"] <= 4096,
                ),
                Constraint(
                    "groups share out columns in eights: HEAD_DIM is a multiple of 8 * WARPS_KV",
                    lambda c: c["HEAD_DIM"] % (8 * c["WARPS_KV"]) == 0,
                ),
                Constraint("STAGGERED needs several groups: WARPS_KV >= 2", lambda c: c["WARPS_KV"] > c["STAGGERED"]),
                Constraint("PIPELINED needs STAGES >= 2", lambda c: c["STAGES"] > c["PIPELINED"]),
                Constraint(
                    "the rings must fit 227 KB of shared memory",
                    lambda c: (
                        2 * c["HEAD_DIM"] * c["TILE_M"]
                        + c["WARPS_KV"] * (8 * c["TILE_M"] + 4 * c["HEAD_DIM"] * c["STAGES"] * c["TILE_N"])
                        <= 227 * 1024
                    ),
                ),
                Constraint(
                    "a group's results must fit in the memory of its keys: TILE_M <= STAGES * TILE_N",
                    lambda c: c["WARPS_KV"] == 1 or c["TILE_M"] <= c["STAGES"] * c["TILE_N"],
                ),
                Constraint(
                    "MIN_BLOCKS needs at least 128 registers per thread",
                    lambda c: c["MIN_BLOCKS"] * _flagship_warps(c) <= 16,
                ),
            ),
            dtypes=("float16", "bfloat16"),
            head_dims=(64, 80, 96, 128, 256),
            chooses=True,
            tilings=_FLAGSHIP_TILINGS,
            # As csrc/flagship.cu tells them apart, 1.2 to 3 s of a processor each; 1 is what each library has.
            libraries=(
                (1 + 4, 32, 8, 16, 64, 2, 2048, 16384),
                (1 + 1024, 128, 256, 512),
                (1 + 4096,),
                (1 + 8192,),
                (1 + 32768, 65536),
                (1 + 131072, 262144),
                (1 + 524288, 1048576),
            ),
            library_of=lambda D, masked: {80: 4, 96: 5, 256: 6}.get(D, 2 * masked + (D == 128)),
            common=lambda c: {"TILE_M": 1} if c["TILE_M"] else {},  # the host's part of any one tiling
            told=("BFLOAT16", "HEAD_DIM", "TILE_M", "WARP_ROWS", "TILE_N", "WARPS_KV", "STAGES", "PIPELINED"),
            grouped_heads=True,
            lower_right=(64, 80, 96, 128),
            masks=(64, 80, 96, 128),
            alignment=16,  # cp.async copies 16 bytes at a time
        ),
        Variant(
            name="extended",
            device="cuda",
            source=CSRC / "extended.cu",
            summary="the flagship's loop with windows, softcap and ALiBi, also for packed sequences",
            dtypes=("float16", "bfloat16"),
            head_dims=(64, 128),
            chooses=True,
            tilings=_EXTENDED_TILINGS,
            grouped_heads=True,
            lower_right=(64, 128),
            masks=(64, 128),
            scores=True,
            window=True,
            packed=True,
            libraries=((1 + 2, 4),),  # as the source tells them apart: by type
            alignment=16,  # cp.async copies 16 bytes at a time
        ),
        Variant(
            name="decode",
            device="cuda",
            source=CSRC / "decode.cu",
            summary="few queries: heads that share keys in one mma's rows, keys divided between blocks, one launch",
            parameters=(
                Parameter("WARPS", (4, 8), 8, "warps per block, which divide its keys"),
                Parameter(
                    "BUFFERS", (1, 2), 2, "tiles of keys in a warp's registers: one in use, the others being loaded"
                ),
            ),
            dtypes=("float16", "bfloat16"),
            head_dims=(64, 128),
            chooses=True,
            # The number of splits, of which the first are forced one by one; any up to 256 is taken.
            tilings={
                (dtype, D): ("1 split", *(f"{n} splits" for n in range(2, 6))) for D in (64, 128) for dtype in _TYPES
            },
            grouped_heads=True,
            lower_right=(64, 128),
            window=True,
            libraries=((1 + 2, 4),),  # as the source tells them apart: by type
            alignment=16,  # rows are read 16 bytes at a time
        ),
        Variant(
            name="paged",
            device="cuda",
            source=CSRC / "decode.cu",
            summary="decode with keys and values in a paged cache",
            parameters=(Parameter("PAGED", (1,), 1, "1: pages, with a page table and lengths that the GPU reads"),),
            dtypes=("float16", "bfloat16"),
            head_dims=(64, 128),
            causal=False,  # to the lower right corner of each batch's keys only
            chooses=True,
            grouped_heads=True,
            lower_right=(64, 128),
            window=True,
            pages=True,
            libraries=((1 + 2, 4),),  # as the source tells them apart: by type
            alignment=16,  # rows are read 16 bytes at a time
        ),
        Variant(
            name="fp8",
            device="cuda",
            source=CSRC / "fp8.cu",
            summary="8-bit tensor cores: int8 for QK, E4M3 for PV, means subtracted first; quantisation included",
            parameters=(
                Parameter("TILE_M", (32, 64, 128), 64, "query rows per block, 16 per warp"),
                Parameter("STAGES", (2, 3, 4), 3, "tiles of 64 keys and values in flight or in use"),
                Parameter("QK_INT8", (0, 1), 1, "1: Q and K as signed bytes; 0: as E4M3"),
            ),
            grouped_heads=True,
            alignment=16,  # rows are read 16 bytes at a time
            eight_bits="all",
        ),
        Variant(
            name="int8",
            device="cuda",
            source=CSRC / "int8.cu",
            summary="int8 for QK, FP16 for PV; K without its mean; quantisation included",
            parameters=(
                Parameter("TILE_M", (64, 128), 128, "query rows per block"),
                Parameter("WARP_ROWS", (16, 32), 32, "query rows per warp"),
                Parameter("STAGES", (2, 3, 4), 2, "tiles of K, and of V, in flight or in use"),
                Parameter("TENSOR_SUMS", (0, 1), 1, "1: compute row sums by mma with a column of ones"),
            ),
            head_dims=(64, 128),
            grouped_heads=True,
            alignment=16,  # rows are read 16 bytes at a time
            eight_bits="qk",
        ),
        Variant(
            name="cpu",
            device="cpu",
            source=CSRC / "cpu.cpp",
            summary="blocked online softmax on vector lanes and threads",
            parameters=(
                Parameter("ROWS", (32, 64, 128, 256), 128, "query rows per task"),
                Parameter("KEYS", (32, 64, 128, 256), 128, "keys per block"),
            ),
        ),
    )
}

DEFAULTS = {"cuda": "baseline", "cpu": "cpu"}


def split(label: str) -> tuple[str, list[str]]:
    """``stage5:NUM_PRODUCER_WARPS=2+TILE_M=64`` -> the variant's name, and the settings as ``--set`` takes them; of a
    rung's name (:mod:`flashcore.ladder`) those that make it come first."""
    name, _, settings = label.partition(":")
    if name in NAMED:
        name, _, own = NAMED[name].label.partition(":")
        settings = f"{own}+{settings}"
    return name, [part for part in settings.split("+") if part]


def find(name: str, device: Callable[[], str]) -> Variant:
    """The variant called ``name``; ``auto`` is the plainest one for ``device()``, cuda or cpu.

    Raises:
        UsageError: no such variant; the hint names the nearest and lists all.
    """
    if name == "auto":
        name = DEFAULTS[device()]
    if name not in VARIANTS:
        raise UsageError(
            f"this source tree has no kernel variant {name!r}",
            cause=f"kernels/flashcore/registry.py lists {len(VARIANTS)} variants, without this one",
            hint=nearest(name, ["auto", *VARIANTS, *NAMED]),
        )
    return VARIANTS[name]
