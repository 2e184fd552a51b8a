"""The names of jobs, targets and runs while a person types.

They are read straight from the files: nothing is validated, and neither pydantic nor the verbs' machinery is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.context import Cli

_MAX_RUNS = 200
_RUN_ID = re.compile(r"\d{8}t\d{6}z-[a-z0-9-]{1,50}")


def names_for(param: click.Parameter) -> Callable[[], Iterable[str]] | None:
    """What completes a parameter of this name, if it is one of ours."""
    if isinstance(param.type, click.Choice):
        return None
    if isinstance(param, click.Option):
        if "--compare" in param.opts or "--adopt" in param.opts:
            return run_names
        return target_names if "--on" in param.opts else None
    if param.name in ("job", "names"):
        return job_names
    if param.name == "search":
        return search_names
    if param.name in ("run", "runs", "run_id", "run_ids", "old", "new"):
        return run_names
    return None


def complete_with(names: Callable[[], Iterable[str]]) -> Any:
    """A click completer that offers what starts as typed, or contains it if nothing does."""

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
        known = list(names())
        return [n for n in known if n.startswith(typed)] or [n for n in known if typed in n]

    return complete


def job_names() -> list[str]:
    from orchestrator.runs.job.built_in import BUILT_IN

    root, data = _workspace()
    folder = root / str(_table(data, "project").get("jobs", "jobs"))
    return sorted({path.stem for path in folder.glob("*.yaml")} | set(BUILT_IN)) if root.parts else []


def search_names() -> list[str]:
    """Files of searches; what variants they name is for those who read them."""
    root, _ = _workspace()
    return sorted(path.stem for path in (root / "tune").glob("*.yaml")) if root.parts else []


def target_names() -> list[str]:
    _, data = _workspace()
    return sorted({"local", "sandbox", *_table(data, "targets")})


def run_names() -> list[str]:
    """Tags, then the newest runs first, those that go on included."""
    root, data = _workspace()
    results = root / str(_table(data, "project").get("results", "results"))
    found: set[str] = set()
    for folder in (results / "runs", results / "active"):
        if folder.is_dir():
            found.update(path.name for path in folder.iterdir() if _RUN_ID.fullmatch(path.name))
    return ["last", *_tags(results), *sorted(found, reverse=True)[:_MAX_RUNS]]


def _tags(results: Path) -> list[str]:
    from orchestrator.base.text import toml_text

    try:
        return sorted(_table(toml_text.loads((results / "tags.toml").read_text()), "tags"))
    except (OSError, ValueError):
        return []


def _workspace() -> tuple[Path, dict[str, Any]]:
    """The nearest fcctl.toml's folder and content; an empty path and nothing if there is none."""
    from orchestrator.base.text import toml_text
    from orchestrator.workspace.root import FILE_NAME, roots

    for folder in roots(Cli().start.absolute()):
        try:
            return folder, toml_text.loads((folder / FILE_NAME).read_text(encoding="utf-8-sig"))
        except (OSError, ValueError):
            continue
    return Path(), {}


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}
