"""Tables and lines for a terminal. All text in them is shown as it is: nothing is read as rich's markup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from orchestrator.base.sanitize import ascii_only, clean, clean_text
from orchestrator.views import blocks
from orchestrator.views.figures import MARKS

_ANY_WIDTH = 10_000
#: A line, a line with its style, or what rich can render.
Piece = str | tuple[str, str] | RenderableType


def _table(**options: Any) -> Table:
    return Table(**{"box": None, "pad_edge": False, "header_style": "dim", **options})


def mark(status: str) -> Text:
    """``✓ passed`` in its colour."""
    sign, colour = MARKS.get(status, ("?", "red"))
    return Text(f"{sign} {clean(status.replace('_', ' '), 40)}".strip(), style=colour)


def unbroken(label: str, path: str = "", style: str = "") -> Text:
    """A path or command in one piece, however wide the terminal is, so that it can be copied."""
    return Text(label, style, no_wrap=True, overflow="ignore").append(path, "not bold")


def line(piece: Piece) -> RenderableType:
    """The piece as rich renders it."""
    return Text(piece) if isinstance(piece, str) else Text(*piece) if isinstance(piece, tuple) else piece


def show(console: Console, *pieces: Piece, width: int | None = None) -> None:
    """Print without the blanks that a table or its padding ends in, and in ASCII where the terminal has no more.
    Whoever wrote a text, a job's title for example, it cannot drive the terminal.

    A text that is not to be wrapped (a path) goes out in one piece, however long.
    """
    for piece in pieces:
        one = line(piece)
        wide = _ANY_WIDTH if isinstance(one, Text) and one.no_wrap else width or console.width
        options = console.options.update(width=wide, markup=False, highlight=False)
        lines = console.render_lines(one, options, pad=False)
        plain = None if "utf" in console.encoding.lower() else ascii_only
        console.print(Segments(_trimmed(lines, plain)), crop=False, end="", soft_wrap=True)


def _trimmed(lines: list[list[Segment]], plain: Callable[[str], str] | None) -> Iterator[Segment]:
    for segments in lines:
        while segments and not segments[-1].text.strip():
            segments.pop()
        if segments:
            *front, last = segments
            for text, style, _ in (*front, Segment(last.text.rstrip(), last.style)):
                shown = clean_text(text)
                yield Segment(plain(shown) if plain else shown, style)
        yield Segment("\n")


def _fits(console: Console, table: Table, width: int) -> bool:
    return Measurement.get(console, console.options.update(width=_ANY_WIDTH), table).maximum <= width


class FirstThatFits:
    """Of several tables that show the same, the first that is not wider than the terminal, the last if none is; each
    with the lines below it, and the table whose width counts, in which columns that fold are narrow."""

    def __init__(self, choices: Sequence[tuple[Table, Table, Sequence[Text]]]) -> None:
        self._choices = choices

    def _chosen(self, console: Console, options: ConsoleOptions) -> RenderableType:
        fitting = (one for one in self._choices[:-1] if _fits(console, one[0], options.max_width))
        _, table, below = next(fitting, self._choices[-1])
        return Group(table, *below) if below else table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._chosen(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._chosen(console, options))


# ------------------------------------------------------------------------------------------------ blocks
_STYLES = {
    "soft": "dim", "notice": "yellow", "hint": "cyan", "bold": "bold", "good": "green", "bad": "red", "doubt": "yellow",
}  # fmt: skip


def show_blocks(console: Console, what: Iterable[blocks.Block]) -> None:
    """Print them; pictures are for pages alone."""
    for block in what:
        show(console, *rendered(block))


def rendered(block: blocks.Block) -> Iterator[Piece]:
    match block:
        case blocks.Text():
            path = block.style == "path"
            yield unbroken(block.text) if path else (block.text, "dim" if block.note else _STYLES.get(block.style, ""))
        case blocks.Heading():
            yield Text(f"\n{block.text}", "bold").append(f"  {block.soft}" if block.soft else "", "dim not bold")
        case blocks.Facts():
            table = _table(show_header=False)
            table.add_column(no_wrap=True)
            table.add_column(overflow="fold")
            for name, value in block.pairs:
                table.add_row(Text(name), _cell(value))
            yield table
        case blocks.Grid():
            blank = {i for i in block.optional if i >= 0 and not any(blocks.plain(row[i]) for row in block.rows)}
            dropped = [frozenset((*blank, *block.optional[:n])) for n in range(len(block.optional) + 1)]
            choices = [*((drop, 200) for drop in dropped), *((dropped[-1], width) for width in (40, 24, 16))]
            yield FirstThatFits([
                (_grid(block, drop, width, NARROW), _grid(block, drop, width), [*_below(block, drop)])
                for drop, width in choices
            ])  # fmt: skip
        case blocks.Folded():
            yield f"\n{block.summary}", "bold"
            for inner in block.blocks:
                yield from rendered(inner)


#: What a column that folds needs at least, and all that is shown of its text.
NARROW, WHOLE = 24, 600


def _grid(grid: blocks.Grid, dropped: frozenset[int], width: int, folded: int = WHOLE) -> Table:
    columns, group = [i for i in range(len(grid.header)) if i not in dropped], None
    table = _table(show_header=any(grid.header))
    for i in columns:
        right = i in grid.numbers
        table.add_column(grid.header[i], justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in grid.rows:
        if grid.group in dropped and row[grid.group or 0] != group:
            group = row[grid.group or 0]
            table.add_row(Text(blocks.plain(group) or "-", "bold"))
        # What a row is called is never cut, so that it can be copied: it folds.
        widths = {i: folded if i in grid.fold else width if i else 200 for i in columns}
        table.add_row(*(_cell(row[i], widths[i], notes=-1 not in dropped) for i in columns))
    return table


def _below(grid: blocks.Grid, dropped: frozenset[int]) -> Iterator[Text]:
    """What the table leaves out, by row, if that is to be said."""
    for row in grid.rows:
        facts = [text for i in sorted(dropped.intersection(grid.below)) if (text := blocks.plain(row[i]))]
        if facts:
            yield Text(f"{blocks.plain(row[0])}: {', '.join(facts)}", "dim")


def _cell(cell: str | blocks.Cell, width: int = 400, *, notes: bool = True) -> Text:
    if isinstance(cell, str):
        return Text(clean(cell, width))
    made = mark(cell.text) if cell.kind == "status" else Text(clean(cell.text, width), _STYLES.get(cell.kind, ""))
    return made.append(f"  {clean(cell.note, width)}", "not bold") if cell.note and notes else made
