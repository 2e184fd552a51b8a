"""``python -m flashcore.reach``: which tiling the flagship's library chooses for which shapes, on an L4 and on an H100.

Asked is the library itself (``flashcore_choice``), which is built for both and needs no GPU for it. How many blocks of
a tiling a multiprocessor holds follows from the registers that the compiler gave it, as CUDA's occupancy calculator has
it. Printed is the table of docs/flagship-notes.md: for each tiling how many of the shapes reach it, and one of them. A
tiling that none reaches has its reason in :data:`UNREACHED`; the command fails if one has none.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flashcore import build, forced
from flashcore.errors import FlashcoreError
from flashcore.forced import Tiling
from flashcore.library import Args, load
from flashcore.registry import VARIANTS
from flashcore.shapes import Shape

DTYPES = ("float16", "bfloat16")
_ARGUMENT = re.compile(r"L(?:NS_4TypeE|S\d*_|i|b)(\d+)E")


@dataclass(frozen=True)
class Chip:
    name: str
    arch: str
    processors: int
    capability: tuple[int, int]
    shared: int  # KB of a multiprocessor; a block has one less
    warps: int  # of a multiprocessor, and:
    blocks: int


CHIPS = (Chip("L4", "sm_89", 58, (8, 9), 100, 48, 24), Chip("H100", "sm_90a", 132, (9, 0), 228, 64, 32))
REGISTERS, WARP_UNIT, RESERVED = 65536, 256, 1024
_ELSEWHERE = "for an H100"
#: Tilings that no shape of the scan reaches on a chip that they fit, and why they are in the library.
UNREACHED: dict[tuple[str, str], str] = {
    ("L4", "float16 64 32x16x128,2,1s"): _ELSEWHERE,
    ("L4", "bfloat16 64 32x16x128,2,1s"): _ELSEWHERE,
    **{("L4", f"{dtype} 80 128x32x48,1,2pt"): _ELSEWHERE for dtype in DTYPES},
    **{("L4", f"{dtype} 128 64x16x64,2,1s"): _ELSEWHERE for dtype in DTYPES},
    **{("H100", f"{dtype} 96 128x32x32,1,2pt"): "for an L4" for dtype in DTYPES},
    ("H100", "float16 64 128x32x64,1,2pt+64x16x64,1,2pt"): "for an L4",
    ("H100", "float16 256 128x16x32,1,1q"): "for an L4",
    ("H100", "bfloat16 256 128x16x32,1,1q"): "for an L4",
}


class Device(ctypes.Structure):
    """``flashcore_device`` of csrc/flashcore.h."""

    _fields_ = tuple((name, ctypes.c_int32) for name in ("processors", "shared_bytes", "major", "minor"))


#: Of a scan's shapes, by number.
NONE, CAUSAL, BOOLEAN = range(3)
MASKS = ("", " causal", " with a mask")


def shapes(D: int) -> Iterator[tuple[Shape, int]]:
    """The scan, and which mask: heads in all, lengths, the same for keys or not."""
    lengths = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
    every = range(len(MASKS))
    for S, heads, mask in itertools.product(lengths, (1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256), every):
        yield Shape(1, heads, S, D), mask
    for S_q, S_kv, heads in itertools.product((1, 16, 64, 4096), (64, 512, 2048, 16384), (1, 8, 32, 128)):
        if S_q != S_kv:
            yield from ((Shape(1, heads, S_q, D, S_kv), mask) for mask in (NONE, BOOLEAN))


def resident(tiling: Tiling, registers: int, chip: Chip) -> int:
    """Blocks that a multiprocessor holds at a time."""
    of_warp = -(-registers * 32 // WARP_UNIT) * WARP_UNIT
    by_registers = 4 * (REGISTERS // 4 // of_warp) // tiling.warps  # each quarter has its own
    by_shared = chip.shared * 1024 // (tiling.shared + RESERVED)
    return max(1, min(by_registers, by_shared, chip.warps // tiling.warps, chip.blocks))


def registers_of(kernels: Sequence[Mapping[str, object]]) -> dict[tuple[str, str, int, str], int]:
    """Registers by architecture, type, head dimension and name."""
    found = {}
    for kernel in kernels:
        mangled = str(kernel["mangled"])
        values = [int(value) for value in _ARGUMENT.findall(mangled)]
        type_, D = values[:2]
        names = [_named(*values[at + 2 : at + 12]) for at in range(0, len(values), 12)]
        twice = "5Twice" in mangled  # named by its first tiling; the second is for keys without holes
        name = (names[0] if twice else "+".join(names)) + "m" * (twice or "6Masked" in mangled)
        found[str(kernel["arch"]), DTYPES[type_], D, name] = int(str(kernel["registers"]))
    return found


def _named(rows: int, warp_rows: int, keys: int, groups: int, stages: int, *flags: int) -> str:
    pipelined, _, staggered, sums, shared = flags
    how = "".join(letter for letter, on in zip("pstq", (pipelined, staggered, sums, shared)) if on)  # noqa: B905
    return f"{rows}x{warp_rows}x{keys},{groups},{stages}{how}"


def reached(built: build.Built, chip: Chip) -> dict[Tiling, list[tuple[Shape, int]]]:
    """For each tiling that fits ``chip`` the shapes of the scan that it is chosen for."""
    library = load(built, ctypes.CDLL)
    known = registers_of(built.document["kernels"])
    device = Device(chip.processors, (chip.shared - 1) * 1024, *chip.capability)
    found: dict[Tiling, list[tuple[Shape, int]]] = {}
    for dtype, D in built.variant.tilings:
        each = {one.number: one for one in forced.among(built.variant, dtype, D)}
        held = (ctypes.c_int32 * max(each))()
        for number, one in each.items():
            held[number - 1] = resident(one, known[chip.arch, dtype, D, one.name], chip)
        found.update({one: [] for one in each.values() if one.fits(chip.capability)})
        for shape, mask in shapes(D):
            if mask == BOOLEAN and D not in built.variant.masks:
                continue
            args = Args(B=1, H=shape.H, S_q=shape.S, S_kv=shape.keys, D=D, dtype=DTYPES.index(dtype))
            args.causal, args.mask = int(mask == CAUSAL), int(mask == BOOLEAN)  # the choice asks only if it is null
            number = library.flashcore_choice(ctypes.byref(args), ctypes.byref(device), held)
            found[each[number]].append((shape, mask))
    return found


def table(found: Mapping[str, Mapping[Tiling, list[tuple[Shape, int]]]]) -> str:
    chips = " | ".join(f"{chip.name}, {chip.processors} multiprocessors" for chip in CHIPS)
    lines = [f"| type, D | tiling | {chips} |", "|---" * 4 + "|"]
    for one in forced.of(VARIANTS["flagship"]):
        cells = [_cell(chip.name, one, found[chip.name].get(one)) for chip in CHIPS]
        lines.append(f"| {one.dtype}, {one.D} | {one.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(chip: str, one: Tiling, shapes: list[tuple[Shape, int]] | None) -> str:
    if shapes is None:
        return "does not fit"
    if not shapes:
        return "none: " + UNREACHED.get((chip, str(one)), "no reason is known")
    shape, mask = shapes[len(shapes) // 2]
    keys = f" to {shape.keys}" if shape.keys != shape.S else ""
    return f"{len(shapes)}, as {shape.H} heads, {shape.S}{keys}{MASKS[mask]}"


def unexplained(found: Mapping[str, Mapping[Tiling, list[tuple[Shape, int]]]]) -> list[str]:
    """Tilings that nothing reaches, without a reason; and reasons for what is reached."""
    empty = {(chip, str(one)) for chip, tilings in found.items() for one, shapes in tilings.items() if not shapes}
    return sorted(f"{chip}: {name}" for chip, name in empty ^ set(UNREACHED))


def find() -> dict[str, dict[Tiling, list[tuple[Shape, int]]]]:
    """Raises: as :func:`flashcore.build.build`."""
    built = build.build(VARIANTS["flagship"], archs=",".join(chip.arch[3:] for chip in CHIPS))
    return {chip.name: reached(built, chip) for chip in CHIPS}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flashcore.reach", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(argv)
    found = find()
    print(table(found))
    wrong = unexplained(found)
    for one in wrong:
        print(f"error: no shape reaches this tiling, or one does and UNREACHED names it: {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FlashcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
