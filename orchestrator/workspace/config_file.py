"""Changing fcctl.toml: one table more or less, everything else as its author wrote it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.base.errors import ConfigError, NotFoundError
from orchestrator.base.files import disk_errors, write_atomic
from orchestrator.base.text import toml_sections


def add_table(file: Path, path: tuple[str, str], values: Mapping[str, Any]) -> None:
    """Append ``[a.b]``.

    Raises:
        ConfigError: the file is written in a way that leaves no place for it.
    """
    _edit(file, path, lambda text: toml_sections.add_table(text, path, values))


def remove_table(file: Path, path: tuple[str, str]) -> None:
    """Take ``[a.b]`` out.

    Raises:
        NotFoundError: it is not in this file.
        ConfigError: it cannot be cut out without touching something else.
    """
    try:
        _edit(file, path, lambda text: toml_sections.remove_table(text, path))
    except KeyError:
        hint = "fcctl config show --origin tells which file has it; edit that one by hand"
        raise NotFoundError(f"{file.name} has no [{'.'.join(path)}]", hint=hint) from None


def _edit(file: Path, path: tuple[str, str], change: Callable[[str], str]) -> None:
    with disk_errors(f"change {file.name}", file.parent):
        real = file.resolve()  # a link stays a link
        text = real.read_text(encoding="utf-8")
        try:
            new = change(text)
        except ValueError as e:
            raise ConfigError(
                f"[{'.'.join(path)}] of {file.name} cannot be changed automatically",
                cause=str(e),
                hint=f"edit {file} by hand; nothing was changed",
            ) from None
        write_atomic(real.parent, real.name, new.encode())
