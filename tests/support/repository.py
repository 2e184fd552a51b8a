"""Git repositories, committed to by nobody in particular."""

from __future__ import annotations

import subprocess
from pathlib import Path

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(folder: Path, **files: str) -> None:
    """``_dot_`` in a name is a dot there, ``__`` begins another part of the path."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def commit(folder: Path, message: str = "x", **files: str) -> Path:
    """Commits all that is in ``folder``, and these files; makes it a repository first if it is none."""
    folder.mkdir(exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
    write(folder, **files)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return folder
