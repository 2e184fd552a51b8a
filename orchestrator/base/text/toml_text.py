"""TOML read with a limit: :mod:`tomllib` calls itself for each level of nesting, until Python has had enough."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
_STRINGS = (r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', r"'''.*?'{3,5}(?!')", r'"(?:[^"\\\n]|\\.)*"', r"'[^'\n]*'")
_TOKEN = re.compile("|".join([*_STRINGS, r"#[^\n]*|[][{}.,=\n]"]), re.DOTALL)
_WHERE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


class TomlError(ValueError):
    """The document cannot be read; ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def loads(text: str) -> dict[str, Any]:
    """Returns the tables of a TOML document. Raises TomlError if it is none, too large or too deep."""
    if len(text) > MAX_BYTES:
        raise TomlError(1, f"the file is larger than {MAX_BYTES // 1024} KiB")
    deepest = next((at for at, depth in _depths(text) if depth > MAX_DEPTH), None)
    if deepest is not None:
        raise TomlError(text.count("\n", 0, deepest) + 1, f"nested deeper than {MAX_DEPTH} levels")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _WHERE.search(str(error))
        line = int((found and found[1]) or len(text.splitlines()) or 1)
        raise TomlError(line, _WHERE.sub("", str(error))) from None


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Yields position and depth of each token: levels of its table's name, of its key, and of the values around it."""
    table = key = 0
    open_values: list[int] = []  # the levels that each bracket adds
    in_name = has_key = False  # of a table; before an equals sign
    for token in _TOKEN.finditer(text):
        kind = token[0]
        if kind == "\n" and not open_values:
            key, in_name, has_key = 0, False, False
        elif kind == "=":
            has_key = True
        elif kind == ".":
            table, key = (table + 1, key) if in_name else (table, key + 1)
        elif kind == "[" and not open_values and not has_key:
            table, in_name = 1, True
        elif kind in "[{":
            open_values.append(key + 1)
        elif kind in "]}" and open_values:
            open_values.pop()
        if kind in "[{]},":
            key = 0
        yield token.start(), table + sum(open_values) + key
