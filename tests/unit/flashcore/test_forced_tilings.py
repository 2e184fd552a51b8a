"""Every tiling of the flagship, forced: by its library compiled for the processor, and by libraries that cheat."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcore import forced, registry, sanitize
from flashcore.build import Built, build
from flashcore.errors import LaunchFailed
from flashcore.extras import LOWER_RIGHT
from flashcore.forced import Case
from flashcore.inputs import MASKS
from flashcore.launch import Kernel
from flashcore.library import Args, Strides
from flashcore.reach import Device
from flashcore.shapes import Shape
from flashcore.variant import Variant

FLAGSHIP = registry.VARIANTS["flagship"]
#: In place of those for a GPU: grouped heads, a mask, a tail on either side; strided; hostile and repeated; for
#: those that take it, a boolean mask.
CASES = (
    Case("shared", Shape(1, 2, 33, 64, 70), causal=True, heads=1),
    Case("sliced", Shape(1, 2, 40, 64), layout="sliced"),
    Case("hot_row", Shape(1, 1, 17, 64, 90), "hot_row", scale=-0.3, repeats=2),
    Case("masked", Shape(2, 1, 17, 64, 90), causal=LOWER_RIGHT, mask="holes"),
)
with_auto = pytest.mark.group("flagship-auto")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    def cases(D: int) -> Iterator[Case]:
        yield from (replace(case, shape=replace(case.shape, D=D)) for case in CASES)

    monkeypatch.setattr(forced, "cases", cases)


def kernel_of(library: ctypes.CDLL) -> Kernel:
    variant, file = replace(FLAGSHIP, device="cpu"), Path(library._name)
    return Kernel(Built(variant, variant.configure(), file, file, {}, "flagship"))


def test_what_a_tiling_needs_follows_from_its_name() -> None:
    needed = {str(one): one.least_shared for one in forced.of(FLAGSHIP)}
    assert len(needed) == sum(map(len, FLAGSHIP.tilings.values()))
    assert needed["float16 64 64x16x64,1,2pt"] == 40 * 1024
    assert needed["bfloat16 64 32x16x128,4,1s"] == 133 * 1024
    assert needed["float16 128 128x32x64,1,2tq"] == 100 * 1024  # more than its 96: kLeastShared
    an_l4 = [str(one) for one in forced.of(FLAGSHIP) if one.fits((8, 9))]
    assert "float16 64 32x16x128,4,1s" not in an_l4
    assert all(one.fits((9, 0)) for one in forced.of(FLAGSHIP))
    assert all(one.fits((8, 9)) for one in forced.of(registry.VARIANTS["decode"]))  # numbers of splits


@pytest.mark.full
@with_auto
def test_the_registry_lists_the_librarys_tilings(auto: ctypes.CDLL) -> None:
    auto.flashcore_tiling.restype = ctypes.c_char_p
    for dtype, D in FLAGSHIP.tilings:
        number = ("float16", "bfloat16").index(dtype)
        listed = {one.number: one.name.encode() for one in forced.among(FLAGSHIP, dtype, D)}
        said = {n: auto.flashcore_tiling(number, D, n) for n in range(max(listed) + 2)}
        assert {n: name for n, name in said.items() if name} == listed


@pytest.mark.full
@with_auto
def test_each_is_right_where_it_fits_and_refused_elsewhere(auto_on_l4: ctypes.CDLL) -> None:
    entries = forced.run(kernel_of(auto_on_l4), seed=1)
    fits = {str(one): one.fits((8, 9)) for one in forced.of(FLAGSHIP)}
    assert {f"{e['dtype']} {e['D']} {e['name']}": e["status"] == "passed" for e in entries} == fits
    assert {e["status"] for e in entries} == {"passed", "unavailable"}
    launched = {(e["name"].endswith("m"), e["launches"]) for e in entries if e["status"] == "passed"}
    assert launched == {(False, 4), (True, 5)}
    assert forced.counted(entries) == {
        "total": len(fits), "passed": sum(fits.values()), "failed": 0, "unavailable": len(fits) - sum(fits.values())
    }  # fmt: skip


@pytest.mark.full
@with_auto
def test_the_sanitizer_watches_each_that_fits(auto_on_l4: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced, "WATCHED", ((1, 2, 17, 1, 20),))
    monkeypatch.setattr(sanitize, "SHAPES", ())
    watched = [one for one in forced.of(FLAGSHIP) if one.fits((8, 9))]
    masks = len(MASKS) * sum(one.masked for one in watched)
    assert sanitize.launches(kernel_of(auto_on_l4)) == 2 * len(watched) + masks


@pytest.mark.full
@with_auto
def test_masks_have_tilings_of_their_own_and_those_of_rows_one_that_leaves_tiles_out(auto: ctypes.CDLL) -> None:
    h100 = Device(132, 227 * 1024, 9, 0)

    def chosen(D: int, causal: int = 0, row: int | None = None, S_kv: int = 2048) -> str:
        names = {one.number: one.name for one in forced.among(FLAGSHIP, "float16", D)}
        args = Args(B=4, H=16, S_q=2048, S_kv=S_kv, D=D, causal=causal)
        if row is not None:
            args.mask, args.mask_stride = 1, Strides(0, 0, row)  # the choice asks only if it is null
        blocks = [2 if names.get(n, "").startswith("128") else 3 for n in range(1, max(names) + 1)]
        held = (ctypes.c_int32 * len(blocks))(*blocks)
        return names[auto.flashcore_choice(ctypes.byref(args), ctypes.byref(h100), held)]

    for D in (64, 128):
        assert not chosen(D).endswith("m")
        assert not chosen(D, causal=LOWER_RIGHT).endswith("m")  # both corners are one
        assert chosen(D, causal=LOWER_RIGHT, S_kv=4096).endswith("m")
        assert chosen(D, row=0).endswith("m")
    assert chosen(64, row=2048) == "64x16x64,1,2tm"
    assert chosen(128, row=2048) == "32x16x64,2,1sm"
    assert chosen(64, row=0) == "128x32x64,1,2tm"


#: A right attention that takes any tiling, none, or is wrong by one.
STUB = """
#include <cmath>
#include <vector>
#include "flashcore.h"
typedef _Float16 half;
FLASHCORE_API int flashcore_forward(const flashcore_args *a) {
  if (a->tiling > TILINGS) return 1;
  const int64_t D = a->D, share = a->H / a->H_kv;
  for (int64_t b = 0; b < a->B; ++b) for (int64_t h = 0; h < a->H; ++h) for (int64_t i = 0; i < a->S_q; ++i) {
    auto row = [&](const void *at, const flashcore_strides &s, int64_t head, int64_t n) {
      return const_cast<half *>(static_cast<const half *>(at)) + b * s.batch + head * s.head + n * s.row; };
    const int64_t keys = a->causal && i + 1 < a->S_kv ? i + 1 : a->S_kv;
    std::vector<double> p(keys), o(D);
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t d = 0; d < D; ++d)
        p[j] += double(row(a->q, a->q_stride, h, i)[d]) * double(row(a->k, a->k_stride, h / share, j)[d]);
      p[j] *= a->scale, most = p[j] > most ? p[j] : most;
    }
    for (int64_t j = 0; j < keys; ++j) {
      p[j] = std::exp(p[j] - most), sum += p[j];
      for (int64_t d = 0; d < D; ++d) o[d] += p[j] * double(row(a->v, a->v_stride, h / share, j)[d]);
    }
    for (int64_t d = 0; d < D; ++d)
      row(a->o, a->o_stride, h, i)[d] = half(float(o[d] / sum * (a->tiling == WRONG ? 1.0005 : 1)));
  }
  return 0;
}
FLASHCORE_API const char *flashcore_error(int) { return "refused"; }
FLASHCORE_API size_t flashcore_args_bytes(void) { return sizeof(flashcore_args); }
"""


def stub(folder: Path, patch: pytest.MonkeyPatch, known: int, wrong: int, **about: Any) -> Kernel:
    """Takes as many tilings as ``known``, of which that numbered ``wrong`` is."""
    patch.setenv("FLASHCORE_CACHE", str(folder / "cache"))
    (folder / "stub.cpp").write_text(f"#define TILINGS {known}\n#define WRONG {wrong}\n{STUB}")
    return Kernel(build(Variant("stub", "cpu", folder / "stub.cpp", "", **about)))


@pytest.mark.parametrize(
    ("tilings", "wrong", "status", "said"),
    [
        (2, 9, ["passed", "passed"], "worst"),
        (99_999, 9, ["failed", "failed"], "does not exist ran"),  # it takes the number for nothing
        (2, 2, ["passed", "failed"], "the gain of"),  # by half a thousandth, in one tiling
        (1, 9, ["passed", "failed"], "refused"),
    ],
)
def test_a_library_that_cheats_is_found_out(
    tilings: int, wrong: int, status: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {("float16", 64): ("16x16x16,4,2pt", "64x16x64,1,2pt")}
    kernel = stub(tmp_path, monkeypatch, tilings, wrong, grouped_heads=True, tilings=listed)
    assert [str(one) for one in forced.chosen_from(kernel)] == [
        "float16 64 16x16x16,4,2pt",
        "float16 64 64x16x64,1,2pt",
    ]
    entries = forced.run(kernel, seed=3)
    assert [entry["status"] for entry in entries] == status
    assert said in entries[-1]["message"]


def test_a_forced_call_says_that_it_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = stub(tmp_path, monkeypatch, 0, 9)
    q = torch.zeros(1, 1, 3, 64, dtype=torch.float16)
    assert kernel(q, q, q).equal(q)
    with pytest.raises(LaunchFailed):
        kernel.forced(1)(q, q, q)
    assert kernel(q, q, q).equal(q)
