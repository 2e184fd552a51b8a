"""The headings above what a program prints, which tell its times of one name apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Tuple

#: (form, line) of each heading that stands above a time. Lines of one form differ by whole numbers alone.
Above = Tuple[Tuple[str, str], ...]

#: A line that is none: of a loop, or with a time of day.
_NONE = re.compile(
    r"\b(?:iter(?:ation)?s?|rep(?:eat|etition)?s?|runs?|trials?|samples?|steps?|epochs?|rounds?|loops?|warm-?ups?|pid)"
    r"\W{0,3}\d|\d:\d\d",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?")
_LETTER = re.compile(r"[^\W\d_]")
MOST, LONGEST = 32, 100


class Headings:
    """Of each form the last line, of lines without a number the last of all."""

    def __init__(self) -> None:
        self.above: Above = ()

    def watch(self, text: Iterable[str], is_heading: Callable[[str], bool]) -> Iterator[str]:
        """``text``; a heading is noted when the line after it is asked for."""
        last: dict[str, str] = {}
        for line in text:
            yield line
            shown = " ".join(line.split())[:LONGEST]
            if not _LETTER.search(shown) or _NONE.search(shown) or not is_heading(line):
                continue
            form = _NUMBER.sub(_form, shown) if _NUMBER.search(shown) else ""
            if last.get(form) != shown and (form in last or len(last) < MOST):
                last[form] = shown
                self.above = tuple(last.items())


def _form(number: "re.Match[str]") -> str:
    return "0" if number.group().isdigit() else number.group()


def apart(all_above: Iterable[Above]) -> dict[Above, str]:
    """What tells each of ``all_above`` from the others: its headings of the forms of which there are several lines."""
    found = set(all_above)
    lines: dict[str, set[str]] = {}
    for form, line in {pair for above in found for pair in above}:
        lines.setdefault(form, set()).add(line)
    return {above: " ".join(line for form, line in above if len(lines[form]) > 1) for above in found}
