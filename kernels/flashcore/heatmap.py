"""``python -m flashcore.heatmap DOCUMENT.. --to sweep.svg``: a sweep over shapes as two heat maps, in one static SVG.

Documents are of kind ``benchmark`` (flashcore bench, mode hot). On the left the kernel's time over FlashAttention-2's,
on the right over that of PyTorch's fastest backend among those that were timed; B x H down, S across. Blue is faster,
orange is slower, two colours that people with any kind of colour vision tell apart; each cell has its number, in black
on a light colour. Around the cells the drawing follows the reader's light or dark theme.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from flashcore import documents
from flashcore.errors import FlashcoreError, UsageError

FLASH = "sdpa-flash"
#: Beyond these ratios the colour stays the same.
LEAST, MOST = 0.4, 2.0
#: sRGB at the least ratio, at 1 and at the largest: black text on each of them has a contrast of at least 7.
FASTER, EVEN, SLOWER = (110, 168, 224), (244, 244, 240), (240, 150, 60)
CELL_W, CELL_H, LEFT, TOP, GAP = 58, 30, 74, 64, 40
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.cell{font-size:12px;fill:#000;text-anchor:middle}"
    ".head{text-anchor:middle}.side{text-anchor:end}.title{font-weight:600}.none{fill:none;stroke:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.cell{fill:#000}.cell.none{fill:#8c959f;stroke:none}}"
)

#: (B, H, S) -> the kernel's time over each backend's.
Ratios = dict[tuple[int, int, int], dict[str, float]]


@dataclass(frozen=True)
class Panel:
    title: str
    values: Mapping[tuple[int, int, int], float]


def read(paths: Iterable[Path]) -> tuple[str, str, Ratios]:
    """The kernel, the GPU, and the hot ratios of all documents together.

    Raises:
        UsageError: a file is not a benchmark document, or they are of several kernels or GPUs.
    """
    found: Ratios = {}
    sources = set()
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            sources.add((document["label"], str(document["environment"]["device"])))
            shapes = {row["name"]: row["shape"] for row in document["benchmarks"]}
            pairs = [c for c in document["comparisons"] if c["mode"] == "hot" and not c["null"]]
            for pair in pairs:
                shape = shapes[pair["benchmark"]]
                rival = str(pair["against"]).removeprefix(f"{pair['benchmark']}/")
                found.setdefault((shape["B"], shape["H"], shape["S"]), {})[rival] = float(pair["ratio"])
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise UsageError(f"{path} is not a benchmark document", cause=f"{type(e).__name__}: {e}") from e
    if len(sources) != 1:
        raise UsageError(
            "a heat map needs one kernel on one GPU", cause=f"these documents are of {sorted(sources) or 'none'}"
        )
    ((label, gpu),) = sources
    return label, gpu, found


def panels(ratios: Ratios) -> list[Panel]:
    """Left and right; a ratio to the fastest backend is the largest of a shape's."""
    flash = {shape: of[FLASH] for shape, of in ratios.items() if FLASH in of}
    fastest = {shape: max(of.values()) for shape, of in ratios.items() if of}
    return [Panel("time over FlashAttention-2", flash), Panel("time over the fastest backend", fastest)]


def colour(ratio: float) -> str:
    """Of a cell: from :data:`EVEN` at 1 towards the ends by the logarithm of ``ratio``."""
    end, reach = (FASTER, LEAST) if ratio < 1 else (SLOWER, MOST)
    share = min(1.0, math.log(ratio) / math.log(reach))
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(EVEN, end))  # noqa: B905 (Python 3.9)
    return f"#{red:02x}{green:02x}{blue:02x}"


def svg(title: str, ratios: Ratios) -> str:
    """The drawing; cells without a measurement are empty."""
    rows = sorted({(b, h) for b, h, _ in ratios}, key=lambda r: (r[0] * r[1], r))
    columns = sorted({s for _, _, s in ratios})
    wide, high = LEFT + CELL_W * len(columns), TOP + CELL_H * len(rows) + 16
    parts = [f'<text class="title" x="8" y="20">{escape(title)}</text>']
    for number, panel in enumerate(panels(ratios)):
        parts += _panel(panel, rows, columns, number * (wide + GAP))
    size = f'width="{2 * wide + GAP}" height="{high}" viewBox="0 0 {2 * wide + GAP} {high}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def _panel(panel: Panel, rows: Sequence[tuple[int, int]], columns: Sequence[int], x: int) -> list[str]:
    middle = x + LEFT + CELL_W * len(columns) / 2
    parts = [f'<text class="head" x="{middle:g}" y="42">{escape(panel.title)}</text>']
    for column, length in enumerate(columns):
        at = x + LEFT + CELL_W * (column + 0.5)
        parts.append(f'<text class="head" x="{at:g}" y="{TOP - 6}">{length}</text>')
    for row, (batch, heads) in enumerate(rows):
        y = TOP + CELL_H * row
        parts.append(f'<text class="side" x="{x + LEFT - 8}" y="{y + 20}">{batch} x {heads}</text>')
        for column, length in enumerate(columns):
            parts += _cell(panel.values.get((batch, heads, length)), x + LEFT + CELL_W * column, y)
    return parts


def _cell(ratio: float | None, x: int, y: int) -> list[str]:
    box = f'x="{x}" y="{y}" width="{CELL_W - 2}" height="{CELL_H - 2}" rx="3"'
    if ratio is None:
        return [f'<rect class="none" {box}/>']
    at = f'x="{x + (CELL_W - 2) / 2:g}" y="{y + 19}"'
    return [f'<rect fill="{colour(ratio)}" {box}/>', f'<text class="cell" {at}>{ratio:.2f}</text>']


def slower(ratios: Ratios, than: float = 1.05) -> list[str]:
    """Shapes whose time is more than ``than`` of FlashAttention-2's, worst first, for people."""
    found = sorted(((of[FLASH], shape) for shape, of in ratios.items() if of.get(FLASH, 0) > than), reverse=True)
    return [f"{','.join(map(str, shape))}: {ratio:.2f} of FlashAttention-2's time" for ratio, shape in found]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.heatmap", description=__doc__)
    parser.add_argument("documents", nargs="+", type=Path, metavar="DOCUMENT")
    parser.add_argument("--to", type=Path, required=True, help="the SVG file")
    options = parser.parse_args(argv)
    label, gpu, ratios = read(options.documents)
    title = f"{label} on an {gpu}, D = 64: {len(ratios)} shapes, B x H down, S across"
    print(documents.write_text(options.to, svg(title, ratios)))
    worse = slower(ratios)
    print("\n".join(worse) or "no shape is more than 5 % slower than FlashAttention-2")
    return 0


def _exit(argv: Sequence[str] | None = None) -> Any:
    try:
        return main(argv)
    except FlashcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(_exit())
