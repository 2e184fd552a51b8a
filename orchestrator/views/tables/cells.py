"""The pieces tables are made of. Text given to them is clean already (:mod:`orchestrator.base.sanitize`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.views.tables.figures import ascii_only

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.measure import Measurement
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

MAX_ROWS = 40
_ANY_WIDTH = 10_000


def table(*left: str, right: Iterable[str] = ()) -> Table:
    """Columns that may fold, then columns of numbers that may not."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="dim")
    for name in left:
        made.add_column(name, overflow="fold")
    for name in right:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def text(said: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(said, style=style)


def whole(value: float | None) -> str:
    """Without decimals; empty if unknown."""
    return "" if value is None else f"{value:.0f}"


def more(count: int, limit: int = MAX_ROWS) -> Iterator[Text]:
    """The line that says how many rows are not shown, if any."""
    if count > limit:
        yield text(f"... and {count - limit} more", "dim")


def print_trimmed(console: Console, piece: RenderableType, width: int) -> None:
    """Print without the blanks that a table or its padding ends in, and in ASCII where the terminal has no more.

    A text that is not to be wrapped (a path) goes out in one piece, however long.
    """
    from rich.segment import Segments
    from rich.text import Text

    unbroken = isinstance(piece, Text) and piece.no_wrap
    options = console.options.update(width=_ANY_WIDTH if unbroken else width, markup=False, highlight=False)
    lines = console.render_lines(piece, options, pad=False)
    plain = None if "utf" in console.encoding.lower() else ascii_only
    console.print(Segments(_trimmed(lines, plain)), crop=False, end="", soft_wrap=True)


def _trimmed(lines: list[list[Segment]], plain: Callable[[str], str] | None) -> Iterator[Segment]:
    from rich.segment import Segment

    for line in lines:
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            *front, last = line
            for said, style, _ in (*front, Segment(last.text.rstrip(), last.style)):
                yield Segment(plain(said) if plain else said, style)
        yield Segment("\n")


class FirstThatFits:
    """Of several ways to show the same, the first whose lines are not wider than the terminal; the last if none is."""

    def __init__(self, choices: Sequence[RenderableType]) -> None:
        self._choices = choices

    def _chosen(self, console: Console, options: ConsoleOptions) -> RenderableType:
        from rich.measure import Measurement

        unlimited = options.update(width=_ANY_WIDTH)
        for choice in self._choices[:-1]:
            if Measurement.get(console, unlimited, choice).maximum <= options.max_width:
                return choice
        return self._choices[-1]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._chosen(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement.get(console, options, self._chosen(console, options))
