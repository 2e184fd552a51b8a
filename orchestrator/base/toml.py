"""TOML with limits on size and depth, the line of each key, and tables added to or removed from a text."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
_STRINGS = (r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', r"'''.*?'{3,5}(?!')", r'"(?:[^"\\\n]|\\.)*"', r"'[^'\n]*'")
_TOKEN = re.compile("|".join([*_STRINGS, r"#[^\n]*|[][{}.,=\n]"]), re.DOTALL)
_LONG_NUMBER = re.compile(r"[0-9_]{640,}")
_NULL = re.compile(r"(?<!\\)(?:\\\\)*\\(?:u0{4}|U0{8})")
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
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _WHERE.search(str(error))
        line = int((found and found[1]) or len(text.splitlines()) or 1)
        message = _WHERE.sub("", str(error))
        quotes = ': text needs quotes, as in "text"' if message == "Invalid value" else ""
        raise TomlError(line, message + quotes) from None
    except ValueError:  # Python's limit of digits
        number = _LONG_NUMBER.search(text)
        raise TomlError(text.count("\n", 0, number.start() if number else 0) + 1, "a number is too long") from None
    if _has_null(tables):  # no environment, script or path can carry it
        found = _NULL.search(text)
        line = text.count("\n", 0, found.start() if found else 0) + 1
        raise TomlError(line, "a null character is not allowed in text")
    return tables


def _has_null(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_null(key) or _has_null(one) for key, one in value.items())
    if isinstance(value, list):
        return any(map(_has_null, value))
    return isinstance(value, str) and "\0" in value


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


def key_lines(document: str) -> dict[Path, int]:
    """The line (from 1) on which the statement of every table, key and array element begins, in a valid TOML
    ``document``."""
    lines: dict[Path, int] = {}
    table: Path = ()
    newest: dict[Path, int] = {}  # the last element of each [[table]]
    for line, statement in _statements(document):
        parsed = tomllib.loads(statement)
        if statement.startswith("["):
            table = _header(parsed, newest)
            paths = [table]
        else:
            paths = [(*table, *path) for path in _paths(parsed)]
        for path in paths:
            for length in range(1, len(path) + 1):
                lines.setdefault(path[:length], line)
    return lines


def _statements(document: str) -> Iterator[tuple[int, str]]:
    """Each table header and each pair of a key and its value, with its line; both may have a comment at the end."""
    start, depth = 0, 0
    for token in _TOKEN.finditer(document + "\n"):
        if token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
        elif token[0] == "\n" and not depth:
            statement = document[start : token.start()].strip()
            if statement and not statement.startswith("#"):
                yield document.count("\n", 0, start) + 1, statement
            start = token.end()


def _header(parsed: Any, newest: dict[Path, int]) -> Path:
    """The path of ``[a.b]``, within the newest element of each ``[[a]]``; of ``[[a]]`` that of its next element."""
    path: Path = ()
    while isinstance(parsed, dict) and parsed:
        ((key, parsed),) = parsed.items()
        path = (*path, key)
        if isinstance(parsed, list):
            newest[path] = newest.get(path, -1) + 1
        if path in newest:
            path = (*path, newest[path])
    return path


def _paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """The paths of all values in ``value``."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*above, key)
        yield from _paths(inner, (*above, key))


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
    while end > start + 1 and end < len(lines) and lines[end - 1].strip()[:1] in ("", "#"):
        end -= 1  # the comment above the next table belongs to that
    while start > 0 and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    head = "".join(lines[:start]).rstrip("\n")
    tail = "".join(lines[end:]).lstrip("\n")
    new = f"{head}\n\n{tail}" if head and tail else f"{head}\n" if head else tail
    return _checked(new, expected)


def _checked(new: str, expected: dict[str, Any]) -> str:
    if loads(new) != expected:
        raise ValueError("the change would also alter another part of the file")
    return new


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + " }"
    # What JSON writes of strings, numbers and booleans is TOML too.
    return json.dumps(value, ensure_ascii=False)
