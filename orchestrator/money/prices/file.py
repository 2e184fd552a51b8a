"""The price list that the user fetched, ``prices.json`` in the state folder: it counts instead of this version's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.files import user_folder

if TYPE_CHECKING:
    from orchestrator.money.prices.table import PriceTable

NAME = "prices.json"
_MAX_BYTES = 1024 * 1024


def folder() -> Path:
    """The user's own state folder, ``~/.local/state/fcctl`` or its like."""
    return user_folder("state")


def read(own: Callable[[], PriceTable]) -> PriceTable | None:
    """None if there is none, if it cannot be read, or if this version's own list, which ``own`` returns, is newer."""
    path = folder() / NAME
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    from orchestrator.money.prices.table import from_json

    older = own()
    try:
        table = from_json(text, older)
    except ValueError:
        return None
    return table if table.date > older.date else None


def write(table: PriceTable) -> Path:
    """Stores the list for later commands. Raises FcctlError if the folder cannot be written."""
    from orchestrator.base.files import disk_errors, make_folders, write_atomic
    from orchestrator.money.prices.table import to_json

    where = folder()
    with disk_errors("store the price list", where):
        make_folders(where, 0o700)
        write_atomic(where, NAME, to_json(table).encode())
    return where / NAME
