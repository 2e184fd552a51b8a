"""Compiler logs and profiler reports as documents, through fcctl's own readers.

``fcctl-host read READER FILE`` prints a document; a build here and a job's ``collect:`` therefore read alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

#: This repository's host program, for runs that fcctl did not start.
REMOTE = Path(__file__).resolve().parents[2] / "remote"


class Unreadable(Exception):
    """No reader here, or the reader refused the file."""


def read(reader: str, file: Path) -> dict[str, Any]:
    """The document that ``reader`` (ptxas, ncu) makes of ``file``.

    Raises:
        Unreadable: with the reason.
    """
    command, environment = _program()
    if command is None:
        raise Unreadable("neither fcctl-host nor this repository's remote/ folder is here")
    argv = [*command, "read", reader, str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise Unreadable(f"{' '.join(argv)} failed: {done.stderr.strip()[-400:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _program() -> tuple[list[str] | None, dict[str, str]]:
    environment = dict(os.environ)
    if environment.get("FCCTL_HOST"):
        return [environment["FCCTL_HOST"]], environment
    if (REMOTE / "fcctl_remote").is_dir():
        environment["PYTHONPATH"] = str(REMOTE)
        return [sys.executable, "-m", "fcctl_remote"], environment
    return None, environment
