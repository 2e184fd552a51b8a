"""Readers ``times`` and ``rates`` of what a program prints.

``times``: the times a program prints, or writes as CSV. Each name is a benchmark, each time of it a sample.

Of text, the first time with a unit of each line counts, named by what stands before it, and others with labels of
their own (``CPU: 5 ms, GPU: 3 us``; not ``min: 2 us``)::

    softmax n=1024: 12.5 us
    Average time:   (0.31) ms
    softmax n=1024 time_us=12.5

or of a table, each figure below a title with a unit (:mod:`fcctl_remote.readers.tables`).
Results in front of it are no part of the name: rates, percentages, decimals of four and more places, speedups. Its
spread is no time (``3.5 ± 0.2 us``, ``std: 0.2 us``), nor what is set (``for 10 s``). Where nothing stands in front,
the words behind tell figures apart: ``3 us naive``.

Times of one name below different headings (``N = 512``, later ``N = 1024``) are different benchmarks, named by these.
If none tells them apart, sizes behind the figures do (``3 us, N=512``).
What counts repetitions (``run 3``) is no heading. Above ``==> a <==``, as ``tail`` prints it, all is another program's.

Of a CSV file whose header has a column with a unit, each such column counts, named by the row's text and whole
numbers; columns that count repetitions are no part of the name::

    kernel,n,rep,time_us            softmax 1024
    softmax,1024,0,12.5

Times are converted to microseconds. A time that is not above 0 is no measurement and is left out; a line with
``nan us`` is an error.

``rates``: the throughputs a program prints, where more is better.

Of each line every number with a unit per second counts, named by what stands before it and by that unit::

    Triad n=1024  12.5 us  77.70 GB/s           Triad n=1024 GB/s
    Effective bandwidth: 412 GB/s (83 %)        Effective bandwidth GB/s
    dense 1.2 TFLOPS, sparse 2.1 TFLOPS         dense GFLOP/s, dense sparse GFLOP/s
    n=64 time: 3 us  bandwidth: 9 GB/s          n=64 bandwidth GB/s
    n=64 TFLOPS: 1.2                            n=64 GFLOP/s

Bytes become GB/s (1e9 a second), floating point operations GFLOP/s; anything else stays what it is, ``tokens/s``. Of a
name that comes again the median counts; a line with ``inf GB/s`` is an error.
"""

from __future__ import annotations

import csv
import re
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Pattern

from fcctl_remote.readers import source
from fcctl_remote.readers.benchmarks import MAX_METRICS
from fcctl_remote.readers.headings import ANY_NUMBER, LETTER, Above, Headings, apart
from fcctl_remote.readers.source import MAX_ROWS, ReaderError, clean, finite, lines
from fcctl_remote.readers.spelling import TIME_UNIT, digits, has_decimal_commas, plain, unit_behind, with_points
from fcctl_remote.readers.tables import NO_NAME, column, untabled

_TO_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
#: One that is no part of a word or of another number: not the 5 of ``v5 s``.
NUMBER = r"(?<![\w.,^+-])(?<!\d')(?<!\d:\d\d:)(?P<number>\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)"
#: ``12.5 us``, ``1,234 ms``, ``3e-2s``; not the 5 of ``v5 s``, nor a rate: ``7 us/iteration`` is a time, ``GB/s`` none;
#: nor what is set, ``burning for 10 s``, ``FPS over 3 s``, nor what was simulated, ``210 ns/day``; nor ``the 1980s``.
TIME = re.compile(
    r"(?<!\bfor )(?<!\bover )(?<!\bevery )(?<![Ww]aiting )(?!(?:19|20)\d0s)(?P<open>[(\[]\s*)?"
    + NUMBER
    + r"(?(open)\s*[)\]])\s*"
    + TIME_UNIT
    + r"(?![\w^]|\s?/\s?(?:day|hour)\b)"
)
#: What is printed in place of a number; nothing that was measured may look better for it.
NO_NUMBER = r"(?<![\w.])[-+]?(?i:nan|inf(?:inity)?)\s*"
#: ``time_us``, ``p50 (ms)``, ``us``, ``mean_time[ns]``, ``seconds``.
_COLUMN = re.compile(r"(?:(?P<what>.*?)[\s_.\-(\[]+)?" + TIME_UNIT + r"[)\]]?")
#: A key that ends in a unit: ``time_us=12.5``, ``"p50_ms": 3``; of seconds, only one that names a time.
_KEY = (
    r"(?<![\w.])(?P<key>(?:[A-Za-z]\w{0,60}_)?(?:[num]s|[nu]secs?|msecs?)"
    r"|\w{0,60}(?:time|elapsed|latency|duration)\w{0,20}_s(?:ec(?:ond)?s?)?)[\"']?\s*[=:]\s*"
)
_KEYED = re.compile(_KEY + NUMBER + r"(?![\w.])")
_NO_TIME = re.compile(NO_NUMBER + TIME_UNIT + r"(?![\w^])|" + _KEY + NO_NUMBER)
_RATE_HEADING = re.compile(
    r"(?<![a-z])(?:[gmkt]i?b|bytes|[a-z]*flops?|ops|it|items|tokens|samples|images)$", re.IGNORECASE
)
_PLAIN = ("", "elapsed", "duration", "latency", "runtime", "real", "gpu", "kernel")
_EDGE = " \t:=-|,;>.<([{'\"*#"
#: A percentage in brackets, a time stamp, brackets of any kind: :func:`_lasting` looks at these.
_BRACKETS = re.compile(
    r"\([-+]?\d[\d.]{0,10}%\)|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?|\[[^\[\]]{1,400}\](?:, time\b)?"
)
#: A result that stands in a line beside the figure: decimals that no parameter has, a percentage, a speedup,
#: cycles, what was before (``3.5 -> 3 us``), further times.
_RESULT = re.compile(
    r"(?<![\w.])[-+]?\d{1,12}(?:\.\d{4,20}(?:[eE][-+]?\d{1,3})?(?![\w.])|(?:\.\d{1,20})?\s?%(?!\s?(?:percen|quan)tile))"
    r"|\(?(?<![\w.])\d{1,12}\.\d{1,20}[x×](?!\w)\)?|(?<![\w.])\d{1,12}(?:(?:\.\d{1,20})?\s?(?:clock|cycle)s?\b|\.\d{1,20}\s?(?:->|→))"
    r"|(?<=[:=])(?:\s{1,20}\d{1,12}\.\d{1,20}){1,20}\s{0,20}$"
)
#: A problem's size: ``N=1024``, ``size: (64)``, ``64x64x8``.
_SIZE = re.compile(
    r"(?<![\w.])(?:(?:size|dims?|batch|length|[BHSDMNKbhsdmnk])\s?[=:]\s?\(?\d+\)?|\d+(?:\s?[x×]\s?\d+)+)(?![\w.])"
)
#: Of what stands behind a figure, the words that may name it.
_WORDS, _MOST_WORDS = re.compile(r"(?<![\w.])[A-Za-z_][\w-]{0,60}"), 6
#: What tells how far samples are from each other, and is no time of its own.
_SPREAD_NAME = re.compile(r"(?:^|[\s_/])(?:std|stdev|stddev|std[ _.]?dev(?:iation)?|variance|iqr)$", re.IGNORECASE)
#: The label of a further time in a line; what describes the time before it; what stands before the label of the first.
_LABEL = re.compile(r"[A-Za-z][^|,;:=]{0,60}[:=]\s{0,20}$")
_STATISTIC = re.compile(
    r"\b(?:min(?:imum)?|max(?:imum)?|best|worst|std\w*|p\d+|median|mean|avg|average|total|sum|user|sys(?:tem)?)\b",
    re.IGNORECASE,
)
_SHARED = re.compile(r".{0,300}[|,;]")
#: What counts repetitions, which are samples of one benchmark: ``iter 3``, ``step 1/74``; not ``steps=100``.
_REPETITION = re.compile(
    r"[\[(]?\b(?:iter(?:ation)?|rep(?:eat|etition)?|run|trial|sample|step|epoch|round|loop)[\s#:]{0,6}\d+"
    r"(?:\s*(?:/|of)\s*\d+)?(?![\w.])[\])]?:?",
    re.IGNORECASE,
)
#: A line of a program's progress: what it counts is no part of a name.
_PROGRESS = re.compile(r"^\s*\d[\d.]*\s?%(?!\s?(?:percen|quan)tile)")
_NO_VALUE = re.compile(r" ?[=:](?= ?[,;|]|$)")
_TIME_OF_DAY = re.compile(r"\d\d:\d\d(?::\d\d|<)")  # the second of tqdm
#: Characters of a column's heading that may tell a unit.
MAX_HEADER = 100
_TIME_HINT = "print a line such as 'softmax n=1024: 12.5 us', or CSV with a column such as time_us"


class _Column(NamedTuple):
    what: str  # behind the row's name
    factor: float


def times(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all readers are called alike
    taken = _taken(path, _NO_TIME, lambda text: _figures(text, _time_of_line, _time_column), MAX_ROWS)
    taken = {name: samples for name, samples in taken.items() if not _SPREAD_NAME.search(name)}
    if not taken:
        raise ReaderError("contains no time with a unit (ns, us, ms, s)", _TIME_HINT, empty=True)
    return source.document([source.benchmark(name, samples) for name, samples in taken.items()], "times")


def _taken(
    path: str, none: Pattern[str], read: Callable[[Iterator[str]], Iterator[tuple[str, float]]], most: int
) -> dict[str, list[float]]:
    """The figures that ``read`` finds in the lines of ``path``, by name and heading. Raises: ReaderError, if a line has
    what matches ``none``, or there are more than ``most`` names."""
    headings = Headings()
    found: dict[str, list[tuple[Above, str, float]]] = {}
    for count, (name, value) in enumerate(read(headings.watch(numbers(path, none), _sizes))):
        found.setdefault(name, []).append((headings.above, headings.behind, value))
        if len(found) > most or count >= MAX_ROWS * 10:
            raise ReaderError("more than %d values, or more than %d different names" % (MAX_ROWS * 10, most))
    samples: dict[str, list[float]] = {}
    for name, values in found.items():
        told = apart(above for above, _, _ in values)
        sizes: dict[str, set[str]] = {}
        for above, behind, _ in values:
            sizes.setdefault(told[above], set()).add(behind)
        for above, behind, value in values:
            parts = (told[above], behind if len(sizes[told[above]]) > 1 else "", name)
            samples.setdefault(_short(" ".join(filter(None, parts))), []).append(value)
    if len(samples) > most:
        raise ReaderError("values with more than %d different names" % most)
    return samples


def _short(name: str) -> str:
    """``name``; a long one without its middle, with a checksum, so that names stay apart."""
    if len(name) > 200:
        name = "%s..%08x..%s" % (name[:90], zlib.crc32(name.encode("utf-8", "replace")), name[-90:])
    return clean(name, 200)


def _sizes(line: str) -> str | None:
    """The sizes that stand behind the last figure of ``line``, or the words if none stand before the first; None if it
    has no figure."""
    places = [found.span() for pattern in (TIME, _KEYED, _RATE) for found in pattern.finditer(line)]
    if not places:
        return None
    behind = line[max(end for _, end in places) :]
    named = _KEYED.search(line) or LETTER.search(line[: min(start for start, _ in places)])
    return " ".join(_SIZE.findall(behind) or ([] if named else _WORDS.findall(behind)[:_MOST_WORDS]))


def numbers(path: str, none: Pattern[str]) -> Iterator[str]:
    """The lines of ``path`` as a terminal shows them at last, each unit behind its number. Raises: ReaderError, if one
    has what matches ``none``."""
    commas = has_decimal_commas(map(plain, lines(path)))
    for printed in untabled(map(plain, lines(path))):
        line = unit_behind(with_points(printed) if commas else printed)
        if none.search(line):
            raise ReaderError("the measured value is not a number: %s" % clean(line.strip(), 120))
        yield line


def _figures(
    text: Iterator[str], of_line: Callable[[str], Iterator[tuple[str, float]]], parse: Callable[[str], _Column | None]
) -> Iterator[tuple[str, float]]:
    """Those of a CSV file whose header has a column that ``parse`` knows, else those of each line."""
    first = next((line for line in text if line.strip()), "")
    table = _Table.of(first, parse)
    if table is None:
        yield from of_line(first)
    for line in text:
        # The header may be a title, ``Time (ms)``.
        if table is None or ("," not in line and (TIME.search(line) or _RATE.search(line))):
            yield from of_line(line)
        else:
            yield from table.row(line)


def _time_of_line(line: str) -> Iterator[tuple[str, float]]:
    line = _BRACKETS.sub(_lasting, line)
    match, what = TIME.search(line), ""
    keyed = _KEYED.search(line)
    if keyed and (match is None or keyed.start() < match.start()):
        named = _time_column(keyed.group("key"))
        if named is None:
            return
        match, what, factor = keyed, named.what[1:], named.factor
    elif match:
        factor = _factor(match.group("unit"))
    else:
        return
    value = _above_zero(digits(match.group("number")), factor)
    if value is not None:
        yield " ".join(f"{_named(line[: match.start()])} {what}".split()) or "time", value
        yield from _others_of_line(line, match.start(), match.end())


def _named(before: str) -> str:
    name = _without_results(before).strip(_EDGE)
    return name.replace(")", "", 1) if name.count(")") > name.count("(") else name  # ``(naive): 3 us``


def _others_of_line(line: str, start: int, end: int) -> Iterator[tuple[str, float]]:
    """The times behind the first one of ``line`` with labels of their own, ``GPU: 3 us``; not its ``min: 2 us``."""
    shared = _SHARED.match(line[:start])
    for match in TIME.finditer(line, end):
        between, end = line[end : match.start()], match.end()
        label = _LABEL.search(between)
        value = _above_zero(digits(match.group("number")), _factor(match.group("unit")))
        if label and value is not None and not _STATISTIC.search(label[0]):
            own = between if _RATE.search(between) else label[0]
            yield " ".join(f"{_named(shared[0] if shared else '')} {_named(own)}".split()), value


def _without_results(name: str) -> str:
    """What of ``name`` is the same at each launch."""
    for figure in (_RATE, _RESULT, _REPETITION, *((ANY_NUMBER,) if _PROGRESS.search(name) else ())):
        name = figure.sub(" ", name)
    return _NO_VALUE.sub("", " ".join(name.split()))


def _lasting(match: "re.Match[str]") -> str:
    """Nothing, if it differs from launch to launch and is no part of a name: a percentage in brackets, a time stamp, a
    logger's prefix with one, a list of results (``softmax: [0.12, 0.57], time: 3 us``)."""
    inner, bracket, _ = match.group()[1:].partition("]")
    values = [finite(value.strip(" '\"")) for value in inner.split(",")]
    if bracket and not _TIME_OF_DAY.search(inner) and (len(values) < 2 or "." not in inner or None in values):
        return match.group()
    return " "


class _Table:
    """A CSV file, by its header."""

    def __init__(self, header: Sequence[str], delimiter: str, columns: Mapping[int, _Column]) -> None:
        self._delimiter = delimiter
        self._columns = columns
        headings = ((i, cell.strip()[:MAX_HEADER]) for i, cell in enumerate(header))
        self._naming = [i for i, heading in headings if i not in columns and not NO_NAME.fullmatch(heading)]

    @classmethod
    def of(cls, line: str, parse: Callable[[str], _Column | None]) -> "_Table | None":
        """None if ``line`` is no header with such a column: one in which a figure stands is none."""
        if TIME.search(line) or _KEYED.search(line) or _RATE.search(line):
            return None
        delimiter = next((d for d in ("\t", ";", ",") if d in line), ",")
        header = _cells(line, delimiter)
        parsed = {i: parse(cell.strip()) for i, cell in enumerate(header) if len(cell) <= MAX_HEADER}
        columns = {i: found for i, found in parsed.items() if found is not None}
        return cls(header, delimiter, columns) if columns else None

    def row(self, line: str) -> Iterator[tuple[str, float]]:
        cells = _cells(line, self._delimiter)
        parts = [cells[i].strip() for i in self._naming if i < len(cells)]
        name = " ".join(part for part in parts if part and (finite(digits(part)) is None or part.isdigit()))
        for at, found in self._columns.items():
            value = _above_zero(digits(cells[at].strip()), found.factor) if at < len(cells) else None
            if value is not None:
                yield (name + found.what).strip(" /") or "time", value


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line.lstrip("\ufeff")], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return []


def _time_column(title: str) -> _Column | None:
    match = _COLUMN.fullmatch(title)
    what = " ".join((match.group("what") or "").replace("_", " ").split()) if match else ""
    what = re.sub(r"(?:^|\s)time$", "", what, flags=re.IGNORECASE)
    if match is None or _RATE_HEADING.search(what) or finite(what) is not None:
        return None
    return _Column("" if what.lower() in _PLAIN else "/" + what, _factor(match.group("unit")))


def _factor(unit: str) -> float:
    short = {"n": "ns", "u": "us", "µ": "us", "μ": "us", "s": "s"}.get(unit[0])
    return _TO_US[short or ("us" if unit.startswith("micro") else "ms")]


def _above_zero(text: str, factor: float) -> float | None:
    value = source.scaled(text, factor)
    return value if value is not None and value > 0 else None


_PER_SECOND = r"\s?/\s?s(?:ec(?:ond)?)?"
_BYTES = r"(?P<bytes>[kKMGTP]?)(?P<binary>i?)(?:B(?:ytes)?|bytes)(?:%s|ps)" % _PER_SECOND
#: ``20 flops`` and ``2 GFLOP/call`` are counts.
_FLOPS = (
    r"(?!(?:flops?|F[Ll][Oo][Pp]s?)(?![\w/]))(?P<flops>(?i:[kmgtp]?))(?i:flops?)(?:%s|(?!/(?!(?i:gpu|device))))"
    % _PER_SECOND
)
_OTHER = r"(?P<other>[A-Za-z]{1,24})%s" % _PER_SECOND
_RATE = re.compile(r"(?P<open>[(\[]\s*)?%s(?(open)\s*[)\]])\s*(?:%s|%s|%s)(?![\w^])" % (NUMBER, _BYTES, _FLOPS, _OTHER))
_NO_RATE = re.compile(r"%s(?:%s|%s|%s)(?![\w^])" % (NO_NUMBER, _BYTES, _FLOPS, _OTHER))
#: What labels a time, and no rate that comes after it.
_TIME_LABEL = re.compile(
    r"\b(?:(?:avg|average|mean|median|min|max|best|total|kernel|gpu|cpu|elapsed|execution|exec|run)[ _])?"
    r"(?:time|latency|duration|elapsed|runtime)$",
    re.IGNORECASE,
)
_BEFORE, _BEHIND = " \t-*#>|,;:=", " \t:=-|,;>.<([{@~"
_RATE_HINT = "print a line such as 'triad n=1024: 412.5 GB/s', or '1.2 TFLOPS'"


def rates(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all readers are called alike
    taken = _taken(path, _NO_RATE, lambda text: _figures(text, _rate_of_line, _rate_column), MAX_METRICS)
    if not taken:
        raise ReaderError("contains no rate: a number with a unit per second", _RATE_HINT, empty=True)
    return {"kind": "metrics", "metrics": {name: statistics.median(v) for name, v in taken.items()}}


def _rate_of_line(line: str) -> Iterator[tuple[str, float]]:
    line = _BRACKETS.sub(_lasting, line)
    first = TIME.search(line)
    head, end = None, 0
    names: list[str] = []
    for match in _RATE.finditer(line):
        if head is None:
            start = min(match.start(), first.start()) if first else match.start()
            # Without a time before it, what stands before the first rate is its own label.
            head = line[:start] if start == match.start() else _TIME_LABEL.sub("", line[:start].rstrip(_BEHIND))
            end = start
        label = _without_results(" ".join(_words(head, _between(line[end : match.start()])))).rstrip(_BEHIND)
        end = match.end()
        unit, value = _scaled(match)
        if value is not None:
            names.append(f"{label} {unit}")
            number = "%d" % names.count(names[-1]) if names.count(names[-1]) > 1 else ""
            yield " ".join(filter(None, (label, number, unit))), value


def _rate_column(title: str) -> _Column | None:
    what, unit = column(title)
    match = _RATE.match("1 " + unit)
    unit, factor = _scaled(match) if match else ("", None)
    return None if factor is None else _Column(f" {what} {unit}" if what else " " + unit, factor)


def _between(text: str) -> str:
    """What stands between the line's figures, without the figures themselves."""
    text = TIME.sub(" ", text)
    return text if LETTER.search(text) else ""


def _words(*texts: str) -> Iterator[str]:
    for text in texts:
        words = " ".join(text.split()).lstrip(_BEFORE).rstrip(_BEHIND)
        if words:
            yield words


def _scaled(match: "re.Match[str]") -> tuple[str, float | None]:
    number = digits(match.group("number"))
    if match.group("other"):
        return match.group("other") + "/s", source.scaled(number, 1.0)
    unit, prefix = ("GB/s", match.group("bytes")) if match.group("flops") is None else ("GFLOP/s", match.group("flops"))
    base = 1024.0 if match.group("binary") else 1000.0
    value = source.scaled(number, base ** ("kmgtp".find(prefix.lower()) + 1 if prefix else 0) / 1e9)
    return unit, None if value is None else float("%.12g" % value)
