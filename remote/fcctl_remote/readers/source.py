"""What all readers share: bytes, text and JSON with every size bounded, and benchmark documents in microseconds."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from fcctl_remote.base.estimates import NEEDS, quantile
from fcctl_remote.base.files import NotPlain, open_plain
from fcctl_remote.base.strict_json import parse_json

MAX_BYTES = 64 * 1024 * 1024
MAX_LINE = 64 * 1024
MAX_TEXT = 500  # characters of any name or message that goes into a document
MAX_ROWS = 100_000  # cases, benchmarks, kernels


class ReaderError(Exception):
    """The file cannot be read as what it was said to be. Its name is put before the message by the package's ``read``.

    ``unavailable`` tells figures that cannot be had on this machine from a file that is wrong; ``empty`` a file with
    nothing in it to read.
    """

    def __init__(self, message: str, hint: str | None = None, unavailable: bool = False, empty: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.unavailable = unavailable
        self.empty = empty
        self.reader: str | None = None

    def __str__(self) -> str:
        return self.message


def open_file(path: str) -> BinaryIO:
    """Open a regular file of at most :data:`MAX_BYTES`; a pipe or a device is refused, never waited for."""
    try:
        fd = open_plain(path, follow=True)
    except NotPlain:
        raise ReaderError("not a regular file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ReaderError(reason, "check that the step writes to the path in 'file:'") from None
    info = os.fstat(fd)
    if info.st_size > MAX_BYTES:
        os.close(fd)
        raise ReaderError("%d bytes; at most %d are read" % (info.st_size, MAX_BYTES))
    return os.fdopen(fd, "rb")


def read_bytes(path: str) -> bytes:
    with open_file(path) as stream:
        data = stream.read(MAX_BYTES + 1)  # it may have grown since it was measured
    if len(data) > MAX_BYTES:
        raise ReaderError("more than %d bytes" % MAX_BYTES)
    return data


def lines(path: str) -> Iterator[str]:
    """The file's lines as text without line ends. A longer line than :data:`MAX_LINE` comes in pieces."""
    taken = 0
    with open_file(path) as stream:
        while taken <= MAX_BYTES:
            line = stream.readline(MAX_LINE)
            if not line:
                return
            taken += len(line)
            yield line.decode("utf-8", "replace").rstrip("\r\n")


def clean(value: Any, limit: int = MAX_TEXT) -> str:
    """Text that is safe on a terminal and bounded: control characters become ``?``."""
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", "?", str(value)[: limit + 1])
    return text if len(text) <= limit else text[: limit - 2] + ".."


def finite(value: Any) -> float | None:
    """``value`` as a finite float, or None: also for the number in a string, as some tools write it."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and len(value) > 400:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def load_json(path: str) -> Any:
    """Strict JSON: NaN, Infinity, numbers beyond a double and repeated nesting past Python's limit are refused."""
    data = read_bytes(path)
    try:
        return parse_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ReaderError("not UTF-8 text") from None
    except ValueError as error:
        raise ReaderError(
            "not JSON: %s" % clean(error),
            "the program that wrote the file may have been killed; to check the file: python3 -m json.tool FILE",
        ) from None


def an_object(value: Any, where: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ReaderError("%sexpected an object, found %s" % (where and where + ": ", type(value).__name__))
    return value


def a_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ReaderError("%s: expected a list, found %s" % (where, type(value).__name__))
    if len(value) > MAX_ROWS:
        raise ReaderError("%s: %d entries; at most %d" % (where, len(value), MAX_ROWS))
    return value


def small(value: Any) -> tuple[bool, Any]:
    """Whether ``value`` is a plain number, boolean or text fit to be carried along as a parameter; and that value."""
    if isinstance(value, (bool, int, float)):
        return True, value
    return (True, clean(value, 120)) if isinstance(value, str) else (False, None)


MAX_SAMPLES = 10_000  # kept per benchmark; statistics are over all of them
STATS = ("p50", "p90", "p99", "min", "max", "mean", "stddev")
_SHAPE = re.compile(r"\bB(\d{1,9})_?H(\d{1,9})_?S(\d{1,9})_?D(\d{1,9})\b", re.IGNORECASE)


def statistics_us(samples: Sequence[float]) -> dict[str, Any]:
    """n, p50, p90, p99, min, max, mean and stddev of samples in us; a percentile of too few samples
    (:data:`fcctl_remote.base.estimates.NEEDS`) is null."""
    n = len(samples)
    stats: dict[str, Any] = {"n": n}
    stats.update(dict.fromkeys(STATS))
    if not n:
        return stats
    ordered = sorted(samples)
    mean = math.fsum(ordered) / n
    stats.update(p50=quantile(ordered, 0.5), min=ordered[0], max=ordered[-1], mean=mean)
    stats.update({name: quantile(ordered, int(name[1:]) / 100) for name, least in NEEDS.items() if n >= least})
    if n >= 2:
        stats["stddev"] = math.sqrt(math.fsum((x - mean) ** 2 for x in ordered) / (n - 1))
    return stats


def benchmark(name: str, samples: Sequence[float] | None = None, **known: Any) -> dict[str, Any]:
    """One entry of ``benchmarks``: statistics of the samples, then whatever the tool computed itself."""
    entry: dict[str, Any] = {"name": name, "unit": "us", "stats": statistics_us(samples or [])}
    entry["stats"].update({k: v for k, v in known.items() if v is not None})
    if samples and len(samples) <= MAX_SAMPLES:
        entry["samples"] = list(samples)
    return entry


def document(benchmarks: list[dict[str, Any]], tool: str) -> dict[str, Any]:
    if not benchmarks:
        hint = "check that the benchmark's filter matches at least one"
        raise ReaderError("contains no benchmark", hint, empty=True)
    for entry in benchmarks:
        times = [entry["stats"][name] for name in ("min", "p50", "mean")]
        if any(time is not None and time <= 0 for time in times):  # no measurement, and no gate passes on it
            entry.update(stats=statistics_us([]), error="its time is not above 0")
            entry.pop("samples", None)
    return {"kind": "benchmark", "tool": tool, "benchmarks": benchmarks, "comparisons": []}


def scaled(value: Any, factor: float) -> float | None:
    """``value * factor`` if that is a finite number, else None."""
    number = finite(value)
    return None if number is None else finite(number * factor)


def shape(value: Any) -> dict[str, int] | None:
    """``{B, H, S, D}`` from an object with those keys, or from text such as ``B1_H8_S512_D64``."""
    if isinstance(value, str):
        match = _SHAPE.search(value[:500])
        return dict(zip("BHSD", map(int, match.groups()))) if match else None  # noqa: B905
    if isinstance(value, dict) and all(type(value.get(k)) is int for k in "BHSD"):
        return {k: value[k] for k in "BHSD"}
    return None
