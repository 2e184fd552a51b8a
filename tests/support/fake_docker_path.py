"""Installs :mod:`tests.support.fake_docker` as a program on PATH."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IMAGE = "repo.example/cuda:12.9"


def install(place: Path, state: Path) -> None:
    program = Path(__file__).with_name("fake_docker.py")
    place.write_text(f'#!/bin/sh\nDOCKER_STATE={state} exec {sys.executable} -I {program} "$@"\n')
    place.chmod(0o755)


@contextmanager
def daemon(program: Path, state: Path, *programs: str) -> Iterator[None]:
    """``program`` is a docker whose daemon runs until the end of the block, with an image that has ``programs``."""
    (state / "image/bin").mkdir(parents=True)
    for name in programs:
        (state / "image/bin" / name).symlink_to(shutil.which(name) or name)
    install(program, state)
    with subprocess.Popen([program, "daemon"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"up\n"
            yield
        finally:
            process.kill()
