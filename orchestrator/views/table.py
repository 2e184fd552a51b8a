"""Tables and lines for a terminal. All text in them is shown as it is: nothing is read as rich's markup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment, Segments
from rich.table import Table as RichTable
from rich.text import Text

from orchestrator.base.sanitize import clean
from orchestrator.base.text.escape import ascii_only
from orchestrator.views.figures import MARKS

MAX_ROWS = 40
_ANY_WIDTH = 10_000
#: A line, a line with its style, or what rich can render.
Piece = str | tuple[str, str] | RenderableType


class Table(RichTable):
    """Columns ``left``, which fold, then columns ``right`` of numbers, which do not."""

    def __init__(self, *left: str, right: Iterable[str] = (), header: str = "dim", **options: Any) -> None:
        super().__init__(**{"box": None, "pad_edge": False, "header_style": header, **options})
        for name in left:
            self.add_column(name, overflow="fold")
        for name in right:
            self.add_column(name, justify="right", no_wrap=True)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def plain_table(*no_wrap: bool) -> Table:
    """Without a header; a column for each argument, which says whether its text is kept on one line."""
    made = Table(show_header=False)
    for one_line in no_wrap:
        made.add_column(no_wrap=one_line, overflow="fold")
    return made


def mark(status: str, words: str | None = None) -> Text:
    """``✓ passed`` in its colour; ``words`` replaces the status' own."""
    sign, colour = MARKS.get(status, ("?", "red"))
    return Text(f"{sign} {clean(status.replace('_', ' ') if words is None else words, 40)}".rstrip(), style=colour)


def unbroken(label: str, path: str = "", style: str = "") -> Text:
    """A path or command in one piece, however wide the terminal is, so that it can be copied."""
    return Text(label, style, no_wrap=True, overflow="ignore").append(path, "not bold")


def more(count: int, limit: int = MAX_ROWS) -> Iterator[Text]:
    """The line that says how many rows are not shown, if any."""
    if count > limit:
        yield Text(f"... and {count - limit} more", "dim")


def line(piece: Piece) -> RenderableType:
    """The piece as rich renders it."""
    return Text(piece) if isinstance(piece, str) else Text(*piece) if isinstance(piece, tuple) else piece


def show(console: Console, *pieces: Piece, width: int | None = None) -> None:
    """Print without the blanks that a table or its padding ends in, and in ASCII where the terminal has no more.

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
                yield Segment(plain(text) if plain else text, style)
        yield Segment("\n")


def fits(console: Console, piece: RenderableType, width: int | None = None) -> bool:
    unlimited = console.options.update(width=_ANY_WIDTH)
    return Measurement.get(console, unlimited, piece).maximum <= (width or console.width)


class FirstThatFits:
    """Of several ways to show the same, the first whose lines are not wider than the terminal; the last if none is."""

    def __init__(self, choices: Sequence[RenderableType]) -> None:
        self._choices = choices

    def _chosen(self, console: Console, options: ConsoleOptions) -> RenderableType:
        fitting = (one for one in self._choices[:-1] if fits(console, one, options.max_width))
        return next(fitting, self._choices[-1])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._chosen(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._chosen(console, options))
