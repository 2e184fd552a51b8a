"""TOML with limits on size and depth, the line of each key, and tables added to or removed from a text."""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
_STRINGS = (r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', r"'''.*?'{3,5}(?!')", r'"(?:[^"\\\n]|\\.)*"', r"'[^'\n]*'")
_STRING = re.compile("|".join(_STRINGS), re.DOTALL)
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


Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]+")
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")


def key_lines(document: str) -> dict[Path, int]:
    """The line (from 1) of every table, key and array element of a valid TOML ``document``."""
    return _Scanner(document).scan()


class _Scanner:
    def __init__(self, document: str) -> None:
        self.text = document
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.newlines = [i for i, char in enumerate(document) if char == "\n"]
        self.arrays: dict[Path, int] = {}  # how many [[tables]] of this name were seen

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self._skip_blank()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip_blank()
        return self.lines

    def _header(self) -> Path:
        is_array = self.text.startswith("[[", self.at)
        start = self.at
        self.at += 2 if is_array else 1
        path: Path = ()
        for part in self._key():
            path = (*path, part)
            if path in self.arrays:
                path = self._element(path)
        self.at += 2 if is_array else 1
        if is_array:
            path = self._append(path)
        self._mark(path, start)
        return path

    def _element(self, path: Path) -> Path:
        return (*path, self.arrays[path] - 1)

    def _append(self, path: Path) -> Path:
        """``[[a]]`` again means the next element of ``a``, wherever the walk down put the last one."""
        if path and isinstance(path[-1], int) and path[:-1] in self.arrays:
            path = path[:-1]
        self.arrays[path] = self.arrays.get(path, 0) + 1
        return self._element(path)

    def _pair(self, table: Path) -> None:
        start = self.at
        path = (*table, *self._key())
        self._mark(path, start)
        self._skip_blank()
        self.at += 1  # the equals sign
        self._skip_blank()
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip_blank()
            parts.append(self._key_part())
            self._skip_blank()
            if self.text[self.at : self.at + 1] != ".":
                return parts
            self.at += 1

    def _key_part(self) -> str:
        bare = _BARE.match(self.text, self.at)
        if bare:
            self.at = bare.end()
            return bare.group()
        quoted = self._string()
        return str(tomllib.loads(f"k = {quoted}")["k"])

    def _string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            raise ValueError(f"line {self._line(self.at)}: invalid TOML")
        self.at = found.end()
        return found.group()

    def _value(self, path: Path) -> None:
        first = self.text[self.at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            found = _SCALAR.match(self.text, self.at)
            self.at = found.end() if found else self.at + 1

    def _array(self, path: Path) -> None:
        self.at += 1
        index = 0
        while not self._closes("]"):
            self._mark((*path, index), self.at)
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        while not self._closes("}"):
            self._pair(path)

    def _closes(self, bracket: str) -> bool:
        """Step over what separates elements; True, and past it, at the closing ``bracket``."""
        self._skip_blank()
        if self.text[self.at] == ",":
            self.at += 1
            self._skip_blank()
        if self.text[self.at] != bracket:
            return False
        self.at += 1
        return True

    def _skip_blank(self) -> None:
        found = _BLANK.match(self.text, self.at)
        if found:
            self.at = found.end()

    def _mark(self, path: Path, position: int) -> None:
        line = self._line(position)
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def _line(self, position: int) -> int:
        return bisect_right(self.newlines, position - 1) + 1


def has_table(text: str, path: tuple[str, str]) -> bool:
    """Whether ``text`` has ``[a.b]``, or ``a.b`` in another form."""
    above = loads(text).get(path[0])
    return isinstance(above, dict) and path[1] in above


def add_table(text: str, path: tuple[str, str], values: Mapping[str, Any]) -> str:
    """Returns ``text`` with ``[a.b]`` at its end. Raises ValueError if that would change another part."""
    lines = [f"[{'.'.join(path)}]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    blank = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    new = f"{text}{blank}" + "\n".join(lines) + "\n"
    expected = loads(text)
    expected.setdefault(path[0], {})[path[1]] = dict(values)
    return _checked(new, expected)


def remove_table(text: str, path: tuple[str, str]) -> str:
    """Returns ``text`` without ``[a.b]`` and its comment. Raises KeyError without one, ValueError if another part would
    change."""
    expected = loads(text)
    del expected[path[0]][path[1]]
    if not expected[path[0]]:
        del expected[path[0]]
    lines = text.splitlines(keepends=True)
    start = key_lines(text)[path] - 1
    end = next((i for i in range(start + 1, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
    while end > start + 1 and end < len(lines) and _is_aside(lines[end - 1]):
        end -= 1  # the comment above the next table belongs to that
    while start > 0 and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    head = "".join(lines[:start]).rstrip("\n")
    tail = "".join(lines[end:]).lstrip("\n")
    new = f"{head}\n\n{tail}" if head and tail else f"{head}\n" if head else tail
    return _checked(new, expected)


def _is_aside(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _checked(new: str, expected: dict[str, Any]) -> str:
    if loads(new) != expected:
        raise ValueError("the change would also alter another part of the file")
    return new


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + " }"
    # What JSON writes of strings, numbers and booleans is TOML too.
    return json.dumps(value, ensure_ascii=False)
