"""Nsight Compute's numbers and units, brought to ns, byte, hz and their quotients."""

from __future__ import annotations

import re

from fcctl_remote.readers.source import finite

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
