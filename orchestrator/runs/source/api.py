"""The workspace's source files, as an interface."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fcctl_remote import wire


@dataclass(frozen=True)
class Source:
    """The workspace's files as they are now: what git tracks, and what is untracked but not ignored."""

    root: Path
    entries: tuple[wire.TreeEntry, ...]
    tree_sha256: str
    git_commit: str | None
    dirty: bool
    skipped: tuple[str, ...] = ()  # paths left out (sockets, links that leave the workspace), each worth a warning


class SourceReader(Protocol):
    def read(self, root: Path) -> Source: ...
