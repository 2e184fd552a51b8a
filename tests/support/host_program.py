"""The host program as a host has it that started it before: unpacked, and compiled by the Python that starts it.

A new home of a test gets it by a link, and the archive as any other host does: over the connection. Else each home
would unpack, flush and compile it again. How it unpacks itself is in ``tests/unit/machines/test_runner_archive.py``.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator.machines.connect.host_program import RunnerArchive, build_runner

_FOLDERS: list[Path] = []


@functools.cache
def built() -> RunnerArchive:
    """The archive, and beside it the folder that its first start made of it."""
    folder = Path(tempfile.mkdtemp(prefix="fcctl-host-program-"))
    _FOLDERS.append(folder)
    archive = build_runner(folder / "runner")
    subprocess.run([sys.executable, "-I", "-S", str(archive.path), "version"], check=True, stdout=subprocess.DEVNULL)
    return archive


def unpacked_in(root: Path) -> None:
    """Below ``root``, the host program's folder, it is unpacked already; its archive is not there."""
    archive = built()
    runner = root / "runner"
    runner.mkdir(parents=True, mode=0o700)
    (runner / f"{archive.sha256}.d").symlink_to(archive.path.with_suffix(".d"), target_is_directory=True)


def remove() -> None:
    """What :func:`built` left in the folder of temporary files."""
    built.cache_clear()
    while _FOLDERS:
        shutil.rmtree(_FOLDERS.pop(), ignore_errors=True)
