"""The line of each key of a TOML document that :mod:`tomllib`, which gives no positions, has accepted."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', re.DOTALL),
    re.compile(r"'''.*?'{3,5}(?!')", re.DOTALL),
    re.compile(r'"(?:[^"\\]|\\.)*"'),
    re.compile(r"'[^']*'"),
)
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
        for pattern in _STRINGS:
            found = pattern.match(self.text, self.at)
            if found:
                self.at = found.end()
                return found.group()
        raise ValueError(f"line {self._line(self.at)}: not TOML")

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
