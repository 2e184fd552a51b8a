"""Reader ``rates``: the throughputs a program prints, where more is better.

Of each line every number with a unit per second counts, named by what stands before it and by that unit::

    Triad n=1024  12.5 us  77.70 GB/s           Triad n=1024 GB/s
    Effective bandwidth: 412 GB/s (83 %)        Effective bandwidth GB/s
    dense 1.2 TFLOPS, sparse 2.1 TFLOPS         dense GFLOP/s, dense sparse GFLOP/s
    n=64 time: 3 us  bandwidth: 9 GB/s          n=64 bandwidth GB/s

Bytes become GB/s (1e9 a second), floating point operations GFLOP/s; anything else stays what it is, ``tokens/s``. Of a
name that comes again the median counts; a line with ``inf GB/s`` is an error.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from fcctl_remote.readers import timing
from fcctl_remote.readers.metrics import MAX_METRICS
from fcctl_remote.readers.source import ReaderError, clean
from fcctl_remote.readers.times import NO_NUMBER, NUMBER, TIME, numbers

_PER_SECOND = r"\s?/\s?s(?:ec(?:ond)?)?"
_BYTES = r"(?P<bytes>[kKMGTP]?)(?P<binary>i?)B(?:ytes)?(?:%s|ps)" % _PER_SECOND
_FLOPS = r"(?P<flops>(?i:[kmgtp]?))(?i:flops?)(?:%s)?" % _PER_SECOND
_OTHER = r"(?P<other>[A-Za-z]{1,24})%s" % _PER_SECOND
_RATE = re.compile(r"%s\s*(?:%s|%s|%s)(?![\w^])" % (NUMBER, _BYTES, _FLOPS, _OTHER))
_NO_RATE = re.compile(r"%s(?:%s|%s|%s)(?![\w^])" % (NO_NUMBER, _BYTES, _FLOPS, _OTHER))
#: What labels a time, and no rate that comes after it.
_TIME_LABEL = re.compile(
    r"\b(?:(?:avg|average|mean|median|min|max|best|total|kernel|gpu|cpu|elapsed|execution|exec|run)[ _])?"
    r"(?:time|latency|duration|elapsed|runtime)$",
    re.IGNORECASE,
)
_BEFORE, _BEHIND = " \t-*#>|,;:=", " \t:=-|,;>.<([{@~"
_LETTER = re.compile(r"[^\W\d_]")
_HINT = "a line such as 'triad n=1024: 412.5 GB/s', or '1.2 TFLOPS'"


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all readers are called alike
    taken: dict[str, list[float]] = {}
    for line in numbers(path, _NO_RATE):
        for name, value in _of_line(line):
            taken.setdefault(clean(name, 200), []).append(value)
        if len(taken) > MAX_METRICS:
            raise ReaderError("%s: rates of more than %d names" % (path, MAX_METRICS))
    if not taken:
        raise ReaderError("%s: no number with a unit per second in it" % path, _HINT)
    return {"kind": "metrics", "metrics": {name: statistics.median(v) for name, v in taken.items()}}


def _of_line(line: str) -> Iterator[tuple[str, float]]:
    first = TIME.search(line)
    head, end = None, 0
    for match in _RATE.finditer(line):
        if head is None:
            start = min(match.start(), first.start()) if first else match.start()
            # Without a time before it, what stands before the first rate is its own label.
            head = line[:start] if start == match.start() else _TIME_LABEL.sub("", line[:start].rstrip(_BEHIND))
            end = start
        label = " ".join(_words(head, _between(line[end : match.start()])))
        end = match.end()
        unit, value = _scaled(match)
        if value is not None:
            yield " ".join(filter(None, (label, unit))), value


def _between(text: str) -> str:
    """What stands between the line's figures, without the figures themselves."""
    text = TIME.sub(" ", text)
    return text if _LETTER.search(text) else ""


def _words(*texts: str) -> Iterator[str]:
    for text in texts:
        words = " ".join(text.split()).lstrip(_BEFORE).rstrip(_BEHIND)
        if words:
            yield words


def _scaled(match: "re.Match[str]") -> tuple[str, float | None]:
    number = match.group("number").replace(",", "")
    if match.group("other"):
        return match.group("other") + "/s", timing.scaled(number, 1.0)
    unit, prefix = ("GB/s", match.group("bytes")) if match.group("flops") is None else ("GFLOP/s", match.group("flops"))
    base = 1024.0 if match.group("binary") else 1000.0
    value = timing.scaled(number, base ** ("kmgtp".find(prefix.lower()) + 1 if prefix else 0) / 1e9)
    return unit, None if value is None else float("%.12g" % value)
