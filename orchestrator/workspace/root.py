"""Finds the workspace, the nearest parent folder with a fcctl.toml that no run left there; adds tables to that file, or
removes them, and keeps the rest of its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.base import run_id as run_ids
from orchestrator.base import toml
from orchestrator.base.errors import ConfigError, ConflictError, NotFoundError
from orchestrator.base.files import alone_in, disk_errors, read_bounded, write_atomic
from orchestrator.base.safe_paths import spelled

FILE_NAME = "fcctl.toml"
#: Folders in ``runs/`` of incomplete or deleted runs.
_UNFINISHED = re.compile(r".+\.partial|\.import-.+|\.pruned-.+")


def find_root(start: Path) -> Path:
    """The nearest folder from ``start`` upward that holds fcctl.toml, which no run left there. Raises NotFoundError:
    there is none; ConfigError: a folder of that name is in ``start``."""
    start = spelled(start.absolute())
    if not start.is_dir():
        raise NotFoundError(f"{start} is not a folder", hint="correct -C DIR or FCCTL_WORKSPACE")
    if (root := next(roots(start), None)) is not None:
        return root
    if (start / FILE_NAME).is_dir():
        raise ConfigError(
            f"{start / FILE_NAME} is a folder",
            cause="a workspace's settings are a file of this name",
            hint=f"give the folder another name: mv {start / FILE_NAME} {start / FILE_NAME}.old; then: fcctl init",
        )
    of_a_run = any((folder / FILE_NAME).is_file() for folder in (start, *start.parents))
    raise NotFoundError(
        f"no {FILE_NAME} in {start} or above it",
        cause="the only fcctl.toml found is a file of a run; files of runs are not a workspace" if of_a_run else None,
        hint="fcctl init (makes this folder a workspace); or name a workspace with -C DIR",
    )


def roots(start: Path) -> Iterator[Path]:
    """The folders from ``start``, an absolute path, upward that may be a workspace's."""
    for folder in (start, *start.parents):
        real = folder.resolve()
        # A run left what is in a run's folder, or below the results of a workspace around it.
        if (folder / FILE_NAME).is_file() and not any(_is_run(p) or _holds(p, real) for p in (real, *real.parents)):
            yield folder


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
        results = toml.loads(read_bounded(root / FILE_NAME))["project"]["results"]
    with suppress(OSError, ValueError, RuntimeError):  # "~NAME" of no user; a link to itself: no folder of results
        return folder.is_relative_to(spelled((root / Path(str(results)).expanduser()).resolve()))
    return False


def add_table(file: Path, path: tuple[str, str], values: Mapping[str, Any]) -> None:
    """Append ``[a.b]``. Raises ConflictError: it is there already, by another process since the configuration was read;
    ConfigError: the file is written in a way that leaves no place for it."""

    def add(text: str) -> str:
        if toml.has_table(text, path):
            hint = f"choose another name than '{path[1]}'"
            raise ConflictError(f"{file.name} already has [{'.'.join(path)}]", hint=hint)
        return toml.add_table(text, path, values)

    _edit(file, path, add)


def remove_table(file: Path, path: tuple[str, str]) -> None:
    """Take ``[a.b]`` out. Raises NotFoundError: it is not in this file; ConfigError: it cannot be cut out without
    touching something else."""
    try:
        _edit(file, path, lambda text: toml.remove_table(text, path))
    except KeyError:
        hint = "to find the file: fcctl config show --origin; edit that file by hand"
        raise NotFoundError(f"{file.name} has no [{'.'.join(path)}]", hint=hint) from None


def _edit(file: Path, path: tuple[str, str], change: Callable[[str], str]) -> None:
    real = file.resolve()  # a link stays a link
    with disk_errors(f"change {file.name}", file.parent), alone_in(real.parent):
        text = real.read_text(encoding="utf-8")
        try:
            new = change(text)
        except ValueError as e:
            raise ConfigError(
                f"fcctl cannot change [{'.'.join(path)}] in {file.name}",
                cause=str(e),
                hint=f"nothing was changed; edit {file} by hand",
            ) from None
        write_atomic(real.parent, real.name, new.encode())
