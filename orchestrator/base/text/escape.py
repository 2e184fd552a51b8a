"""Text that somebody else chose, put into Markdown, CSV or ASCII: it is shown there, and means nothing.

What drives a terminal is taken out by :mod:`orchestrator.base.sanitize`; HTML is escaped by Jinja's own autoescaping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

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
