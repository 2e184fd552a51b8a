"""Numbers as tables show them, and the marks that go with a verdict: never colour alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.base.sanitize import clean
from orchestrator.views.live.run import MARKS

if TYPE_CHECKING:
    from rich.text import Text

#: Gate verdicts and check statuses beside the steps' own.
_MORE = {
    "pass": ("✓", "green"),
    "fail": ("✗", "red"),
    "warn": ("!", "yellow"),
    "info": ("·", "dim"),
    "not_applicable": ("-", "dim"),
    "error": ("✗", "red"),
    "incomplete": ("◐", "magenta"),
    "lost": ("✗", "red"),
    "over_budget": ("✗", "red"),
    "idle": ("✗", "red"),
    "preempted": ("!", "yellow"),
}
#: For terminals whose encoding has no such characters.
_ASCII = str.maketrans({"✓": "+", "✗": "x", "○": "o", "◐": "%", "·": ".", "…": "~", "µ": "u", "×": "x", "—": "-"})


def mark(status: str, words: str | None = None) -> Text:
    """``✓ passed`` in its colour; ``words`` replaces the status' own."""
    from rich.text import Text

    sign, colour = (MARKS | _MORE).get(status, ("?", "red"))
    said = status.replace("_", " ") if words is None else words
    return Text(f"{sign} {clean(said, 40)}".rstrip(), style=colour)


def ascii_only(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def microseconds(value: float | None) -> str:
    """Three significant digits at least: ``0.0132``, ``25.90``, ``1397.7``, ``12345``; empty if unknown."""
    if value is None:
        return ""
    if 0 < value < 1:
        return f"{value:.3g}"
    if value < 100:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 10_000 else f"{value:.0f}"


def small(value: float | None) -> str:
    """An error: ``1.2e-04``, ``0`` exactly; empty if unknown."""
    if value is None:
        return ""
    return "0" if value == 0 else f"{value:.1e}"


def speed(ratio: float) -> str:
    """From a ratio of times, ours over the reference's: ``2.31x faster``, ``1.40x slower``, ``as fast``."""
    if 0.995 <= ratio <= 1.005:
        return "as fast"
    return f"{_times(1 / ratio)}x faster" if ratio < 1 else f"{_times(ratio)}x slower"


def interval(ratio: float, low: float, high: float) -> str:
    """The bounds of a ratio in the terms that :func:`speed` tells it in: ``[2.25, 2.40]``."""
    if ratio < 1:
        low, high = 1 / high, 1 / low
    return f"[{_times(low)}, {_times(high)}]"


def _times(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
