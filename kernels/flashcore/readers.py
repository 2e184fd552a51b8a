"""Compiler logs and profiler reports as documents, through fcctl's own readers.

A build here and a job's ``collect:`` therefore read alike. The readers are this repository's ``remote/fcctl_remote``;
where only this folder was copied to a machine, a run's ``fcctl-host`` program has them, too.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REMOTE = Path(__file__).resolve().parents[2] / "remote"


class Unreadable(Exception):
    """No reader here, or the reader refused the file. ``unavailable``: this machine cannot give these figures."""

    def __init__(self, message: str, unavailable: bool = False) -> None:
        super().__init__(message)
        self.unavailable = unavailable


def read(reader: str, file: Path) -> dict[str, Any]:
    """The document that ``reader`` (ptxas, ncu) makes of ``file``.

    Raises:
        Unreadable: with the reason.
    """
    readers = _module()
    if readers is None:
        return _through_program(reader, file)
    try:
        document: dict[str, Any] = readers.read(reader, str(file), dict(os.environ))
    except readers.ReaderError as e:
        raise Unreadable(str(e), bool(e.unavailable)) from e
    return document


def _module() -> Any:
    if (REMOTE / "fcctl_remote").is_dir() and str(REMOTE) not in sys.path:
        sys.path.append(str(REMOTE))
    try:
        return importlib.import_module("fcctl_remote.readers")
    except ImportError:
        return None


def _through_program(reader: str, file: Path) -> dict[str, Any]:
    program = os.environ.get("FCCTL_HOST")
    if not program:
        raise Unreadable("this machine has neither fcctl_remote nor fcctl-host of a run")
    done = subprocess.run([program, "read", reader, str(file)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unreadable(f"fcctl-host read {reader} {file} failed: {done.stderr.strip()[-400:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document
