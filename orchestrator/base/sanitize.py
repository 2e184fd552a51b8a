"""Foreign text and values made safe for a terminal, a page, Markdown and JSON."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Escape sequences whole, so that their parameters do not stay behind as litter: CSI; OSC, DCS, SOS, PM and APC up to
# their terminator (a string that never ends is cut at its line); any other two- or three-character escape.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
#: C0 and C1 controls; what is invisible or turns the direction of text; half a surrogate pair.
UNPRINTABLE = (
    "\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff"
)
_CONTROL = re.compile(f"(?![\n\t])[{UNPRINTABLE}]")
_RETURN = re.compile(r"\r+\n?")
_BLANK = re.compile(r"[\n\t]+")
# An escape sequence that the end of a piece may have cut in two. A longer one is none, and is not waited for.
_UNFINISHED = re.compile(
    r"(?:\x1b\[[0-?]{0,256}[ -/]{0,16}|\x1b[\]PX^_][^\x07\x1b\x9c\n]{0,2048}\x1b?|\x1b[ -/]{0,16}|\r)\Z"
)


def clean(text: object, limit: int = 200) -> str:
    """``text`` on one line, without control characters, at most ``limit`` characters, ``…`` in place of the rest."""
    line = str(text)
    if len(line) > 4 * limit + 4096:  # never scan megabytes for a table's cell
        line = line[: 4 * limit + 4096]
    if not line.isprintable() or not line.isascii():
        line = _BLANK.sub(" ", clean_text(line)).strip()
    return line if len(line) <= limit else line[: max(0, limit - 1)].rstrip() + "…"


def clean_text(text: object) -> str:
    """``text`` of any number of lines; line feeds and tabs stay, a carriage return becomes a line feed."""
    value = str(text)
    if "\x1b" in value or not value.isascii():
        value = _ESCAPE.sub("", value)
    return _CONTROL.sub("", _RETURN.sub("\n", value))


class LineCleaner:
    """:func:`clean_text` for a stream of bytes in pieces cut anywhere, also inside a character or an escape."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes) -> bytes:
        """The next bytes, safe for a terminal; invalid UTF-8 becomes U+FFFD."""
        text = self._held + self._decoder.decode(data)
        cut = _UNFINISHED.search(text)
        at = cut.start() if cut else len(text)
        self._held = text[at:]
        return clean_text(text[:at]).encode()


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: For terminals whose encoding has no such characters.
_ASCII = str.maketrans({"✓": "+", "✗": "x", "○": "o", "◐": "%", "·": ".", "…": "~", "µ": "u", "×": "x", "—": "-"})


def markdown(text: str) -> str:
    """Escapes text for one line of Markdown: no markup, no HTML, and `@name` mentions no user."""
    escaped = _MARKDOWN.sub(r"\\\1", text.replace("\n", " "))
    return escaped.replace("\\<", "&lt;").replace("@", "&#64;")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """The lines of a table; columns in ``right`` are aligned right."""
    yield f"| {' | '.join(map(markdown, header))} |"
    yield f"|{'|'.join('---:' if i in right else '---' for i in range(len(header)))}|"
    for row in rows:
        yield f"| {' | '.join(map(markdown, row))} |"


def csv_cell(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def ascii_only(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def number(value: object) -> float | None:
    """``value`` if it is a finite number."""
    if type(value) is float:  # nearly all of a benchmark's samples
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def worded(value: object, most: int = 200) -> str | None:
    """The beginning of ``value`` if it is a text that is not empty."""
    return value[:most] if isinstance(value, str) and value else None


def listed(value: object) -> list[Any]:
    """``value`` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list; nothing, if it is no list."""
    return [v for v in listed(value) if isinstance(v, dict)]


def table(value: object) -> dict[str, Any]:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def part(value: object, *keys: str) -> Any:
    """``value[key][key]...``, None where the way ends early."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def finite(value: Any) -> Any:
    """``value`` with null in place of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value
