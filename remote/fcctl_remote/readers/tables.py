"""Tables that programs print: each figure in a line of its own, ``size=4096 Triton: 8.5 GB/s``.

A unit stands in a column's title, as pandas and Triton print it, or below the title, as NCCL's tests do, or at the end
of a line above labels with decimal numbers, as nvbandwidth does::

    size  Triton (GB/s)        size   time   algbw        host to device bandwidth (GB/s)
    4096            8.5               (us)  (GB/s)        SUM copy_ce 12.67
                               4096   45.1   23.24
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fcctl_remote.readers.source import finite

RATE_UNIT = r"(?i:[kmgtp]flops?)(?:/s)?|[kKMGTP]i?B(?:ytes)?(?:/s(?:ec)?|ps)"
#: A title such as ``Triton (GB/s)`` or ``Best Rate MB/s``; in ``8.5 GB/s`` and ``nan GB/s`` a figure stands.
_TITLED = re.compile(
    r"(?P<what>.{0,80}?)\s{0,4}[(\[](?P<unit>%s|[nuµm]?s(?:ecs?)?)[)\]]"
    r"|(?:(?P<of>.{0,80}(?<![\s\d)])(?<!(?i:nan|inf))(?<!(?i:inity)))\s{1,4})?(?P<bare>%s)" % (RATE_UNIT, RATE_UNIT)
)
_UNITS = re.compile(r"[#\s]{0,400}(?:\([\w/%]{1,20}\)\s{0,200}){2,60}")
_LABELLED = re.compile(
    r"\s{0,40}(?P<label>[A-Za-z]\S{0,80}(?: \S{1,80}){0,8}?)[\s:=]{1,40}(?P<value>\d{1,15}\.\d{1,15})\s*"
)
_MAX_LINE = 2000


class Column(NamedTuple):
    what: str
    unit: str  # of its figures; "" if it names the row


def untabled(text: Iterable[str]) -> Iterator[str]:
    """``text`` with a line for each figure in place of a table's header and rows. A figure that is NaN is left out."""
    columns: list[Column] = []
    unit = above = ""
    for line in text:
        header = _header(above, line) if len(line) <= _MAX_LINE else []
        figures = _figures(columns, line.split()) if columns and not header else None
        above = line
        if figures is not None:
            yield from figures
        elif len(header) > 1:
            columns, unit = header, ""
        else:
            labelled = _LABELLED.fullmatch(line) if unit else None
            yield "%s: %s %s" % (*labelled.groups(), unit) if labelled else line
            columns, unit = [], header[0].unit if header else unit


def column(title: str) -> Column:
    found = _TITLED.fullmatch(title)
    return Column(found["what"] or found["of"] or "", found["unit"] or found["bare"]) if found else Column(title, "")


def _header(above: str, line: str) -> list[Column]:
    """The columns, if ``line`` has the unit of one. A title that comes again is numbered: ``time``, ``time 2``."""
    if _UNITS.fullmatch(line):
        units = list(re.finditer(r"\(\S+", line))
        columns = []
        for title in re.finditer(r"#?[^\s#]\S*", above[:_MAX_LINE]):
            below = (unit.group() for unit in units if unit.start() < title.end() and title.start() < unit.end())
            found = column("%s %s" % (title.group(), next(below, "")))
            columns.append(found if found.unit else Column(title.group(), ""))
    else:
        columns = [column(cell) for cell in re.split(r"\s{2,}", line.strip(" \t#"))]
    if not any(found.unit for found in columns):
        return []
    counts = [columns[:at].count(found) for at, found in enumerate(columns)]
    return [Column("%s %d" % (c.what, n + 1), c.unit) if n else c for c, n in zip(columns, counts)]  # noqa: B905


def _figures(columns: Sequence[Column], values: Sequence[str]) -> list[str] | None:
    """A line for each figure of a row, named by the row's text and whole numbers; None if it is no row. A number that
    counts the rows may stand before it."""
    row = list(zip(columns, values[-len(columns) :]))  # noqa: B905 (Python 3.8)
    figures = [(found, value) for found, value in row if found.unit]
    if len(values) < len(columns) or any(
        finite(value) is None and value.upper() not in ("NAN", "N/A") for _, value in figures
    ):
        return None
    names = (
        (found.what, re.sub(r"\.0$", "", value)) for found, value in row if not found.unit and found.what[:1] != "#"
    )
    at = " ".join("%s=%s" % name for name in names if finite(name[1]) is None or "." not in name[1])
    return [
        "%s %s: %s %s" % (at, *found[:1], value, found.unit) for found, value in figures if finite(value) is not None
    ]
