"""Adding a table to a TOML text, and taking one away, with everything else left as its author wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.base.text import toml_lines, toml_text


def has_table(text: str, path: tuple[str, str]) -> bool:
    """Whether ``text`` has ``[a.b]``, or ``a.b`` in another form."""
    above = toml_text.loads(text).get(path[0])
    return isinstance(above, dict) and path[1] in above


def add_table(text: str, path: tuple[str, str], values: Mapping[str, Any]) -> str:
    """Returns ``text`` with ``[a.b]`` at its end. Raises ValueError if that would change another part."""
    lines = [f"[{'.'.join(path)}]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    blank = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    new = f"{text}{blank}" + "\n".join(lines) + "\n"
    expected = toml_text.loads(text)
    expected.setdefault(path[0], {})[path[1]] = dict(values)
    return _checked(new, expected)


def remove_table(text: str, path: tuple[str, str]) -> str:
    """Returns ``text`` without ``[a.b]`` and its comment. Raises KeyError without one, ValueError if another part would
    change."""
    expected = toml_text.loads(text)
    del expected[path[0]][path[1]]
    if not expected[path[0]]:
        del expected[path[0]]
    lines = text.splitlines(keepends=True)
    start = toml_lines.key_lines(text)[path] - 1
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
    if toml_text.loads(new) != expected:
        raise ValueError("another part of the file would change")
    return new


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + " }"
    # What JSON writes of strings, numbers and booleans is TOML too.
    return json.dumps(value, ensure_ascii=False)
