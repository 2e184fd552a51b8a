"""Which tiling the library chooses on 58 and on 132 multiprocessors: compiled by nvcc, asked without a GPU."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from flashcore import build as building
from flashcore import forced, library, reach, toolchain
from flashcore.build import Built, build
from flashcore.errors import Unavailable
from flashcore.forced import Tiling
from flashcore.registry import VARIANTS

FLAGSHIP = VARIANTS["flagship"]
DOCS = Path(__file__).resolve().parents[3] / "docs"


def takes(D: int, mask: int) -> bool:
    return mask != reach.BOOLEAN or D in FLAGSHIP.masks


def flagship(libraries: tuple[int, ...] | None = None) -> Built:
    return build(FLAGSHIP, archs="89,90a", libraries=libraries)


@pytest.mark.full
@pytest.mark.first
def test_each_library_is_built_once_when_needed_and_no_tiling_is_unreachable_or_spills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, since compiling all tilings takes more than a minute of a processor."""
    monkeypatch.setenv("FLASHCORE_CACHE", str(tmp_path))
    try:
        toolchain.nvcc()
    except Unavailable:
        pytest.skip("unavailable: compiling for sm_89 needs nvcc, a GPU it does not")
    command = building._command  # its -O3 is for the host's code alone: with lines, a sixth of the time; no register
    plain = {"-O3": "-O1", "-lineinfo": "-O1"}
    monkeypatch.setattr(building, "_command", lambda *how: tuple(dict.fromkeys(plain.get(w, w) for w in command(*how))))
    a_library_is_built_when_it_is_needed_and_found_by_the_first_one()
    found = reach.find()
    assert reach.unexplained(found) == []
    assert reach.table(found) in (DOCS / "flagship-notes.md").read_text(), "python -m flashcore.reach prints that table"
    for chip in reach.CHIPS:
        scanned = [mask for _, D in FLAGSHIP.tilings for _, mask in reach.shapes(D) if takes(D, mask)]
        assert sum(map(len, found[chip.name].values())) == len(scanned)
    monkeypatch.setattr(reach, "UNREACHED", {})
    assert "L4: float16 64 32x16x128,2,1s" in reach.unexplained(found)
    built = flagship()
    assert built.cached
    for kernel in built.document["kernels"]:
        if kernel["arch"] == "sm_89":
            assert (kernel["stack_bytes"], kernel["spill_store_bytes"], kernel["spill_load_bytes"]) == (0, 0, 0)
            assert 0 < kernel["registers"] <= 255


def a_library_is_built_when_it_is_needed_and_found_by_the_first_one() -> None:
    for number in (0, 4):
        built = flagship((number,))
        assert not built.cached
        again = flagship((number,))
        assert again.cached
        assert again.document["kernels"] == built.document["kernels"]
    assert {p.name for p in built.library.parent.glob("*.so")} == {"kernel.so", "kernel-4.so"}
    assert any("Li80E" in kernel["mangled"] for kernel in built.document["kernels"])
    loaded = library.load(built, ctypes.CDLL)
    loaded.flashcore_tiling.restype = ctypes.c_char_p
    for one in forced.of(FLAGSHIP):
        there = FLAGSHIP.library_of(one.D, one.masked) in (0, 4)
        said = loaded.flashcore_tiling(reach.DTYPES.index(one.dtype), one.D, one.number)
        assert said == (one.name.encode() if there else None), one
    missing = library.Args(B=1, H=1, S_q=1, S_kv=1, D=96, scale=1.0)
    assert loaded.flashcore_error(loaded.flashcore_forward(ctypes.byref(missing))) == b"cudaErrorFileNotFound"


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
