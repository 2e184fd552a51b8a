"""Small programs that stand in for others."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.support import forked


def script(path: Path, body: str) -> Path:
    """A POSIX shell script that can be executed; its folder is made if it is absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def launcher(folder: Path) -> Path:
    """``fcctl`` in a folder for PATH, as after an installation: this source tree's, wherever it is typed."""
    python = shlex.quote(sys.executable)
    return script(folder / "fcctl", f'PYTHONPATH={forked.PYTHON_PATH} exec {python} -P -m orchestrator.cli.entry "$@"')
