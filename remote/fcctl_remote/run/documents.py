"""Documents: the structured results a step left in ``$FCCTL_OUT``, or that a reader makes of a file it left."""

from __future__ import annotations

import errno
import glob
import itertools
import json
import math
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import RunLayout

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
MAX_FILES_PER_COLLECT = 64

#: What each kind must hold, and of which type.
SHAPES: dict[str, tuple[str, type]] = {
    "environment": ("checks", list), "build": ("kernels", list), "correctness": ("summary", dict),
    "benchmark": ("benchmarks", list), "profile": ("kernels", list), "metrics": ("metrics", dict),
}  # fmt: skip


class Malformed(ValueError):
    """A file that claims to be a document and is none; the message names it."""


def load(path: str, shown: str) -> dict[str, Any] | None:
    """The document in ``path``; None if it is some other JSON file. Raises Malformed: no JSON, too large, or not of its
    kind's shape."""
    try:
        fd = files.open_plain(path)
    except files.NotPlain as error:
        reason = "a symbolic link" if error.errno == errno.ELOOP else "not a regular file"
        raise Malformed("%s is %s" % (shown, reason)) from None
    except OSError as error:
        raise Malformed("%s cannot be read: %s" % (shown, error.strerror)) from None
    with os.fdopen(fd, "rb") as stream:
        facts = os.fstat(fd)
        if facts.st_size > MAX_DOCUMENT_BYTES:
            raise Malformed("%s has %d MiB; a document may have at most 32" % (shown, facts.st_size // (1024 * 1024)))
        content = stream.read(MAX_DOCUMENT_BYTES)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Malformed("%s is not JSON: %s" % (shown, error)) from None
    if not isinstance(value, dict) or value.get("kind") not in wire.DOCUMENT_KINDS:
        return None
    check(value, shown)
    return value


def check(document: dict[str, Any], shown: str) -> None:
    """Raises: Malformed, when a document lacks what its kind must have."""
    version = document.setdefault("schema_version", wire.SCHEMA_VERSION)
    if version != wire.SCHEMA_VERSION:
        raise Malformed("%s has schema_version %r; this host program reads %d" % (shown, version, wire.SCHEMA_VERSION))
    shape = SHAPES.get(document["kind"])
    if shape is not None and not isinstance(document.get(shape[0]), shape[1]):
        what = "a list" if shape[1] is list else "an object"
        raise Malformed("%s: a %s document needs %r to be %s" % (shown, document["kind"], shape[0], what))
    if document["kind"] == "benchmark":
        for i, entry in enumerate(document["benchmarks"]):
            named = isinstance(entry, dict) and isinstance(entry.get("name"), str)
            if not (named and isinstance(entry.get("stats"), dict)):
                needs = "needs 'name' and 'stats', such as {\"n\": 3, \"p50\": 12.5}"
                raise Malformed("%s: benchmarks[%d] %s" % (shown, i, needs))


class Collector:
    """The documents of one step by path, and what was wrong with the others; ``env`` is the step's."""

    def __init__(self, run: RunLayout, step: wire.StepSpec, env: Mapping[str, str]) -> None:
        self.run, self.step, self.env = run, step, env
        self.out = run.step(step.id).out
        self.documents: list[tuple[wire.DocumentRef, dict[str, Any]]] = []
        self.faults: list[str] = []
        self.unavailable: list[str] = []
        self.hint: str | None = None
        self.nothing: str | None = None  # what an optional reader wants to find, if one found nothing

    def take_written(self) -> None:
        """Add the documents that the step itself wrote."""
        try:
            names = sorted(os.listdir(self.out))
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if not name.endswith(".json"):
                continue
            path = os.path.join(self.out, name)
            shown = self.run.relative(path).encode("utf-8", "backslashreplace").decode("utf-8")
            try:
                document = load(path, shown)
            except Malformed as fault:
                self.faults.append(str(fault))
                continue
            if document is not None:
                self.documents.append((wire.DocumentRef(document["kind"], shown), document))

    def read_files(self) -> None:
        """Add the documents that readers make of the files named by ``collect``. The files are collected too: those
        outside the folders that are go to the step's out folder."""
        for spec in self.step.collect:
            paths = self._matches(spec.file)
            if not paths and not spec.optional:
                self.faults.append("collect: no file matches %r" % spec.file)
                self.hint = self.hint or self._elsewhere(spec.file)
            for path in paths[:MAX_FILES_PER_COLLECT]:
                self._read(spec, path)
                self._keep(path)

    def add(self, document: dict[str, Any], stem: str) -> None:
        """Keep a document that was made of something else in the step's out folder, under a name not yet taken."""
        path = self._free_name(stem, ".json")
        files.write_atomic(path, files.to_json(document), durable=False)
        self.documents.append((wire.DocumentRef(document["kind"], self.run.relative(path)), document))

    def _keep(self, path: str) -> None:
        """A link where that is possible: an ncu report may be large, and the snapshot has it already."""
        real = os.path.realpath(path)
        if any(real.startswith(os.path.realpath(folder) + os.sep) for folder in (self.run.steps, self.run.artifacts)):
            return
        try:
            target = self._free_name(*os.path.splitext(os.path.basename(path)))
            try:
                os.link(real, target)
            except OSError:
                shutil.copyfile(real, target)
        except OSError as error:
            self.faults.append("%s cannot be kept: %s" % (os.path.basename(path), error.strerror))

    def _matches(self, pattern: str) -> list[str]:
        """Regular files below the run's folder only: a link out of it is not followed."""
        if pattern == "@log":
            return [log for log in (self.run.step(self.step.id).log,) if files.is_plain(log)]
        for name, folder in (("FCCTL_OUT", self.out), ("FCCTL_ARTIFACTS", self.run.artifacts)):
            pattern = pattern.replace("${%s}" % name, glob.escape(folder)).replace("$" + name, glob.escape(folder))
        folder = os.path.realpath(self.run.folder)
        matches = []
        for path in sorted(glob.glob(os.path.join(glob.escape(self.run.source), pattern), recursive=True)):
            real = os.path.realpath(path)
            if real.startswith(folder + os.sep) and stat.S_ISREG(os.stat(real).st_mode):
                matches.append(path)
        return matches

    def _elsewhere(self, pattern: str) -> str | None:
        """Where a file of that name is, if it is in one of the places that are looked in first."""
        name = glob.escape(os.path.basename(pattern))
        for shown in ("$FCCTL_OUT/", "$FCCTL_ARTIFACTS/", "", "build/"):
            if self._matches(shown + name):
                return "did you mean file: %s%s?" % (shown, os.path.basename(pattern))
        return None

    def _shown(self, path: str) -> str:
        """``path`` as a job would name it."""
        for name, folder in (("$FCCTL_OUT", self.out), ("$FCCTL_ARTIFACTS", self.run.artifacts)):
            if path.startswith(folder + os.sep):
                return name + path[len(folder) :]
        return os.path.relpath(path, self.run.source)

    def _read(self, spec: wire.CollectSpec, path: str) -> None:
        from fcctl_remote import readers

        shown = spec.file if spec.file == "@log" else self._shown(path)
        try:
            document = readers.read(spec.reader, path, self.env, shown)
            check(document, shown)
        except Malformed as fault:
            self.faults.append(str(fault))
        except readers.ReaderError as error:
            if error.empty and spec.optional:
                self.nothing = self.nothing or error.hint
                return
            self.hint = self.hint or error.hint
            (self.unavailable if error.unavailable else self.faults).append(error.message)
        else:
            self.add(document, spec.reader)

    def _free_name(self, stem: str, suffix: str) -> str:
        numbers = itertools.chain([""], map("-%d".__mod__, itertools.count(2)))
        paths = (os.path.join(self.out, stem + number + suffix) for number in numbers)
        return next(path for path in paths if not os.path.lexists(path))


def by_kind(documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Those of each kind as one."""
    merged: dict[str, Any] = {}
    for document in documents:
        kind = document["kind"]
        merged[kind] = merge(merged[kind], document) if kind in merged else document
    return merged


def merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two documents of one kind as gates see them: lists joined, objects merged, the later value elsewhere.

    Two correctness summaries are added up, and of two builds the worse total counts, so that nothing that failed hides
    behind a later document.
    """
    merged = dict(first)
    for key, value in second.items():
        present = merged.get(key)
        if isinstance(present, list) and isinstance(value, list):
            merged[key] = present + value
        elif key == "summary" and isinstance(present, dict) and isinstance(value, dict):
            merged[key] = _sum(first, second)
        elif key == "totals" and isinstance(present, dict) and isinstance(value, dict):
            merged[key] = {name: _worse(present.get(name), value.get(name)) for name in {**present, **value}}
        elif isinstance(present, dict) and isinstance(value, dict):
            merged[key] = {**present, **value}
        else:
            merged[key] = value and present if key == "complete" and key in merged else value
    return merged


def _worse(one: Any, other: Any) -> Any:
    """The larger of two numbers; null if one of them is unknown."""
    return max(one, other) if isinstance(one, (int, float)) and isinstance(other, (int, float)) else None


def _sum(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The summaries of two documents as one."""
    parts = first["summary"], second["summary"]
    total = {**parts[0], **parts[1]}
    for key in ("total", "passed", "failed", "skipped", "warnings", "errors"):
        if all(isinstance(part.get(key), int) for part in parts):
            total[key] = sum(part[key] for part in parts)
    cases = [case for document in (first, second) for case in _objects(document.get("cases"))]
    for key in ("max_err", "mean_err"):
        numbers = [part[key] for part in parts if isinstance(part.get(key), (int, float))]
        if any(case.get(key, 0) is None and (case.get("nan") or case.get("inf")) for case in cases):
            total[key] = None  # as the reader leaves it: no gate passes on the others
        elif numbers:
            total[key] = max(numbers, key=lambda number: (math.isnan(number), number))  # a NaN beats every number
    return total


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
