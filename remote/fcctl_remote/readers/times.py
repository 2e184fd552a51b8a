"""Reader ``times``: the times a program prints, or writes as CSV. Each name is a benchmark, each time of it a sample.

Of text, the first time with a unit of each line counts, named by what stands before it::

    softmax n=1024: 12.5 us
    Average time:   0.31 ms

Of a CSV file whose header has a column with a unit, each such column counts, named by the row's text and whole
numbers; columns that count repetitions are no part of the name::

    kernel,n,rep,time_us            softmax 1024
    softmax,1024,0,12.5

Times are converted to microseconds. A time that is not above 0 is no measurement and is left out; a line with
``nan us`` is an error.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Pattern

from fcctl_remote.readers import timing
from fcctl_remote.readers.source import MAX_ROWS, ReaderError, clean, finite, lines

_TO_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_UNIT = r"(?P<unit>ns(?:ecs?)?|nanoseconds?|[uµμ]s(?:ecs?)?|microseconds?|ms(?:ecs?)?|milliseconds?|s|secs?|seconds?)"
#: One that is no part of a word or of another number: not the 5 of ``v5 s``.
NUMBER = r"(?<![\w.,+-])(?P<number>\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)"
#: ``12.5 us``, ``1,234 ms``, ``3e-2s``; not the 5 of ``v5 s``, nor a rate: ``7 us/iteration`` is a time, ``GB/s`` none.
TIME = re.compile(NUMBER + r"\s*" + _UNIT + r"(?![\w^])")
#: What is printed in place of a number; nothing that was measured may look better for it.
NO_NUMBER = r"(?<![\w.])[-+]?(?i:nan|inf(?:inity)?)\s*"
_NO_TIME = re.compile(NO_NUMBER + _UNIT + r"(?![\w^])")
#: ``time_us``, ``p50 (ms)``, ``us``, ``mean_time[ns]``, ``seconds``.
_COLUMN = re.compile(r"(?:(?P<what>.*?)[\s_.\-(\[]+)?" + _UNIT + r"[)\]]?")
_RATE = re.compile(r"(?:[gmkt]i?b|bytes|[a-z]*flops?|ops|it|items|tokens|samples|images)$", re.IGNORECASE)
#: Columns that tell repetitions apart, or what was measured beside the time: no part of a benchmark's name.
_NO_NAME = re.compile(
    r"(?:iter(?:ation)?s?|rep(?:eat|etition)?s?|run|trial|sample|index|idx|#)?"
    r"|.*(?:[/%]|[gmkt]i?b_?p?s|flop|speed|err|diff|ratio|bandwidth|throughput|util).*",
    re.IGNORECASE,
)
_PLAIN = ("", "elapsed", "duration", "latency", "runtime", "real", "gpu", "kernel")
_EDGE = " \t:=-|,;>.<([{'\"*#"
#: Characters of a column's heading that may tell a unit.
MAX_HEADER = 100
_HINT = "a line such as 'softmax n=1024: 12.5 us', or CSV with a column such as time_us"


class _Column(NamedTuple):
    at: int
    what: str
    factor: float


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all readers are called alike
    taken: dict[str, list[float]] = {}
    for count, (name, value) in enumerate(_times(numbers(path, _NO_TIME))):
        if count >= MAX_ROWS * 10:
            raise ReaderError("%s: more than %d times" % (path, MAX_ROWS * 10))
        taken.setdefault(clean(name, 200), []).append(value)
        if len(taken) > MAX_ROWS:
            raise ReaderError("%s: times of more than %d names" % (path, MAX_ROWS))
    if not taken:
        raise ReaderError("%s: no time with a unit (ns, us, ms, s) in it" % path, _HINT)
    return timing.document([timing.benchmark(name, samples) for name, samples in taken.items()], "times", path)


def numbers(path: str, none: Pattern[str]) -> Iterator[str]:
    """The lines of ``path``. Raises: ReaderError, if one has what matches ``none``."""
    for line in lines(path):
        if none.search(line):
            raise ReaderError("%s: what was measured is no number: %s" % (path, clean(line.strip(), 120)))
        yield line


def _times(found: Iterator[str]) -> Iterator[tuple[str, float]]:
    first = next((line for line in found if line.strip()), "")
    table = _Table.of(first)
    if table is None:
        yield from _of_line(first)
    for line in found:
        yield from _of_line(line) if table is None else table.row(line)


def _of_line(line: str) -> Iterator[tuple[str, float]]:
    match = TIME.search(line)
    if match is None:
        return
    value = _us(match.group("number").replace(",", ""), _factor(match.group("unit")))
    if value is not None:
        yield " ".join(line[: match.start()].strip(_EDGE).split()) or "time", value


class _Table:
    """A CSV file, by its header."""

    def __init__(self, header: Sequence[str], delimiter: str, times: Sequence[_Column]) -> None:
        self._delimiter = delimiter
        self._times = times
        timed = {column.at for column in times}
        headings = ((i, cell.strip()[:MAX_HEADER]) for i, cell in enumerate(header))
        self._naming = [i for i, heading in headings if i not in timed and not _NO_NAME.fullmatch(heading)]

    @classmethod
    def of(cls, line: str) -> "_Table | None":
        """None if ``line`` is no header with a column of times: one in which a time stands is none."""
        if TIME.search(line):
            return None
        delimiter = next((d for d in ("\t", ";", ",") if d in line), ",")
        header = _cells(line, delimiter)
        times = [column for column in (_column(i, cell) for i, cell in enumerate(header)) if column is not None]
        return cls(header, delimiter, times) if times else None

    def row(self, line: str) -> Iterator[tuple[str, float]]:
        cells = _cells(line, self._delimiter)
        parts = [cells[i].strip() for i in self._naming if i < len(cells)]
        name = " ".join(part for part in parts if part and (finite(part) is None or part.isdigit()))
        for column in self._times:
            value = _us(cells[column.at].strip(), column.factor) if column.at < len(cells) else None
            if value is not None:
                yield "/".join(filter(None, (name, column.what))) or "time", value


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line.lstrip("\ufeff")], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return []


def _column(at: int, cell: str) -> _Column | None:
    match = _COLUMN.fullmatch(cell.strip()) if len(cell) <= MAX_HEADER else None
    what = " ".join((match.group("what") or "").replace("_", " ").split()) if match else ""
    what = re.sub(r"(?:^|\s)time$", "", what, flags=re.IGNORECASE)
    if match is None or _RATE.search(what) or finite(what) is not None:
        return None
    return _Column(at, "" if what.lower() in _PLAIN else what, _factor(match.group("unit")))


def _factor(unit: str) -> float:
    short = {"n": "ns", "u": "us", "µ": "us", "μ": "us", "s": "s"}.get(unit[0])
    return _TO_US[short or ("us" if unit.startswith("micro") else "ms")]


def _us(text: str, factor: float) -> float | None:
    value = timing.scaled(text, factor)
    return value if value is not None and value > 0 else None
