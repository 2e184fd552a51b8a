"""How output looks: colour, consoles, JSON documents, errors. The one place that decides it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from orchestrator.base.errors import FcctlError
from orchestrator.base.sanitize import clean_text

if TYPE_CHECKING:
    from rich.console import Console


SCHEMA_VERSION = 1
#: Columns of a table where no terminal says how wide it is; nothing is cut in a pipe.
PIPE_WIDTH = 400

_RED, _CYAN, _DIM, _OFF = "\x1b[1;31m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


def wants_color(choice: str, stream: IO[str], environ: Mapping[str, str]) -> bool:
    """``--color`` decides; else NO_COLOR, then FORCE_COLOR, then whether ``stream`` is a terminal that knows colour."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    return stream.isatty() and environ.get("TERM", "") != "dumb"


def make_console(stream: IO[str], color: bool) -> Console:
    """A rich console on ``stream``."""
    from rich.console import Console

    class QuietPipe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    is_terminal = stream.isatty()
    return QuietPipe(
        file=stream,
        no_color=not color,
        color_system=("auto" if is_terminal else "256") if color else None,
        force_terminal=is_terminal,
        width=None if is_terminal else PIPE_WIDTH,
        highlight=False,
        emoji=False,
    )


def document(value: Mapping[str, Any]) -> str:
    """One versioned JSON document on one line, safe to print: ASCII, and null where JSON has no number."""
    return "".join(pieces(value))


def pieces(value: Mapping[str, Any]) -> Iterator[str]:
    """The same in parts, an element of a list at a time: all of it may be long."""
    before = "{"
    for key, part in {"schema_version": SCHEMA_VERSION, **value}.items():
        yield f"{before}{json.dumps(key)}: "
        before = ", "
        if isinstance(part, list):
            for i, element in enumerate(part):
                yield (", " if i else "[") + _text(element)
            yield "]" if part else "[]"
        else:
            yield _text(part)
    yield "}"


def _text(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except (ValueError, TypeError):  # a number that JSON does not have, or a key that is no text
        from orchestrator.base.sanitize import finite

        return json.dumps(finite(value), allow_nan=False, default=str)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def error_text(error: FcctlError, color: bool) -> str:
    """``error:``, ``cause:`` and ``hint:`` lines. What a host wrote into them cannot drive the terminal."""
    lines = [_labelled("error:", error.message, _RED, color)]
    if error.cause:
        lines.append(_labelled("cause:", error.cause, _DIM, color))
    if error.hint:
        lines.append(_labelled("hint:", error.hint, _CYAN, color))
    return "\n".join(lines)


def _labelled(label: str, text: str, code: str, color: bool) -> str:
    shown = f"{code}{label}{_OFF}" if color else label
    return f"{shown}{' ' * (7 - len(label))}{clean_text(text)}"


def error_json(error: FcctlError, left_on: Sequence[Mapping[str, Any]] = ()) -> str:
    """Args: left_on: the machines that the command leaves on."""
    return with_left_on(error.as_json(), left_on)


def with_left_on(value: Mapping[str, Any], left_on: Sequence[Mapping[str, Any]]) -> str:
    """The document, with the machines that the command leaves on, if there are any."""
    return document({**value, "left_on": left_on} if left_on else value)
