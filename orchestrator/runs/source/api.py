"""The workspace's source files, as an interface."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fcctl_remote import wire

_LARGE_BYTES = 50_000_000


@dataclass(frozen=True)
class Source:
    """The workspace's files as they are now: what git tracks, and what is untracked but not ignored."""

    root: Path
    entries: tuple[wire.TreeEntry, ...]
    tree_sha256: str
    git_commit: str | None
    dirty: bool
    skipped: tuple[str, ...] = ()  # paths left out (sockets, links that leave the workspace), each worth a warning

    @property
    def large(self) -> dict[str, str]:
        """Path -> what to say of it, for each file of 50 MB or more."""
        return {
            entry.path: f"{entry.path} has {entry.size / 1e6:.0f} MB; to leave it out, add it to .gitignore"
            for entry in self.entries
            if entry.size >= _LARGE_BYTES
        }


class SourceReader(Protocol):
    def read(self, root: Path) -> Source: ...
