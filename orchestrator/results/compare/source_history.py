"""What changed in the source between two commits, as an interface."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class SourceChanges:
    """What lies between two commits: (sha, subject) of each, newest first; (what happened, path) of each file."""

    commits: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]


class SourceHistory(Protocol):
    def changes(self, root: Path, old: str, new: str) -> SourceChanges | None:
        """None if a commit is not known here, or the workspace is in no repository."""
