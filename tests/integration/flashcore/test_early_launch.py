"""Kernels that are launched through csrc/driver.cuh wait for the launches ahead of them before they touch memory."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from flashcore import toolchain
from flashcore.errors import FlashcoreError
from flashcore.registry import CSRC

#: Of each library one unit that is quick to compile.
UNITS = {"flagship.cu": ["-DPART=8"], "extended.cu": ["-DPART=2"], "decode.cu": ["-DPART=2", "-DPAGED=0"],
         "decode.cu paged": ["-DPART=2", "-DPAGED=1"], "flagship.cu masked": ["-DPART=4096"]}  # fmt: skip
MEMORY = re.compile(r"^\s*(?:@%p\d+ )?(?:ld\.(?:volatile\.)?global|st\.(?:volatile\.)?global|cp\.async\.cg|atom|red)")


def kernels(unit: str, arch: str, tmp_path: Path) -> list[list[str]]:
    """The lines of each kernel's PTX."""
    try:
        nvcc = toolchain.nvcc()
    except FlashcoreError as e:
        pytest.skip(str(e))
    ptx = tmp_path / "unit.ptx"
    source = CSRC / unit.split(maxsplit=1)[0]
    command = [nvcc, "-ptx", f"-arch=compute_{arch}", "-std=c++17", *UNITS[unit], "-o", str(ptx), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return [kernel.splitlines() for kernel in ptx.read_text().split(".entry")[1:]]


def first(pattern: str | re.Pattern[str], lines: list[str]) -> int:
    return next(i for i, line in enumerate(lines) if re.search(pattern, line))


@pytest.mark.parametrize("unit", UNITS)
def test_each_kernel_waits_before_it_touches_memory(unit: str, tmp_path: Path) -> None:
    found = kernels(unit, "90", tmp_path)
    assert found
    for lines in found:
        assert first(r"griddepcontrol\.wait", lines) < first(MEMORY, lines)
        assert first(r"griddepcontrol\.wait", lines) < first(r"griddepcontrol\.launch_dependents", lines)


def test_an_l4_has_none_of_it(tmp_path: Path) -> None:
    found = kernels("flagship.cu", "89", tmp_path)
    assert found
    assert not any("griddepcontrol" in line for lines in found for line in lines)
