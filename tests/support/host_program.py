"""The host program as a host has it that started it before: unpacked, and compiled by the Python that starts it.

A new home of a test gets the archive, and the unpacked copy by a link. Else it would be sent to each home, and each
would unpack and compile it again. How it comes to a host is in ``tests/integration/machines/test_damaged_program.py``,
and how it unpacks itself in ``tests/unit/machines/test_runner_archive.py``.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from orchestrator.emulator import guest
from orchestrator.machines.connect.bootstrap import RunnerArchive, build_runner

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
    """Below ``root``, the host program's folder, it is there already."""
    archive = built()
    runner = root / "runner"
    runner.mkdir(parents=True, mode=0o700)
    (runner / f"{archive.sha256}.d").symlink_to(archive.path.with_suffix(".d"), target_is_directory=True)
    shutil.copy(archive.path, runner)


def on_emulated_disks() -> None:
    """The emulator's machines of this process have it on their new disks."""
    prepare = guest.prepare_disk

    def prepared(disk: Path, *more: Any, **named: Any) -> None:
        new = not (disk / "home").exists()
        prepare(disk, *more, **named)
        if new:
            unpacked_in(disk / "home/.fcctl")

    guest.prepare_disk = prepared


def remove() -> None:
    """What :func:`built` left in the folder of temporary files."""
    built.cache_clear()
    while _FOLDERS:
        shutil.rmtree(_FOLDERS.pop(), ignore_errors=True)
