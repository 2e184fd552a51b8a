"""The flagship's choice of a tiling: what it costs on measured times, and what it says of an L4.

results/reference/h100/tilings.json has the times of all tilings on all of a GPU's multiprocessors and on 58 of them.
The model is the library's own, csrc/flagship_cost.cuh.
"""

from __future__ import annotations

import ctypes
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashcore import toolchain
from flashcore.registry import CSRC
from tests.support.cuda_on_cpu.build import run

TIMES = json.loads((Path(__file__).resolve().parents[3] / "results/reference/h100/tilings.json").read_text())
HOPPER, ADA = (9, 0), (8, 9)
L4_SMS = 58
FIELDS = ("rows", "warp_rows", "keys", "groups", "warps", "pipelined", "tensor_sums", "resident")
#: The largest regret that there is: between two waves of blocks.
MOST = 0.13
SOURCE = """
#include "flagship_cost.cuh"

struct Numbers { int rows, warp_rows, keys, groups, warps, pipelined, tensor_sums, resident; };

extern "C" double clocks(const Numbers *c, const double *load, int causal, int processors, int major, int minor) {
  using namespace flashcore;
  const Chip chip = {processors, mma_clocks(major, minor)};
  return flashcore::clocks(*c, {load[0], load[1], load[2], load[3], load[4], causal != 0}, chip, c->resident);
}

extern "C" double mma(int major, int minor) { return flashcore::mma_clocks(major, minor); }
"""


class Numbers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in FIELDS]


Clocks = Callable[..., float]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("cost")
    (folder / "cost.cpp").write_text(SOURCE)
    made = str(folder / "cost.so")
    run([toolchain.cxx(), "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{CSRC}", "-o", made, str(folder / "cost.cpp")])
    loaded = ctypes.CDLL(made)
    loaded.clocks.restype = loaded.mma.restype = ctypes.c_double
    return loaded


@pytest.fixture(scope="module")
def clocks(library: ctypes.CDLL) -> Clocks:
    def of(tiling: dict[str, Any], shape: list[int], causal: int, sms: int, capability: tuple[int, int]) -> float:
        B, H, S, D = shape
        numbers = Numbers(*(tiling[name] for name in FIELDS))
        load = (ctypes.c_double * 5)(B, H, S, S, D)
        return float(library.clocks(ctypes.byref(numbers), load, causal, sms, *capability))

    return of


def tilings(D: int) -> list[dict[str, Any]]:
    return [one for one in TIMES["tilings"] if one["D"] == D]


def on_an_l4(D: int) -> list[dict[str, Any]]:
    """Those that fit 99 KB, with as many blocks as 100 KB hold (registers leave room for as many)."""
    found = []
    for one in tilings(D):
        states = 8 * one["groups"] * one["rows"] if one["groups"] > 1 else 0
        stages = int(one["name"].split(",")[2].rstrip("pstq"))
        shared = 2 * D * one["rows"] + states + 4 * D * one["groups"] * stages * one["keys"]
        if shared <= 99 * 1024 and not one["name"].endswith("q"):
            found.append({**one, "resident": 100 * 1024 // (shared + 1024)})
    return found


def fastest(clocks: Clocks, among: list[dict[str, Any]], *where: Any) -> int:
    return min(range(len(among)), key=lambda i: clocks(among[i], *where))


@pytest.mark.parametrize(("sms", "causal"), [(132, 0), (132, 1), (58, 0), (58, 1)])
def test_the_choice_costs_a_percent_of_the_fastest_tilings_time(clocks: Clocks, sms: int, causal: int) -> None:
    regrets = []
    for row in TIMES["rows"]:
        if (row["sms"], row["causal"]) == (sms, causal):
            chosen = fastest(clocks, tilings(row["shape"][3]), row["shape"], causal, sms, HOPPER)
            regrets.append(row["us"][chosen] / min(row["us"]) - 1)
    assert len(regrets) > 50
    assert statistics.mean(regrets) <= 0.01
    assert max(regrets) <= MOST


@pytest.mark.parametrize("causal", [0, 1])
def test_no_prediction_for_an_l4_is_below_its_tensor_floor(clocks: Clocks, causal: int) -> None:
    for shape in {tuple(row["shape"]) for row in TIMES["rows"]}:
        B, H, S, D = shape
        scores = B * H * S * (S + 1) / 2 if causal else B * H * S * S
        floor = 4 * scores * D / 4096 * 16 / (4 * L4_SMS)
        for tiling in on_an_l4(D):
            assert clocks(tiling, list(shape), causal, L4_SMS, ADA) >= floor, (tiling["name"], shape)


def test_on_58_multiprocessors_the_mission_gets_blocks_of_80_rows(clocks: Clocks) -> None:
    """56 of them: the present 64 of 64 rows left six multiprocessors with two."""
    among = on_an_l4(64)
    assert among[fastest(clocks, among, [1, 8, 512, 64], 0, L4_SMS, ADA)]["name"] == "80x16x64,2,2pst"


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), 8), ((8, 6), 16), ((8, 9), 16), ((9, 0), 6.63), ((10, 0), 8), ((12, 0), 16)]
)
def test_a_chips_rate_is_its_own(library: ctypes.CDLL, capability: tuple[int, int], expected: float) -> None:
    """sm_120 has a minor number of 0, as Hopper has."""
    assert library.mma(*capability) == expected
