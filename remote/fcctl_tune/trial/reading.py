"""The documents in the files that a trial's command wrote."""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, Iterator, List, Mapping, Sequence

from fcctl_remote import readers
from fcctl_remote.run import documents
from fcctl_tune.errors import Failed
from fcctl_tune.search.spec import Stage

#: The variables of a configuration's folder, and the file there with its build's result.
OUT = "TUNE_OUT", "FCCTL_OUT"
BUILT = "built.json"
MAX_DOCUMENTS = 64


def is_own(pattern: str) -> bool:
    """Whether a file belongs to one trial: the log, or a relative path outside hidden folders."""
    return not os.path.isabs(pattern) and not any(part.startswith(".") for part in pattern.split("/")[:-1])


def gathered(stage: Stage, env: Mapping[str, str], directory: str, log: str) -> Dict[str, Any]:
    """Documents by kind: those of readers, and those that the command wrote into its folder. Raises Failed: a file is
    missing, or its reader cannot read it."""
    collected: List[Dict[str, Any]] = []
    for path in _json_files(env["TUNE_OUT"])[:MAX_DOCUMENTS]:
        try:
            document = documents.load(path, os.path.basename(path))
        except documents.Malformed:
            continue  # another tool's file
        collected += [document] if document is not None else []
    for spec in stage.collect:
        paths = matching(spec.file, env, directory, log)[:MAX_DOCUMENTS]
        collected += [read_document(spec.reader, path, env) for path in paths]
    return documents.by_kind(collected)


def matching(pattern: str, env: Mapping[str, str], directory: str, log: str) -> List[str]:
    """Raises: Failed, if there is none."""
    paths = [log] if pattern == "@log" else present(pattern, env, directory)
    if not paths:
        raise Failed("bench_failed", "no file matches %s" % pattern)
    return paths


def present(pattern: str, env: Mapping[str, str], directory: str) -> List[str]:
    """The files of a spec's pattern for a command in the folder ``directory``; none for a log."""
    if pattern == "@log":
        return []
    for name in OUT:
        pattern = pattern.replace("${%s}" % name, glob.escape(env[name])).replace("$" + name, glob.escape(env[name]))
    return [
        p for p in sorted(glob.glob(os.path.join(glob.escape(directory), pattern), recursive=True)) if os.path.isfile(p)
    ]


def read_document(reader: str, path: str, env: Mapping[str, str]) -> Dict[str, Any]:
    """Raises: Failed."""
    name = os.path.basename(path)  # without the trial's folder: equal failures have equal texts
    try:
        document = readers.read(reader, path, env, name)
        documents.check(document, name)
    except (readers.ReaderError, documents.Malformed) as error:
        raise Failed("bench_failed", str(error)) from None
    return document


def forget(patterns: Sequence[str], env: Mapping[str, str], directory: str) -> None:
    """Remove files of earlier commands that this command's readers would read. Raises: Failed."""
    try:
        for path in set(_stale(patterns, env, directory)):
            os.unlink(path)
    except OSError as error:
        raise Failed("wrong", "the files of its folder cannot be read: %s" % error) from None


def _stale(patterns: Sequence[str], env: Mapping[str, str], directory: str) -> Iterator[str]:
    out = env["TUNE_OUT"]
    built_ns = os.stat(os.path.join(out, BUILT)).st_mtime_ns
    for path in [*_json_files(out), *(path for pattern in patterns for path in present(pattern, env, directory))]:
        if path.startswith(directory + os.sep) or (
            path.startswith(out + os.sep) and os.stat(path).st_mtime_ns > built_ns
        ):
            yield path


def _json_files(folder: str) -> List[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), "*.json")))
