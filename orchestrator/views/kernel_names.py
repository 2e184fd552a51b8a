"""Names of compiled kernels, short and still told apart."""

from __future__ import annotations

from collections.abc import Sequence

from fcctl_remote.base.text import kernel_name
from orchestrator.base.sanitize import clean

_OPEN, _CLOSE = "<([{", ">)]}"


def apart(names: Sequence[str], width: int) -> list[str]:
    """Each in at most ``width`` characters. Of one template's kernels only the arguments that differ are kept."""
    names = [kernel_name(clean(name, 1000)) for name in names]
    groups: dict[str, set[str]] = {}
    for name in names:
        groups.setdefault(name.partition("<")[0], set()).add(name)
    short = {}
    for base, members in groups.items():
        arguments = {name: _arguments(name) for name in members}
        counts = {len(found) for found in arguments.values()}
        rows = list(arguments.values())
        differ = [i for i in range(min(counts)) if len({row[i] for row in rows}) > 1] if len(counts) == 1 else None
        for name, found in arguments.items():
            kept = found if differ is None else [found[i] for i in differ]
            left_out = "" if differ is None or len(differ) == len(found) else "..., "
            short[name] = f"{base}<{left_out}{', '.join(kept)}>" if len(members) > 1 and kept else name
    return [_cut(short[name], width) for name in names]


def _arguments(name: str) -> list[str]:
    """The template's arguments, and whatever follows them as one more: ``64``, ``true``, ``(Params)``."""
    _, _, rest = name.partition("<")
    found: list[str] = []
    depth, word = 0, ""
    for i, char in enumerate(rest):
        if char == ">" and depth == 0:
            return [*found, word.strip(), *filter(None, [rest[i + 1 :].strip()])]
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == "," and depth == 0:
            found, word = [*found, word.strip()], ""
        else:
            word += char
    return [*found, word.strip()]


def _cut(name: str, width: int) -> str:
    """The end is kept, too: that is where names differ."""
    if len(name) <= width:
        return name
    end = width * 2 // 3
    return f"{name[: width - end - 3]}...{name[-end:]}"
