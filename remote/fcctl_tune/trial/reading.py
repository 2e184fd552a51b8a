"""What a command of a trial left: files that its spec names, read as documents."""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, Iterator, List, Mapping, Sequence

from fcctl_remote import readers
from fcctl_remote.base import files
from fcctl_remote.run import documents
from fcctl_tune.errors import Failed
from fcctl_tune.search.spec import Stage

#: What names a configuration's folder to its commands, and in it: what came of its build.
OUT = "TUNE_OUT", "FCCTL_OUT"
BUILT = "built.json"
MAX_DOCUMENTS = 64


def is_own(pattern: str) -> bool:
    """Whether files that a spec names are of one trial: the log of its command, in its folder, or where it runs, but
    not in hidden folders there."""
    return not os.path.isabs(pattern) and not any(part.startswith(".") for part in pattern.split("/")[:-1])


def gathered(stage: Stage, env: Mapping[str, str], directory: str, log: str) -> Dict[str, Any]:
    """Documents by kind: those that readers make of the files named, and those the command wrote into its folder.

    Raises:
        Failed: a file is missing, or not what its reader reads.
    """
    documents_left: List[Dict[str, Any]] = []
    for path in _json_files(env["TUNE_OUT"])[:MAX_DOCUMENTS]:
        try:
            document = documents.load(path, os.path.basename(path))
        except documents.Malformed:
            continue  # some tool's own file
        documents_left += [document] if document is not None else []
    for spec in stage.collect:
        paths = matching(spec.file, env, directory, log)[:MAX_DOCUMENTS]
        documents_left += [read_document(spec.reader, path, env) for path in paths]
    by_kind: Dict[str, Any] = {}
    for document in documents_left:
        kind = document["kind"]
        by_kind[kind] = documents.merge(by_kind[kind], document) if kind in by_kind else document
    return by_kind


def matching(pattern: str, env: Mapping[str, str], directory: str, log: str) -> List[str]:
    """Raises: Failed, if there is none."""
    paths = [log] if pattern == "@log" else present(pattern, env, directory)
    if not paths:
        raise Failed("bench_failed", "no file matches %s" % pattern)
    return paths


def present(pattern: str, env: Mapping[str, str], directory: str) -> List[str]:
    """The files that a pattern of a spec means to a command that runs in the folder ``directory``; none for a log."""
    if pattern == "@log":
        return []
    for name in OUT:
        pattern = pattern.replace("${%s}" % name, glob.escape(env[name])).replace("$" + name, glob.escape(env[name]))
    return [
        p for p in sorted(glob.glob(os.path.join(glob.escape(directory), pattern), recursive=True)) if os.path.isfile(p)
    ]


def read_document(reader: str, path: str, env: Mapping[str, str]) -> Dict[str, Any]:
    """Raises: Failed."""
    try:
        document = readers.read(reader, path, env)
        documents.check(document, os.path.basename(path))
    except (readers.ReaderError, documents.Malformed) as error:
        name = os.path.basename(path)  # its folder is the trial's own: what failed alike is told in the same words
        problem = str(error).replace(path, name)
        raise Failed("bench_failed", problem if problem.startswith(name) else "%s: %s" % (name, problem)) from None
    return document


def flags(path: str) -> List[str]:
    """What is true or false in a file of metrics, by the names that the reader gives it: 1 and 0 to a gate, and no
    figure of a bench."""
    value = files.read_object(path) or {}
    if isinstance(value.get("metrics"), dict) and value.get("kind") == "metrics":
        value = value["metrics"]
    pending = list(value.items())
    names = []
    while pending:
        name, item = pending.pop()
        if isinstance(item, bool):
            names.append(name)
        inner = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        pending += [("%s.%s" % (name, key), one) for key, one in inner]
    return names


def forget(patterns: Sequence[str], env: Mapping[str, str], directory: str) -> None:
    """Remove what commands before have left of that which is read of the next: it might not write it again.

    Raises:
        Failed: it cannot be looked at.
    """
    try:
        for path in set(_stale(patterns, env, directory)):
            os.unlink(path)
    except OSError as error:
        raise Failed("wrong", "what was left in its folder cannot be looked at: %s" % error) from None


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
