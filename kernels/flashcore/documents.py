"""Where results go: one JSON file per document, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flashcore.errors import UsageError

SCHEMA_VERSION = 1


def folder(out: str | None) -> Path:
    """The folder for documents, made if need be: ``out``, else the job step's ``$FCCTL_OUT``, else ``build/flashcore``.

    Raises:
        UsageError: it is a file, lies in one, or cannot be made or written into.
    """
    path = Path(out or os.environ.get("FCCTL_OUT") or "build/flashcore")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise _no_folder(path, "a file with this name exists" if path.is_file() else e.strerror) from e
    if not os.access(path, os.W_OK | os.X_OK):
        raise _no_folder(path, "this user may not write to it")
    return path


def _no_folder(path: Path, cause: str) -> UsageError:
    hint = "choose another folder: --out DIR (fcctl creates it)"
    return UsageError(f"documents cannot be written to {path}", cause=cause, hint=hint)


def write_text(path: Path, text: str) -> Path:
    """Replace ``path`` in one step, so that a reader never sees half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="." + path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    return path


def write_json(path: Path, value: Any) -> Path:
    return write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def document(kind: str, **content: Any) -> dict[str, Any]:
    """A document of one of fcctl's kinds: build, correctness, benchmark, profile."""
    return {"kind": kind, "schema_version": SCHEMA_VERSION, **content}


def export(document: Mapping[str, Any], shapes: Iterable[str]) -> dict[str, Any]:
    """``bench_export.json``: .results.<shape>.{flashcore,pytorch}.p50, .config, .speedup, as jq scripts read it.

    ``speedup`` is PyTorch's p50 over the kernel's on the mission shape (on the only shape, if another was timed).
    """
    rows = {row["name"]: row for row in document["benchmarks"]}
    results = {}
    mode = document["benchmarks"][0]["mode"]  # named, where it is not the one that counts first
    for name in shapes:
        pytorch = next((r for n, r in rows.items() if n.startswith(f"{name}/sdpa")), None)
        own = rows.get(name) or rows[f"{name}/{mode}"]
        results[name] = {"flashcore": own["stats"], **({"pytorch": pytorch["stats"]} if pytorch else {})}
    headline = "mission" if "mission" in results else next(iter(results))
    ours, theirs = results[headline]["flashcore"], results[headline].get("pytorch")
    return {
        "variant": document["variant"],
        "device": document["device"],
        "unit": "us",
        "mode": mode,
        "config": document["config"],
        "results": results,
        "speedup": round(theirs["p50"] / ours["p50"], 4) if theirs else None,
    }
