"""Tables that programs print: each figure in a line of its own, ``size=4096 Triton: 8.5 GB/s``.

A unit stands in a column's title, as pandas and Triton print it, or below the title, as NCCL's tests do, or beside each
figure between bars, as nvbench does, or at the end of a line above labels with decimal numbers, as nvbandwidth does::

    size  Triton (GB/s)        size   time   algbw        host to device bandwidth (GB/s)
    4096            8.5               (us)  (GB/s)        SUM copy_ce 12.67
                               4096   45.1   23.24

Columns are apart by two blanks, a tab, bars, or below other text by commas. Columns without a unit whose figures have
decimals have that of the line above them, ``Times in ms``. Of torch.utils.benchmark's ``Compare`` the unit comes last,
``Times are in microseconds (us).``, of pytest-benchmark first, ``Name (time in us)``: of its columns the median counts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fcctl_remote.readers.source import finite
from fcctl_remote.readers.spelling import RATE_UNIT, digits

#: A title such as ``Triton (GB/s)`` or ``Best Rate MB/s``; in ``8.5 GB/s`` and ``nan GB/s`` a figure stands.
_TITLED = re.compile(
    r"(?P<what>.{0,80}?)\s{0,4}[(\[](?P<unit>%s|[nuµm]?s(?:ecs?)?)[)\]]"
    r"|(?P<key>\w{1,60})_(?P<short>[num]s|(?i:[kmgt]flops?))"
    r"|.{0,80}\b(?i:times?|latency|latencies|runtimes?) (?:are )?in (?P<spelled>[nuµm]s|(?:nano|micro|milli)?seconds)"
    r"|(?:(?P<of>(?!.{0,80}\d\.\d).{0,80}(?<![\s\d)])(?<!(?i:nan|inf))(?<!(?i:inity)))\s{1,4})?(?P<bare>%s)"
    % (RATE_UNIT, RATE_UNIT)
)
_UNITS = re.compile(r"[#\s]{0,400}(?:\([\w/%]{1,20}\)\s{0,200}){2,60}")
_LABELLED = re.compile(
    r"\s{0,40}(?P<label>[A-Za-z]\S{0,80}(?: \S{1,80}){0,3}?)[\s:=]{1,40}(?P<value>\d{1,15}\.\d{1,15})\s*"
)
#: Columns that tell repetitions apart, or what was measured beside the time: no part of a benchmark's name.
NO_NAME = re.compile(
    r"(?:(?:iter(?:ation)?s?|rep(?:eat|etition)?s?|run|trial|samples?|index|idx|instances)(?: \d+)?|#.*)?"
    r"|status|disposition|.*(?:[/%]|[gmkt]i?b_?p?s|flop|iops|speed|err|diff|(?<![a-z])ratio|bandwidth|throughput|util).*",
    re.IGNORECASE,
)
#: A line that rules off columns, and a figure with its unit.
_BETWEEN = r"[\s|+:\u2502-\u254f\u2551-\u257f]"
_RULE = re.compile(
    r"%s{0,80}[-=\u2500\u2501\u2550]{2,}(?:%s{1,400}[-=\u2500\u2501\u2550]{2,})*%s{0,400}" % ((_BETWEEN,) * 3)
)
_RULED = re.compile(r"[-=\u2500\u2501\u2550]{2,}")
#: What stands behind a figure: its spread, its ratio to the best.
_SPREAD = re.compile(r"\s{0,4}(?:±.{0,40}|\+/-.{0,40}|\(±?[\d.]{1,20}%?\))$")
_FIGURE = re.compile(r"\d[\d,.]{0,30}\s?(?:[nuµm]?s|%s)" % RATE_UNIT)
#: A count of samples, as nvbench prints it; a title whose figures are no results though they have decimals.
_COUNT, _IS_SIZE = re.compile(r"\d{2,}x"), re.compile(r"\bsize\b|\([KMGT]i?B\)", re.IGNORECASE)
#: Of comma-separated values: words and numbers, at the end a number.
_ROW = re.compile(r"(?:\s{0,20}[\w.+-]{1,80}\s{0,20},){1,20}\s{0,20}\d[\d.eE+-]{0,30}\s{0,20}")
_DECIMAL = re.compile(r"\d\.\d")
_MAX_LINE = 2000
#: The first and the last line of a table that torch.utils.benchmark compares; a long title has no dashes.
_COMPARED = re.compile(r"\[-* ?(?P<title>.{0,100}?) ?-*\]\s*")
_COMPARED_UNIT = re.compile(r"Times are in \w{1,20} \((?P<unit>[num]?s)\)\.\s*")
_MAX_ROWS = 1000
#: The header of pytest-benchmark's table; the columns that may stand for a test, the best first.
_PYTEST = re.compile(r"Name \(time in (?P<unit>[nuµm]?s)\)\s{2}")
_CENTRES = ("Median", "Mean", "Min")
#: A line of ptxas, or of ninja: ``[1/3] /usr/local/cuda/bin/nvcc ..``.
_COMPILES = re.compile(r"ptxas |\[\d+/\d+\] \S*(?:\+\+|cc)\s")
#: How long tests and builds took, by pytest, googletest, ctest, CMake and cargo; the spread of a benchmark's
#: repetitions, as Google's prints it; what nvbench prints again in its table.
_NO_BENCHMARK = re.compile(
    r"=+ (?:\d+ \w+,? )+in [\d.]+s\b|[\d.]+s (?:call|setup|teardown) |\[(?:=+|-+|[ A-Z]{10})\] "
    r"|\s*\d+/\d+ Test +#|Total Test time|-- (?:Configuring|Generating|Build) |\S+_(?:stddev|cv)\s"
    r"|\s*Finished .{1,200} target\(s\) in |test result: |Benchmarking .{1,200}: (?:Warming|Collecting|Analyzing)"
    r"|Pass: (?:Cold|Batch|CPU): |Warn: |\w+ AUTOTUNE benchmarking |Triton autotuning "
)
#: The benchmark of a Rust program by Criterion: its name, if that is short, and the middle of three estimates.
_CRITERION = re.compile(
    r"(?P<name>\S.{0,200}?)?\s{1,60}(?P<what>time|thrpt):\s{1,20}"
    r"\[\S{1,40} \S{1,20} (?P<middle>\S{1,40} \S{1,20}) \S{1,40} \S{1,20}\]"
)
#: Titles of what has no unit, or another than the figures beside it.
_NO_UNIT = re.compile(
    r"(?<![a-z])(?:speed-?ups?|err(?:ors?)?|diffs?|difference|ratio|accuracy|efficiency|util(?:ization)?|occupancy"
    r"|tolerance|checksum|version|loss|factor|gain)(?![a-z])|%",
    re.IGNORECASE,
)


class Column(NamedTuple):
    what: str
    unit: str  # of its figures; "" if it names the row


def untabled(text: Iterable[str]) -> Iterator[str]:
    """``text`` with a line for each figure in place of a table's header and rows. A figure that is NaN is left out, and
    so are lines of a compilation: ptxas prints how long it took."""
    columns: list[Column] = []
    unit = above = ""
    ahead, behind = itertools.tee(_medians(_estimates(_compared(line for line in text if not _COMPILES.match(line)))))
    next(ahead, None)
    for line, below in itertools.zip_longest(behind, ahead, fillvalue=""):
        if columns and _RULE.fullmatch(line):
            continue
        header = _header(above, line, "" if columns else below, unit) if len(line) <= _MAX_LINE else []
        figures = _figures(columns, line, unit) if columns and not header else None
        above = line if line.strip() else above
        if figures is not None:
            yield from figures
        elif len(header) > 1:
            columns, unit = header, "" if any(found.unit for found in header) else unit
        else:
            labelled = _LABELLED.fullmatch(line) if unit else None
            own = labelled is None or column(labelled["label"]).unit or _NO_UNIT.search(labelled["label"])
            yield line if labelled is None or own else "%s: %s %s" % (*labelled.groups(), unit)
            columns, unit = [], header[0].unit if header else unit


def _compared(text: Iterable[str]) -> Iterator[str]:
    """``text`` with a line for each time of a table of torch.utils.benchmark."""
    table: list[str] = []
    for line in text:
        found = _COMPARED_UNIT.fullmatch(line) if table else None
        if found:
            yield from _compared_times(table, found["unit"])
            table = []
        elif table and len(table) < _MAX_ROWS:
            table.append(line)
        else:
            yield from table
            table = [line] if _COMPARED.fullmatch(line[:_MAX_LINE]) else []
            yield from () if table else (line,)
    yield from table


def _estimates(text: Iterable[str]) -> Iterator[str]:
    """``text`` with a line for each estimate of Criterion, whose long names stand in a line of their own."""
    above = name = ""
    for line in text:
        found = _CRITERION.fullmatch(line.rstrip()[:_MAX_LINE])
        if found:
            name = found["name"] or (above if found["what"] == "time" else name)
            yield "%s %s: %s" % (name, found["what"], found["middle"])
        else:
            yield line
        above = line.strip()


def _medians(text: Iterable[str]) -> Iterator[str]:
    """``text`` with a line for each test of pytest-benchmark's table, and without times of other things."""
    at, unit = 0, ""
    for line in itertools.filterfalse(_NO_BENCHMARK.match, text):
        found = _PYTEST.match(line)
        cells = _split(line[:_MAX_LINE]) if found or unit else []
        if found and (centre := next((title for title in _CENTRES if title in cells), None)):
            at, unit = cells.index(centre), found["unit"]
            continue
        unit = unit if line.strip() else ""
        value = cells[at].split(" ")[0] if unit and len(cells) > at else ""
        yield "%s: %s %s" % (cells[0], value, unit) if finite(digits(value)) is not None else line


def _compared_times(table: Sequence[str], unit: str) -> Iterator[str]:
    title, *rows = table
    found = _COMPARED.fullmatch(title)
    titles: list[str] = []
    threads = ""
    for row in rows:
        name, *cells = (cell.strip() for cell in row[:_MAX_LINE].split("|"))
        if not cells:
            threads = row.partition(":")[0].strip() if ":" in row else threads
        elif not name:
            titles = cells
        else:
            for what, cell in zip(titles, cells):  # noqa: B905
                if finite(cell) is not None:
                    yield "%s %s: %s %s" % (
                        " ".join(filter(None, (found["title"] if found else "", threads, name))),
                        what,
                        cell,
                        unit,
                    )


def column(title: str) -> Column:
    found = _TITLED.fullmatch(title)
    if found is None:
        return Column(title, "")
    units = ("unit", "short", "bare", "spelled")
    return Column(found["what"] or found["key"] or found["of"] or "", next(filter(None, map(found.group, units))))


def _header(above: str, line: str, below: str, unit: str) -> list[Column]:
    """The columns, if ``line`` has the unit of one, or stands above a rule for each, or below a ``unit`` and above
    figures. A title that comes again is numbered: ``time``, ``time 2``."""
    if _UNITS.fullmatch(line):
        units = list(re.finditer(r"\(\S+", line))
        columns = []
        for title in re.finditer(r"#?[^\s#]\S*(?: [^\s#]\S*)*", above[:_MAX_LINE]):
            beneath = (unit.group() for unit in units if unit.start() < title.end() and title.start() < unit.end())
            found = column("%s %s" % (title.group(), next(beneath, "")))
            columns.append(found if found.unit else Column(title.group(), ""))
    else:
        cells = _titles(above, line, below)
        columns = [column(cell if cells[1:] else cell.rstrip(":. ")) for cell in cells]
        if any(cell.startswith((":", "=")) for cell in cells):  # ``Runtime (us)   : 12.5``
            return []
    if not any(found.unit for found in columns) and not _rules(below, len(columns)):
        titles = unit and not any(finite(found.what) is not None or _DECIMAL.search(found.what) for found in columns)
        if not titles or not _figures(columns, below, unit):
            return []
    counts = [columns[:at].count(found) for at, found in enumerate(columns)]
    return [Column("%s %d" % (c.what, n + 1), c.unit) if n else c for c, n in zip(columns, counts)]  # noqa: B905


def _titles(above: str, line: str, below: str) -> list[str]:
    """The cells of a header; below other text those between commas, else words, if the row ``below`` has as many."""
    cells = _split(line, bool(above))
    if len(cells) == 1 and above and _ROW.fullmatch(below) and below.count(",") == line.count(","):
        return [cell.strip() for cell in line.rstrip(": ").split(",")]
    words, numbers = line.split(), below.split()
    if len(cells) == 1 < len(words) == len(numbers) and not any(word[0] in "([" for word in words):
        return words if all(finite(number) is not None for number in numbers) else cells
    return cells


def _rules(line: str, columns: int) -> bool:
    """Whether ``line`` rules off each of the columns."""
    return _RULE.fullmatch(line) is not None and len(_RULED.findall(line)) == columns


def _split(line: str, inside: bool = False) -> list[str]:
    """The cells of a line: between bars or two blanks; ``inside`` other text between three commas or tabs, too."""
    line = re.sub("[\u2502\u2503\u2551]", "|", line.strip())
    if line.count("|") > 1:
        return [cell.strip() for cell in line.strip("|").split("|")]
    if inside and line.count(",") > 2:
        return [cell.strip() for cell in line.split(",")]
    return [cell.rstrip(",") for cell in re.split(r"\s{2,}|\t+" if inside else r"\s{2,}", line.strip("# \t\\"))]


def _figures(columns: Sequence[Column], line: str, unit: str) -> list[str] | None:
    """A line for each figure of a row, named by the row's text and whole numbers; None if it is no row. A number that
    counts the rows may stand before it. Where a column has no unit, its figures may: ``12.5us``, as torch prints; if no
    column has, those with decimals have ``unit``."""
    splits = (_split(line), _split(line, inside=True), [cell.strip() for cell in line.split(",")])
    cells = next((cells for cells in splits if len(cells) == len(columns)), [])
    values = cells or ([] if "±" in line else line.split()[-len(columns) :])
    plain = (_SPREAD.sub("", value) if value.upper() != "N/A" else "nan" for value in values)
    row = [
        (c._replace(unit=unit) if unit and "." in value and not _NO_UNIT.search(c.what) else c, value)
        for c, value in zip(columns, plain)  # noqa: B905
    ]
    host = "CPU" if any("CUDA" in found.what for found in columns) else None  # of torch's table the GPU's times count
    own = [(found, value) for found, value in row if not found.unit and _FIGURE.fullmatch(value) and values is cells]
    figures = [(found, digits(value)) for found, value in row if found.unit]
    if len(values) < len(columns) or any(_number(value) is None for _, value in figures) or not (own or figures):
        return None
    names = [(found.what, re.sub(r"\.0$", "", value)) for found, value in row if not found.unit]
    results = (_FIGURE, _COUNT)
    kept = [n for n in names if not NO_NAME.fullmatch(n[0]) and not any(result.fullmatch(n[1]) for result in results)]
    at = " ".join(
        "%s=%s" % name if finite(name[1]) is not None else name[1]
        for name in kept
        if "." not in name[1] or finite(name[1]) is None or _IS_SIZE.search(name[0])
    )
    measured = [(found.what, "%s %s" % (value, found.unit)) for found, value in figures if finite(value) is not None]
    return [
        "%s %s: %s" % (at, *pair)
        for pair in (*measured, *((found.what, value) for found, value in own if host not in found.what.split()))
    ]


def _number(text: str) -> float | None:
    return 0.0 if text.lower() == "nan" else finite(text)
