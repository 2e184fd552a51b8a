"""The files of a folder that ``fcctl init`` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MAX_SOURCES = 20
_MAX_READ = 1024 * 1024
_NOT_SOURCES = {"build", "dist", "results", "node_modules", "third_party", "third-party", "venv"}


def files_below(folder: Path) -> Iterator[Path]:
    """The files of up to four folders' depth, in order of their names; hidden and built folders, and names that cannot
    be printed, are left out."""
    for place, folders, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        deeper = folders if depth < 4 else ()
        folders[:] = sorted(f for f in deeper if f[0] != "." and f not in _NOT_SOURCES and f.isprintable())
        yield from (Path(place, name) for name in sorted(files) if name.isprintable())


def read_text(path: Path) -> str:
    """The first MiB; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_READ).decode(errors="replace")
    except (OSError, ValueError):  # a name with a null character
        return ""
