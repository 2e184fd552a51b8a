"""Small programs that stand in for others."""

from __future__ import annotations

from pathlib import Path


def script(path: Path, body: str) -> Path:
    """A POSIX shell script that can be executed; its folder is made if it is absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
