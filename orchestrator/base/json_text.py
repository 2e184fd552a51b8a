"""JSON read from text that others wrote, and attributes of objects as fields of a document."""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from typing import Any

#: What all documents of a run, or of both sides of a comparison, may take in memory at once, bytes. With all else of
#: this process it stays below 256 MiB.
BUDGET_BYTES = 192 * 1024 * 1024
#: The most that CPython takes for each object, list, element, member and quote, bytes.
_COSTS = ((b"{", 88), (b"[", 88), (b",", 48), (b":", 64), (b'"', 24))
#: Bytes of each character of a text that has such a one, or its escape, while it is made.
_WIDTHS = ((6, re.compile(rb"[\xf0-\xff]|\\u[dD][89a-fA-F]")), (4, re.compile(rb"[\xc4-\xef]|\\u(?!00)")))


class TooLarge(ValueError):
    """Nothing is wrong with it but its size."""


def loads(data: bytes | str, most: int = BUDGET_BYTES) -> Any:
    """Returns the value of a JSON document. Raises ValueError if it is none, too deep, or would take more than ``most``
    bytes."""
    return Budget(most).loads(data.encode(errors="surrogatepass") if isinstance(data, str) else data)


def resident_bytes(data: bytes | bytearray) -> int:
    """An upper bound of the memory that the parsed ``data`` takes, bytes, without ``data`` itself."""
    plain = data.isascii() and b"\\u" not in data
    width = 1 if plain else next((width for width, pattern in _WIDTHS if pattern.search(data)), 1)
    return width * len(data) + sum(cost * data.count(mark) for mark, cost in _COSTS)


@dataclass
class Budget:
    """Memory for several documents that are held at once, bytes."""

    left: int = BUDGET_BYTES

    def loads(self, data: bytes | bytearray) -> Any:
        """The value of ``data``, which is paid for from now on; raises as :func:`loads` does."""
        from pydantic_core import from_json  # straight from bytes: the standard library would decode all of it first

        price = resident_bytes(data)
        if len(data) + price > self.left:
            raise TooLarge(
                f"reading it needs {_mb(len(data) + price)} of memory, but only {_mb(self.left)} are allowed"
            )
        collects = gc.isenabled()
        gc.disable()  # a new value has no garbage, and looking for it takes ten times as long as parsing
        try:
            value = from_json(data)
        except ValueError as error:
            deep = "recursion limit" in str(error)
            raise ValueError("nested too deeply" if deep else "not JSON") from None
        finally:
            if collects:
                gc.enable()
        self.left -= price
        return value


def _mb(size: int) -> str:
    return f"{size / 1024**2:.0f} MiB"


def pick(thing: object, names: str) -> dict[str, Any]:
    """The attributes of ``thing`` called ``names``, which are separated by blanks."""
    return {name: getattr(thing, name) for name in names.split()}


def rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else round(value, digits)
