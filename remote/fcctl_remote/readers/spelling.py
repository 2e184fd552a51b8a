"""Rewrites a printed line into one form: no colours, seconds in place of minutes, a decimal point, the unit behind."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fcctl_remote.base.text import without_escapes

TIME_UNIT = (
    r"(?P<unit>ns(?:ecs?)?|nanoseconds?|[uµμ]s(?:ecs?)?|microseconds?|ms(?:ecs?)?|milliseconds?|s|secs?|seconds?)"
)
RATE_UNIT = (
    r"(?:t|tok|tokens|req|requests|it|samples|images)/s|(?i:[kmgtp]flops?)(?:/s)?|[kKMGTP]i?B(?:ytes)?(?:/s(?:ec)?|ps)"
    r"|[kKMGTP]?bytes/s(?:ec)?"
)
#: A unit before its number: ``TFLOPS: 1.7``, ``Bandwidth (GB/s) = 412``, ``time(ms): 0.3``; not ``thread(s): 256``.
_UNIT_FIRST = re.compile(
    r"(?<!\d )(?:(?:(?<=\s)|(?<=[A-Za-z])(?!.s[)\]]))"
    r"[(\[](?P<time>[nuµμm]s|[nuµμm]?secs?|(?:nano|micro|milli)?seconds?)[)\]]"
    r"|(?<![\w.])[(\[]?(?P<rate>[kKMGTP]i?B/s|(?i:[kmgtp]flops?)(?:/s)?|(?<=[(\[])[A-Za-z]{1,20}/s(?=[)\]])|[A-Za-z]{2,20}/s(?:ec)?(?=\s{0,40}[=:]))[)\]]?)(?:\s{0,40}[=:]\s{0,40}|(?<=flops)\s{1,40})"
    r"(?P<value>\d[\d,]{0,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?|[-+]?(?i:nan|inf))(?![\w.])"
)
#: The spread of a figure, ``55.05 +- 0.15 ms``; a unit in brackets behind one, ``0.25 (ms)``, not ``N = 64 (us)``.
_SPREAD = re.compile(r"(?<=\d)\s?(?:±|\+/?-)\s?\d[\d.]{0,20}(?:[eE][+-]?\d{1,3})?(?=\s?[A-Za-zµμ])")
_UNIT_IN_BRACKETS = re.compile(r"(\d\.\d{1,20})\s?[(\[](%s|%s)[)\]]" % (TIME_UNIT.replace("?P<unit>", "?:"), RATE_UNIT))
#: What Google's benchmark prints behind its times.
_ITERATIONS = re.compile(r"(?<=[num]s)\s+\d+\s+(?=\w+=)|(?<=\ss)\s+\d+\s+(?=\w+=)")
_BYTES_PER_SECOND = re.compile(r"\bbytes_per_second=(\d[\d.]*)([kMGT]?)i?/s")
#: ``1m 23.4s``, ``1 h 2 min 3 s``; not the ``real 0m1.2s`` of a shell, which has the program's start in it.
_MINUTES = re.compile(
    r"(?<!real\s)(?<!user\s)(?<!sys\s)(?<![\w.:,+-])(?:(\d{1,4})\s?h(?:(?:ou)?rs?)?,?\s?)?"
    r"(\d{1,6})\s?m(?:in(?:ute)?s?)?,?\s?(?:and\s)?(\d{1,2}(?:\.\d{1,9})?)\s?(?=s(?:ec(?:ond)?s?)?\b)"
)
#: Thousands with no-break or thin spaces, as in French, or with the Swiss apostrophe.
_SPACED = re.compile("(?<![\\w.,])[1-9]\\d{0,2}(?:[\u00a0\u202f\u2009\u2019]\\d{3})+(?!\\d)")
_POWER_OF_TEN = re.compile(r"(?<=\d)\s?[x×*]\s?10\^(?=[+-]?\d{1,2}\b)")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE].*)?")
_DECIMALS = re.compile(r"\d+,\d+(?:[eE].*)?")
_UNIT = r"\s?(?:%s|%s)(?![\w^])" % (TIME_UNIT.replace("?P<unit>", "?:"), RATE_UNIT)
#: Figures that only a program with decimal commas prints, ``0,345 ms`` and ``12,5 us``, and such as it never prints.
_COMMA = re.compile(r"(?<![\w.,])(?:0,\d{1,20}|\d{1,20},(?:\d{1,2}|\d{4,20}))%s" % _UNIT)
_NO_COMMA = re.compile(r"(?<![\w,.])(?:[\d,]{0,20}\.\d{1,20}|\d{1,3}(?:,\d{3}){2,6})%s" % _UNIT)
_AMBIGUOUS = re.compile(r"(?<![\w.,])(\d{1,3}),(\d{3})(?=%s)" % _UNIT)


def plain(line: str) -> str:
    """``line`` as a terminal shows it at last, without colours and what was printed over; minutes become seconds,
    ``1.5x10^9`` 1.5e9."""
    line = _SPACED.sub(lambda found: re.sub(r"\D", "", found[0]), without_escapes(line).rpartition("\r")[2])
    return _POWER_OF_TEN.sub("e", _MINUTES.sub(_seconds, line))


def _seconds(found: "re.Match[str]") -> str:
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return "%.12g " % (3600 * hours + 60 * minutes + seconds)


def digits(number: str) -> str:
    """``number`` for :func:`float`: ``1,234.5`` without its separators of thousands, ``12,5`` and ``0,345`` with a
    point in place of the comma. ``1,2,3`` stays what it is, no number."""
    if "," not in number or _THOUSANDS.fullmatch(number):
        return number.replace(",", "")
    return number.replace(",", ".") if _DECIMALS.fullmatch(number) else number


def has_decimal_commas(text: Iterable[str]) -> bool:
    """Whether the program that printed these lines writes ``12,345 ms`` for 12.345 ms, as its other figures show."""
    found = False
    for line in text:
        if _NO_COMMA.search(line):
            return False
        found = found or _COMMA.search(line) is not None
    return found


def with_points(line: str) -> str:
    """``line`` of such a program, of which ``12,345 ms`` is no number of thousands."""
    return _AMBIGUOUS.sub(r"\1.\2", line)


def unit_behind(line: str) -> str:
    """``line`` with each unit behind its number, and without spreads."""
    line = _BYTES_PER_SECOND.sub(r"\1 \2iB/s", _ITERATIONS.sub(" ", line))
    line = _UNIT_IN_BRACKETS.sub(r"\1 \2", _SPREAD.sub("", line))
    return _UNIT_FIRST.sub(r" \g<value> \g<time>\g<rate>", line)
