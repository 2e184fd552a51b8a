"""Headings above the figures that a program prints: they tell figures of one name apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Tuple

LETTER = re.compile(r"[^\W\d_]")
#: (form, line) of each heading that stands above a time. Lines of one form differ by whole numbers alone.
Above = Tuple[Tuple[str, str], ...]

#: A line that is none: of a loop, with a time of day or an address.
_NO_HEADING = re.compile(
    r"\b(?:iter(?:ation)?s?|rep(?:eat|etition)?s?|runs?|trials?|samples?|steps?|epochs?|rounds?|loops?|warm-?ups?|pid|process)"
    r"\W{0,3}\d|\d:\d\d|\b0x[\da-f]{6}",
    re.IGNORECASE,
)
#: Stands above what one of several programs prints, as ``head`` and ``tail`` have it for files.
_PROGRAM = re.compile(r"==> (.{1,200}) <==")
#: What programs draw around a heading: ``--- kernel 1 ---``, ``<----| kernel 1 |---->``.
_FRAME = re.compile(r"^[-=*#~<>|+ ]{3,}|[-=*#~<>|+ ]{3,}$")
_WARNING = re.compile(r"\.py:\d+: \w*Warning: ")
_DECIMAL = re.compile(r"\d\.\d")
_WORDS = re.compile(r"[^\W\d_]+")
ANY_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?")
_PARENT = "\t"
MOST_HEADINGS, LONGEST_HEADING = 32, 100


class Headings:
    """Of lines that are alike the last, of lines without a number the last of all, and the one that a line is indented
    below."""

    def __init__(self) -> None:
        self.above: Above = ()
        self.behind = ""  # the figures of this line

    def watch(self, text: Iterable[str], behind: Callable[[str], str | None]) -> Iterator[str]:
        """``text``; a heading, which is a line of which ``behind`` is None, is noted when the line after it is asked
        for."""
        last: dict[str, str] = {}
        parents: list[tuple[int, str]] = []  # indentation and text of the lines that this one stands below
        warned = False
        for line in text:
            sizes = behind(line)
            self.behind = sizes or ""
            shown = " ".join(line.split())[:LONGEST_HEADING]
            indent = len(line) - len(line.lstrip(" \t"))
            parents = [parent for parent in parents if parent[0] < indent] if shown else parents
            self.above = (*last.items(), *((_PARENT, text) for _, text in parents[-1:]))
            yield line
            self.above = tuple(last.items())
            if program := _PROGRAM.fullmatch(shown):  # what was printed before it is another program's
                last = {program[0][:3]: program[1]}
                self.above = tuple(last.items())
                continue
            shown = _FRAME.sub("", shown)
            warned, above = _WARNING.search(line) is not None, warned
            if warned or above:  # Python's warning, and the line of source that follows it
                continue
            if not LETTER.search(shown) or _NO_HEADING.search(shown) or sizes is not None:
                continue
            if not _DECIMAL.search(shown):
                parents = [*parents, (indent, shown)][-MOST_HEADINGS:]
            form = ANY_NUMBER.sub(_form, shown) if ANY_NUMBER.search(shown) else ""
            form = next((other for other in last if _alike(form, other)), form)
            if last.get(form) != shown and (form in last or len(last) < MOST_HEADINGS):
                last[form] = shown
                self.above = tuple(last.items())


def _form(number: "re.Match[str]") -> str:
    return "0" if number.group().isdigit() else number.group()


def _alike(form: str, other: str) -> bool:
    """Whether both have as many words, half of which are the same: ``causal=True, D=0`` and ``causal=False, D=0``."""
    if form == other:
        return True
    if _DECIMAL.search(form) or len(form.split()) != len(other.split()):
        return False
    pairs = list(zip(form.split(), other.split()))  # noqa: B905
    same: int = sum(_WORDS.findall(one) == _WORDS.findall(two) for one, two in pairs)
    return 2 * same >= len(pairs) > 0


def apart(all_above: Iterable[Above]) -> dict[Above, str]:
    """What tells each of ``all_above`` from the others: its headings of the forms of which there are several lines."""
    found = set(all_above)
    lines: dict[str, set[str]] = {}
    for form, line in {pair for above in found for pair in above}:
        lines.setdefault(form, set()).add(line)
    return {above: " ".join(dict.fromkeys(line for form, line in above if len(lines[form]) > 1)) for above in found}
