"""Adds or removes a table of fcctl.toml and keeps the rest of the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.base import toml
from orchestrator.base.errors import ConfigError, ConflictError, NotFoundError
from orchestrator.base.files import alone_in, disk_errors, write_atomic


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
