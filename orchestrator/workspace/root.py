"""Finds the workspace: the nearest parent folder with a fcctl.toml that no run left there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.base import run_id as run_ids
from orchestrator.base import toml
from orchestrator.base.errors import NotFoundError

FILE_NAME = "fcctl.toml"
#: Folders in ``runs/`` of incomplete or deleted runs.
_UNFINISHED = re.compile(r".+\.partial|\.import-.+|\.pruned-.+")


def find_root(start: Path) -> Path:
    """The nearest folder from ``start`` upward that holds fcctl.toml, which no run left there. Raises NotFoundError:
    there is none."""
    start = start.absolute()
    if not start.is_dir():
        raise NotFoundError(f"{start} is not a folder")
    if (root := next(roots(start), None)) is not None:
        return root
    of_a_run = any((folder / FILE_NAME).is_file() for folder in (start, *start.parents))
    raise NotFoundError(
        f"no {FILE_NAME} in {start} or above it",
        cause="the only fcctl.toml found is a file of a run; files of runs are not a workspace" if of_a_run else None,
        hint="fcctl init (makes this folder a workspace); or name a workspace with -C DIR",
    )


def roots(start: Path) -> Iterator[Path]:
    """The folders from ``start``, an absolute path, upward that may be a workspace's."""
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file() and not _is_result(folder.resolve()):
            yield folder


def _is_result(folder: Path) -> bool:
    """Whether a run left it: it is in a run's folder, or below the results of a workspace around it."""
    return any(_is_run(above) or _holds(above, folder) for above in (folder, *folder.parents))


def _is_run(folder: Path) -> bool:
    if folder.parent.name != "runs":
        return False
    complete = run_ids.is_valid(folder.name) and (folder / "run.json").is_file()
    return complete or _UNFINISHED.fullmatch(folder.name) is not None


def _holds(root: Path, folder: Path) -> bool:
    """Whether ``folder`` is below the results of the workspace ``root``, if that is one."""
    if root == folder or not (root / FILE_NAME).is_file():
        return False
    results: object = "results"
    with suppress(OSError, ValueError, LookupError, TypeError):  # no such setting, or unreadable
        results = toml.loads((root / FILE_NAME).read_text(encoding="utf-8-sig"))["project"]["results"]
    return folder.is_relative_to((root / Path(str(results)).expanduser()).resolve())
