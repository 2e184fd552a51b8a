"""The names a user has given to machines in ~/.ssh/config."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_HOST = re.compile(r"^\s*(host|include)[\s=]+(.+?)\s*$", re.IGNORECASE)
_DEPTH = 8  # of Include, against one that includes itself


def aliases(config: Path | None = None) -> list[str]:
    """Every plain name of a ``Host`` line, in the file's order; patterns with ``*``, ``?`` or ``!`` name no machine.

    A file that cannot be read has no names.
    """
    config = config or Path.home() / ".ssh" / "config"
    return list(dict.fromkeys(_names(config, _DEPTH)))


def _names(file: Path, depth: int) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        match = _HOST.match(line)
        if match is None:
            continue
        words = match[2].replace('"', "").split()
        if match[1].lower() == "host":
            yield from (word for word in words if not set(word) & set("*?!"))
        elif depth:
            for word in words:
                for included in _included(word):
                    yield from _names(included, depth - 1)


def _included(word: str) -> list[Path]:
    """As OpenSSH has it: a relative name is below ~/.ssh, and wildcards are allowed."""
    path = Path(word).expanduser()
    base = Path("/") if path.is_absolute() else Path.home() / ".ssh"
    return sorted(base.glob(str(path).lstrip("/")))
