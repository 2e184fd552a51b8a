"""Reads YAML with the line of every key and value. Tags, merge keys and duplicate keys are errors; aliases are bounded.
Plain scalars follow YAML 1.2's core rules: ``on``, ``no`` and ``1:30`` are text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]

MAX_BYTES = 1024 * 1024
MAX_NODES = 50_000
MAX_DEPTH = 32
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
#: ``gates: [benchmark.benchmarks[0].stats.p50 < 50]``, which YAML takes for lists within a list.
_FLOW_GATES = re.compile(r"\s*(-\s+)?(\w+:.*)?\bgates:\s*\[.*\w\[")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(ValueError):
    """The document cannot be read; ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass
class Document:
    """``data`` in plain Python values; ``lines`` gives each path's line; ``raw`` each scalar as it was written."""

    data: Any
    lines: dict[Path, int] = field(default_factory=dict)
    raw: dict[Path, str] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """The line of ``path``, or of the nearest thing around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1


def read(text: str) -> Document:
    """Parses one YAML document. Raises YamlError if it is none, or uses what job files do not."""
    if len(text) > MAX_BYTES:
        raise YamlError(1, f"the file is larger than {MAX_BYTES // 1024} KiB")
    try:
        return _Builder(iter(yaml.parse(text, Loader=_LOADER))).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(mark.line + 1 if mark else 1, _explain(error, text, mark)) from None
    except yaml.YAMLError as error:  # a control character: the reader knows no line
        raise YamlError(1, str(error).splitlines()[0]) from None


def _explain(error: yaml.MarkedYAMLError, text: str, mark: Any) -> str:
    message = str(error.problem or error.context or "invalid YAML")
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "tab in the indentation: YAML allows only spaces"
    if _FLOW_GATES.match(line):
        return (
            "an expression with [ ] in a one-line list: put quotes around it, or write each gate on its own line"
            " after '- '"
        )
    if "cannot start any token" in message and mark.column < len(line):
        return f'text cannot begin with {line[mark.column]!r}: put quotes around it, as in file: "@log"'
    if "mapping values are not allowed" in message:
        return "unexpected colon: put quotes around text that has a colon (or use `run: |`), or check the indentation"
    if "did not find expected" in message:
        return f"{message}: compare the indentation of this line with that of the lines above it"
    return message


class _Builder:
    def __init__(self, events: Iterator[Any]) -> None:
        self.events = events
        self.result = Document(None)
        self.anchors: dict[str, tuple[list[Any], bool]] = {}  # name -> its events, whether they are all there
        self.recording: list[list[Any]] = []
        self.nodes = 0

    def document(self) -> Document:
        next(self.events)  # the stream starts
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return self.result
        self.result.data = self._node(self._next(), (), 0)
        next(self.events)  # the document ends
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise YamlError(_line(event), "second document ('---'): a job file has only one")
        return self.result

    def _next(self) -> Any:
        event = next(self.events)
        for record in self.recording:
            record.append(event)
        return event

    def _node(self, event: Any, path: Path, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise YamlError(_line(event), f"more than {MAX_NODES} values after aliases are expanded")
        if depth > MAX_DEPTH:
            raise YamlError(_line(event), f"nested deeper than {MAX_DEPTH} levels")
        self.result.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path, depth)
        if event.tag is not None:
            raise YamlError(_line(event), f"tags such as {_shown(event.tag)} are not allowed")
        if event.anchor is not None:
            return self._anchored(event, path, depth)
        return self._content(event, path, depth)

    def _content(self, event: Any, path: Path, depth: int) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            if "\0" in event.value:  # no environment, script or path can carry it
                raise YamlError(_line(event), "a null character is not allowed in text")
            self.result.raw[path] = event.value
            return _scalar(event.value) if event.implicit[0] else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path, depth)
        return self._mapping(path, depth)

    def _anchored(self, event: Any, path: Path, depth: int) -> Any:
        name, event.anchor = event.anchor, None
        record = [event]
        self.anchors[name] = (record, False)
        self.recording.append(record)
        value = self._content(event, path, depth)
        self.recording.remove(record)
        self.anchors[name] = (record, True)
        return value

    def _alias(self, event: Any, path: Path, depth: int) -> Any:
        record, complete = self.anchors.get(event.anchor, ([], False))
        if not complete:
            reason = "contains itself" if record else "is not defined above"
            raise YamlError(_line(event), f"alias *{event.anchor} {reason}")
        outer, self.events = self.events, iter(record)
        outer_recording, self.recording = self.recording, []
        value = self._node(self._next(), path, depth)
        self.events, self.recording = outer, outer_recording
        return value

    def _sequence(self, path: Path, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items)), depth + 1))
        return items

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        seen: dict[str, int] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise YamlError(_line(event), "a key must be plain text")
            key = event.value
            if key == "<<" and event.implicit[0]:
                raise YamlError(_line(event), "merge keys ('<<') are not allowed")
            if key in seen:
                raise YamlError(_line(event), f"duplicate key '{_shown(key)}', first used on line {seen[key]}")
            seen[key] = self.result.lines[(*path, key)] = _line(event)
            items[key] = self._node(self._next(), (*path, key), depth + 1)
        return items


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _shown(text: str) -> str:
    return text if text.isprintable() and len(text) <= 80 else repr(text[:80])


def _scalar(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text) and len(text) <= 18:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
