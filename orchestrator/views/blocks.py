"""What every view is made of, whatever it is printed as: text, facts, tables, bars, findings and pictures.

``table.py`` renders blocks to a terminal, ``html.py`` to a page; Markdown is here, since it needs no library.
All text is clean of control characters; each renderer escapes it for its own output. Names of compiled kernels are made
short here, and still told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fcctl_remote.base.text import kernel_name
from orchestrator.base.sanitize import clean, markdown_table
from orchestrator.base.sanitize import markdown as escape
from orchestrator.results.levers import Finding


@dataclass(frozen=True)
class Cell:
    """A cell with a ``note`` beside it. ``kind``: status, code, bold, good, bad, doubt, soft, or empty.

    ``href``: a path of the dashboard. ``points``: on a page a small line of these, with ``text`` as its alternative.
    """

    text: str
    note: str = ""
    kind: str = ""
    href: str = ""
    points: tuple[float, ...] = ()


#: A row of a table.
Line = tuple[str | Cell, ...]


@dataclass(frozen=True)
class Grid:
    """A table. Columns in ``numbers`` are aligned right, rows in ``references`` are not ours.

    A terminal leaves out empty columns in ``optional``; one that is too narrow leaves out others of them, the first of
    them first; -1 stands for the notes. Values of the column ``group`` are lines of their own once it is left out;
    those in ``below`` are then in a line for each row below the table. A header without a word is not shown. Text in
    the columns ``fold`` is never cut.
    """

    kind: ClassVar[str] = "grid"
    header: tuple[str, ...]
    rows: tuple[Line, ...]
    caption: str = ""
    numbers: tuple[int, ...] = ()
    references: tuple[int, ...] = ()
    optional: tuple[int, ...] = ()
    group: int | None = None
    below: tuple[int, ...] = ()
    fold: tuple[int, ...] = ()
    #: On a page each row has a box with its key, for the form ``pick``; those in ``chosen`` are checked.
    keys: tuple[str, ...] = ()
    chosen: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Chart:
    """One picture, with its words and its numbers for those who do not see it. ``name``: a file's, without ending.
    ``spec`` is a Vega-Lite specification."""

    name: str
    title: str
    caption: str
    spec: dict[str, Any]
    header: tuple[str, ...]
    rows: tuple[Line, ...]
    #: As a grid's, of the numbers.
    keys: tuple[str, ...] = ()
    #: What the picture shows, above it.
    notes: tuple[Text, ...] = ()

    @property
    def numbers(self) -> Grid:
        caption = f"{self.title}: values"
        return Grid(self.header, self.rows, caption, numbers=tuple(range(1, len(self.header))), keys=self.keys)


@dataclass(frozen=True)
class Text:
    """A paragraph. A ``note`` explains, and is left out of Markdown. ``style``: soft, notice, hint, good, bad,
    doubt, answer, path (kept in one piece), or empty."""

    kind: ClassVar[str] = "text"
    text: str
    note: bool = False
    style: str = ""


def more(rows: Sequence[object], limit: int) -> Iterator[Text]:
    """The line that says how many rows are not shown, if any."""
    if len(rows) > limit:
        yield Text(f"... and {len(rows) - limit} more", style="soft")


@dataclass(frozen=True)
class Heading:
    kind: ClassVar[str] = "heading"
    text: str
    soft: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str | Cell], ...]


@dataclass(frozen=True)
class Bar:
    """A value with its words, drawn from ``start``; ``low`` and ``high`` bound its interval.

    ``role``: good, bad, plain, reference. ``href`` as a cell's.
    """

    label: str
    value: float
    text: str
    role: str = "plain"
    low: float | None = None
    high: float | None = None
    start: float = 0.0
    href: str = ""


@dataclass(frozen=True)
class Bars:
    """Values on one axis, from zero at least to ``most``, or as points on both sides of ``middle``."""

    kind: ClassVar[str] = "bars"
    caption: str
    bars: tuple[Bar, ...]
    middle: float | None = None
    most: float = 0.0

    def at(self, value: float) -> float:
        """Where ``value`` is on the axis, in percent."""
        ends = [end for b in self.bars for end in (b.value, b.low, b.high) if end is not None]
        least = 0.0 if self.middle is None else min(self.middle, *ends)
        most = max(self.middle or 0.0, self.most, *ends)
        if self.middle is not None:  # what means no change is seen, too, where all bars are on one side of it
            least, most = least - (most - least) / 50, most + (most - least) / 50
        return round(100 * (value - least) / (most - least or 1.0), 2)


@dataclass(frozen=True)
class Findings:
    """Findings with the shape that each was found on, the most important first."""

    kind: ClassVar[str] = "findings"
    findings: tuple[tuple[str, Finding], ...]


@dataclass(frozen=True)
class Picture:
    kind: ClassVar[str] = "picture"
    chart: Chart


@dataclass(frozen=True)
class Folded:
    """Shown on a page once it is unfolded, or from the start."""

    kind: ClassVar[str] = "folded"
    summary: str
    blocks: tuple[Block, ...]
    is_open: bool = False


Block = Grid | Text | Heading | Facts | Bars | Findings | Picture | Folded


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: Sequence[Block]


#: A page that answers first shows longer tables on demand.
LONG = 8


def closed(blocks: Iterable[Block]) -> Iterator[Block]:
    """For a page that answers first: what is folded, and long tables, are shown on demand."""
    for block in blocks:
        if isinstance(block, Folded):
            yield replace(block, is_open=False)
        else:
            yield Folded(block.caption, (block,)) if isinstance(block, Grid) and len(block.rows) > LONG else block


# ------------------------------------------------------------------------------------------------ Markdown
#: The five verdicts of a comparison.
_SIGNS = {"slower": "🔴 ", "faster": "🟢 ", "same": "⚪ ", "inconclusive": "🟡 ", "incomparable": "🟡 "}


def markdown(blocks: Iterable[Block], pictures: Mapping[str, str] | None = None) -> Iterator[str]:
    """Lines of Markdown, a blank one after each block. ``pictures``: the file of each chart by its name."""
    for block in blocks:
        yield from _markdown(block, pictures or {})
        yield ""


def markdown_page(title: str, *parts: Iterable[str]) -> str:
    """A file of Markdown, with one blank line at most between its paragraphs."""
    text = "\n".join([f"# {escape(title)}", "", *(line for part in parts for line in part)])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _markdown(block: Block, pictures: Mapping[str, str]) -> Iterator[str]:
    match block:
        case Text():
            yield "" if block.note else escape(block.text)
        case Heading():
            yield f"### {escape(f'{block.text} {block.soft}'.rstrip())}"
        case Facts():
            yield from (f"- {escape(name)}: {escape(plain(value))}" for name, value in block.pairs)
        case Grid():
            yield from (escape(block.caption), "")
            rows = [[plain(cell) for cell in row] for row in block.rows]
            yield from markdown_table(block.header, rows, right=block.numbers)
        case Bars():
            yield from (f"- {escape(bar.label)}: {escape(bar.text)}" for bar in block.bars)
        case Findings():
            yield from _findings(block)
        case Picture():
            yield from (f"### {escape(block.chart.title)}", "")
            yield f"![{escape(block.chart.caption)}](<{pictures[block.chart.name]}>)"
        case Folded():
            yield from (f"<details{' open' * block.is_open}><summary>{escape(block.summary)}</summary>", "")
            yield from (*markdown(block.blocks, pictures), "</details>")


def plain(cell: str | Cell) -> str:
    """The cell with its note as text."""
    if isinstance(cell, str):
        return cell
    text = _SIGNS.get(cell.text, "") + cell.text.replace("_", " ") if cell.kind == "status" else cell.text
    return text + (f"{'; ' if cell.kind == 'status' else ' '}{cell.note}" if cell.note else "")


def _findings(block: Findings) -> Iterator[str]:
    for i, (shape, finding) in enumerate(block.findings, 1):
        facts = "; ".join(f"{name} {value} (rule: {threshold})" for name, value, threshold in finding.facts)
        where = f" On {shape}:" if shape else ""
        yield f"{i}. **{escape(finding.bottleneck)}**.{escape(where)} {escape(facts)}. Next: {escape(finding.lever)}."


_OPEN, _CLOSE = "<([{", ">)]}"


def apart(names: Sequence[str], width: int) -> list[str]:
    """Each in at most ``width`` characters. Of one template's kernels only the arguments that differ are kept."""
    names = [kernel_name(clean(name, 1000)) for name in names]
    groups: dict[str, set[str]] = {}
    for name in names:
        groups.setdefault(name.partition("<")[0], set()).add(name)
    short = {}
    for base, members in groups.items():
        arguments = {name: _arguments(name) for name in members}
        counts = {len(found) for found in arguments.values()}
        rows = list(arguments.values())
        differ = [i for i in range(min(counts)) if len({row[i] for row in rows}) > 1] if len(counts) == 1 else None
        for name, found in arguments.items():
            kept = found if differ is None else [found[i] for i in differ]
            left_out = "" if differ is None or len(differ) == len(found) else "..., "
            short[name] = f"{base}<{left_out}{', '.join(kept)}>" if len(members) > 1 and kept else name
    return [shorten(short[name], width) for name in names]


def _arguments(name: str) -> list[str]:
    """The template's arguments, and whatever follows them as one more: ``64``, ``true``, ``(Params)``."""
    _, _, rest = name.partition("<")
    found: list[str] = []
    depth, word = 0, ""
    for i, char in enumerate(rest):
        if char == ">" and depth == 0:
            return [*found, word.strip(), *filter(None, [rest[i + 1 :].strip()])]
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == "," and depth == 0:
            found, word = [*found, word.strip()], ""
        else:
            word += char
    return [*found, word.strip()]


def shorten(name: str, width: int) -> str:
    """In at most ``width`` characters. The end is kept, too: that is where names differ."""
    if len(name) <= width:
        return name
    end = width * 2 // 3
    return f"{name[: width - end - 3]}...{name[-end:]}"
