"""Reader ``ncu``: Nsight Compute's figures per kernel launch.

Takes a report (``.ncu-rep``, imported by the machine's own ``ncu``) or the CSV of ``--page raw``: a header row, a row
of units, one row per launch. Metrics have other names on other chips; ``base/ncu_metrics.py`` gives them one name. A
metric that was not collected is null, never 0.

``duration_ns`` is the profiler's replayed launch, at whatever clock: it explains a profile and is no benchmark.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Dict, Tuple

from fcctl_remote.base.ncu_metrics import METRICS
from fcctl_remote.base.programs import run, which
from fcctl_remote.base.text import kernel_name
from fcctl_remote.readers.source import MAX_BYTES, ReaderError, clean, finite, lines, open_file

IMPORT_TIMEOUT_S = 120.0
MAX_LAUNCHES = 2000
MAX_RAW_LAUNCHES = 32  # a full set has over a thousand metrics per launch
MAX_COLUMNS = 20_000

_DURATION = ("gpu__time_duration.sum",)
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(?!.*_not_issued)(\w+)_per_issue_active\.ratio\Z")
_NOT_A_STALL = "selected"  # the warp that does issue
_IDENTITY = frozenset((
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type",
))  # fmt: skip

_COUNTERS_HINT = (
    "only administrators may read GPU performance counters on this machine; allow all users: fcctl hosts prepare "
    "TARGET (NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module)"
)
_NO_KERNEL_HINT = "check that the -k filter matches a kernel's name, and that --launch-skip does not skip all launches"


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:
    with open_file(path) as stream:
        head = stream.read(4096)
    if path.endswith(".ncu-rep") or head.startswith(b"NVR\0"):
        return _report(path, env)
    return _document(lines(path))


def _report(path: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Of ncu's output for the report; base units, ``--print-units base``, would cost four of six decimals."""
    program = which("ncu", env)
    if program is None:
        raise ReaderError(
            "ncu is needed to read a report, and is not on PATH on this machine",
            "install Nsight Compute (apt install cuda-nsight-compute-12-9, or your version), or let the step write "
            "CSV and collect that: ncu --import REPORT --csv --page raw > profile.csv",
            unavailable=True,
        )
    argv = [program, "--import", os.path.abspath(path), "--csv", "--page", "raw"]
    done = run(argv, IMPORT_TIMEOUT_S, {**(env or os.environ), "LC_ALL": "C"}, most_bytes=MAX_BYTES + 1)
    if done.timed_out:
        raise ReaderError("ncu --import took over %d s" % IMPORT_TIMEOUT_S)
    if len(done.out) > MAX_BYTES:
        raise ReaderError("over %d bytes as CSV" % MAX_BYTES, "profile fewer launches: --launch-count 1")
    text = (done.err + "\n" + done.out).split("\n")
    if not done.ok:
        shown = clean(" ".join(line.strip() for line in text if line.strip()), 300)
        raise ReaderError("ncu --import failed (%s): %s" % (done.code, shown), unavailable=done.code is None)
    return _document(text)


def _document(text: Iterable[str]) -> dict[str, Any]:
    rows = _rows(text)
    header = next(rows, None)
    if header is None:
        raise ReaderError("no kernel was profiled", _NO_KERNEL_HINT, empty=True)
    kernels: list[dict[str, Any]] = []
    for identity, cells in _raw(header, rows):
        kernel = _kernel(identity, cells)
        if len(kernels) >= MAX_RAW_LAUNCHES:
            kernel["raw"] = {}
        kernels.append(kernel)
    if not kernels:
        raise ReaderError("no kernel was profiled", _NO_KERNEL_HINT, empty=True)
    return {
        "kind": "profile",
        "tool": "ncu",
        "kernels": kernels,
        "duration_is_benchmark": False,
        "raw_launches": min(len(kernels), MAX_RAW_LAUNCHES),
    }


def _rows(text: Iterable[str]) -> Iterator[list[str]]:
    """CSV rows from the header on. The profiled program and ncu itself print before and between."""
    in_table = False

    def table() -> Iterator[str]:
        nonlocal in_table
        for line in text:
            if line.startswith("==") or not in_table:
                _complain(line)
            in_table = in_table or line.lstrip("\ufeff").startswith(('"ID",', "ID,"))
            if in_table and not line.startswith("==") and line:
                yield line.lstrip("\ufeff")

    try:
        for row in csv.reader(table(), strict=True):
            if len(row) > MAX_COLUMNS:
                raise ReaderError("%d columns; at most %d" % (len(row), MAX_COLUMNS))
            yield row
    except csv.Error as error:
        raise ReaderError("not ncu's CSV: %s" % clean(error), "the file may be incomplete") from None


def _complain(line: str) -> None:
    """ncu's own words for why there are no figures."""
    if "ERR_NVGPUCTRPERM" in line:
        raise ReaderError("the user may not read GPU performance counters", _COUNTERS_HINT, unavailable=True)
    if "LibraryNotLoaded" in line or "Failed to initialize the profiler" in line:
        raise ReaderError(
            "Nsight Compute cannot profile on this machine: %s" % clean(line, 200),
            "it is a container or a virtual GPU without profiling support; use another machine",
            unavailable=True,
        )
    if "No kernels were profiled" in line:
        raise ReaderError("no kernel was profiled", _NO_KERNEL_HINT, empty=True)


Cells = Dict[str, Tuple[str, str]]  # metric -> (unit, value)


def _raw(header: list[str], rows: Iterator[list[str]]) -> Iterator[tuple[dict[str, str], Cells]]:
    units = next(rows, None)
    if units is None:
        return
    if len(units) != len(header) or units[0] != "":
        raise ReaderError("the row of units after the header is missing", "write the file with ncu --csv --page raw")
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ReaderError("a row has %d columns, not %d; is the file complete?" % (len(row), len(header)))
        if number >= MAX_LAUNCHES:
            raise ReaderError("more than %d launches" % MAX_LAUNCHES, "profile fewer launches: --launch-count N")
        identity = {name: value for name, value in zip(header, row) if name in _IDENTITY}  # noqa: B905
        cells = {n: (u, v) for n, u, v in zip(header, units, row) if n not in _IDENTITY}  # noqa: B905
        yield identity, cells


def _kernel(identity: dict[str, str], cells: Cells) -> dict[str, Any]:
    raw: dict[str, float] = {}
    stalls: dict[str, float] = {}
    for name, (unit, text) in cells.items():
        value = base_value(text, unit)
        if value is None:
            continue
        raw[clean(name, 200)] = value
        stall = _STALL.match(name)
        if stall and stall.group(1) != _NOT_A_STALL:
            stalls[stall.group(1)] = value
    metrics = {m.key: _first(cells, raw, m.names) for m in METRICS}
    for m in METRICS:
        value = metrics[m.key]
        if m.unit != "%" and value is not None:
            metrics[m.key] = round(value)
    return {
        "name": clean(kernel_name(_plain(identity.get("Kernel Name", "?")))),
        "signature": clean(identity.get("Kernel Name", "?")),
        "id": clean(identity.get("ID", ""), 20),
        "process": clean(identity.get("Process Name", ""), 120),
        "device": clean(identity.get("Device", ""), 80),
        "compute_capability": clean(identity.get("CC", ""), 10),
        "grid": _dimensions(identity.get("Grid Size", "")),
        "block": _dimensions(identity.get("Block Size", "")),
        "duration_ns": _first(cells, raw, _DURATION),
        "metrics": metrics,
        "stalls": stalls,
        "raw": raw,
    }


def _first(cells: Cells, raw: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    for name in names:
        if name in raw:
            return raw[name]
        if name in cells and is_foreign(cells[name][1]):
            raise ReaderError(
                "'%s' is not a number in the C locale" % clean(cells[name][1], 40), "run ncu with LC_ALL=C"
            )
    return None


def _plain(signature: str) -> str:
    """``void tile<64>(const __half *, float *)`` -> ``tile<64>``, as the ptxas reader names it."""
    if not signature.endswith(")"):
        return signature
    depth = 0
    for at in range(len(signature) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(signature[at], 0)
        if depth == 0:
            name = signature[:at]
            return (name[5:] if name.startswith("void ") else name) or signature
    return signature


def _dimensions(text: str) -> list[int] | None:
    """``(32, 1, 1)`` as a list of three, else null."""
    numbers = re.findall(r"[0-9]{1,10}", text[:100])
    return [int(n) for n in numbers] if len(numbers) == 3 else None


#: ncu scales bytes by 1000, not 1024. Names before and after the 2021 change of spelling.
_BASE: dict[str, float] = {
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
    "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9,
    "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9,
    "hz": 1.0, "Khz": 1e3, "Mhz": 1e6, "Ghz": 1e9, "KHz": 1e3, "MHz": 1e6, "GHz": 1e9, "Hz": 1.0,
}  # fmt: skip
_PER_SECOND = 1e9  # quotients by time are per second, as in byte/second, although times are ns

_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?\Z")
_DIGITS = re.compile(r"[-+]?[0-9][0-9.,]*[0-9]\Z")


def base_value(text: str, unit: str) -> float | None:
    """The number in base units; None for ``n/a``, ``no data``, text, or a number written for another locale."""
    if len(text) > 60 or not _NUMBER.match(text.strip()):
        return None
    return finite(float(text.replace(",", "")) * factor(unit))


def factor(unit: str) -> float:
    """What to multiply by to be in the base unit: ``Gbyte/second`` -> 1e9, ``cycle/nsecond`` -> 1e9, ``%`` -> 1."""
    above, _, below = unit.partition("/")
    scale = _BASE.get(above, 1.0)
    if below in _BASE:
        time = below.endswith(("s", "second")) and "byte" not in below
        scale /= _BASE[below] / _PER_SECOND if time else _BASE[below]
    return scale


def is_foreign(text: str) -> bool:
    """A number with separators that ``LC_ALL=C`` would not write: ``65,77`` or ``27.595.520``."""
    return len(text) <= 60 and bool(_DIGITS.match(text.strip())) and not _NUMBER.match(text.strip())
