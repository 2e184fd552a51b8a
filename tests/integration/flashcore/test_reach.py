"""Which tiling the library chooses on 58 and on 132 multiprocessors: compiled by nvcc, asked without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flashcore import reach, toolchain
from flashcore.build import build
from flashcore.errors import Unavailable
from flashcore.forced import Tiling
from flashcore.registry import VARIANTS

DOCS = Path(__file__).resolve().parents[3] / "docs"


def takes(D: int, mask: int) -> bool:
    return mask != reach.BOOLEAN or D in VARIANTS["flagship"].masks


@pytest.mark.full
def test_no_tiling_is_unreachable_in_silence_or_spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHCORE_CACHE", str(tmp_path))
    try:
        toolchain.nvcc()
    except Unavailable:
        pytest.skip("unavailable: compiling for sm_89 needs nvcc, a GPU it does not")
    found = reach.find()
    assert reach.unexplained(found) == []
    assert reach.table(found) in (DOCS / "flagship-notes.md").read_text(), "python -m flashcore.reach prints that table"
    for chip in reach.CHIPS:
        scanned = [mask for _, D in VARIANTS["flagship"].tilings for _, mask in reach.shapes(D) if takes(D, mask)]
        assert sum(map(len, found[chip.name].values())) == len(scanned)
    monkeypatch.setattr(reach, "UNREACHED", {})
    assert "L4: float16 64 32x16x128,2,1s" in reach.unexplained(found)
    built = build(VARIANTS["flagship"], archs="89,90a")
    assert built.cached
    for kernel in built.document["kernels"]:
        if kernel["arch"] == "sm_89":
            assert (kernel["stack_bytes"], kernel["spill_store_bytes"], kernel["spill_load_bytes"]) == (0, 0, 0)
            assert 0 < kernel["registers"] <= 255


def test_blocks_of_a_multiprocessor_are_those_that_the_docs_list() -> None:
    """docs/l4.md has shared memory, blocks and registers of each tiling."""
    l4, text = reach.CHIPS[0], (DOCS / "l4.md").read_text()
    listed = re.findall(r"\| (\d+x\d+x\d+), (\d), (\d) \| ([\d.]+) KB \| (\d) \| (\d+) \|", text)
    assert len(listed) >= 9
    for sizes, groups, stages, shared, blocks, registers in listed:
        one = Tiling(1, "float16", 64, f"{sizes},{groups},{stages}p")
        assert abs(one.shared / 1024 - float(shared)) <= 0.5, sizes
        assert reach.resident(one, int(registers), l4) == int(blocks), sizes


def test_a_reason_for_what_is_reached_is_told_too() -> None:
    one = Tiling(1, "float16", 64, "32x16x128,2,1s")
    others = sorted(": ".join(which) for which in reach.UNREACHED if which != ("L4", str(one)))
    assert others
    assert reach.unexplained({"L4": {one: []}}) == others
