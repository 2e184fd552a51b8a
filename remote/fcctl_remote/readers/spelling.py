"""How programs spell what they print: in colours, in minutes, with commas."""

from __future__ import annotations

import re

from fcctl_remote.base.text import without_escapes

#: ``1m 23.4s``, ``1 h 2 min 3 s``; not the ``real 0m1.2s`` of a shell, which has the program's start in it.
_MINUTES = re.compile(
    r"(?<!real\s)(?<!user\s)(?<!sys\s)(?<![\w.:,+-])(?:(\d{1,4})\s?h(?:(?:ou)?rs?)?,?\s?)?"
    r"(\d{1,6})\s?m(?:in(?:ute)?s?)?,?\s?(?:and\s)?(\d{1,2}(?:\.\d{1,9})?)\s?(?=s(?:ec(?:ond)?s?)?\b)"
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE].*)?")
_DECIMALS = re.compile(r"\d+,\d+(?:[eE].*)?")


def plain(line: str) -> str:
    """``line`` as a terminal shows it at last, without colours and what was printed over; minutes become seconds."""
    return _MINUTES.sub(_seconds, without_escapes(line).rpartition("\r")[2])


def _seconds(found: "re.Match[str]") -> str:
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return "%.12g " % (3600 * hours + 60 * minutes + seconds)


def digits(number: str) -> str:
    """``number`` for :func:`float`: ``1,234.5`` without its separators of thousands, ``12,5`` and ``0,345`` with a
    point in place of the comma. ``1,2,3`` stays what it is, no number."""
    if "," not in number or _THOUSANDS.fullmatch(number):
        return number.replace(",", "")
    return number.replace(",", ".") if _DECIMALS.fullmatch(number) else number
