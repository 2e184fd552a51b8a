"""docs/next-kernel.md: its ladder is the registry's, its figures those that were measured."""

from __future__ import annotations

import re
from pathlib import Path

from fcctl_remote.gates import evaluate as gates
from flashcore import registry

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/next-kernel.md").read_text()
MEASURED = (ROOT / "docs/kernels.md").read_text().split("### NVIDIA H200")[1]


def test_the_ladder_s_times_are_the_measured_ones() -> None:
    found = dict(re.findall(r"`(\w+)`, ([\d.]+) us", PAGE))
    assert list(found) == ["baseline", "wmma", "stage2", "fused", "flagship"]
    for name, time in found.items():
        (hot,) = re.findall(rf"^\| `{name}` \| ([\d.]+) \|", MEASURED, re.MULTILINE)[:1]
        assert name in registry.VARIANTS
        assert f"{float(hot):.{len(time.partition('.')[2])}f}" == time


def test_the_gate_is_one_and_the_files_exist() -> None:
    (expr,) = re.findall(r"`(benchmark\.[^`]+)`", PAGE)
    gates.parse(expr)
    for name in ("registry.py", "tables.py", "csrc/flashcore.h"):
        assert name.rpartition("/")[2] in PAGE
        assert (ROOT / "kernels/flashcore" / name).exists()


def test_the_guide_is_short() -> None:
    assert len(PAGE.split()) <= 340, "300 of prose, and the bars of a table"
