"""Installs :mod:`tests.support.fake_docker` as a program on PATH."""

from __future__ import annotations

import sys
from pathlib import Path

IMAGE = "repo.example/cuda:12.9"


def install(place: Path, state: Path) -> None:
    program = Path(__file__).with_name("fake_docker.py")
    place.write_text(f'#!/bin/sh\nDOCKER_STATE={state} exec {sys.executable} -I {program} "$@"\n')
    place.chmod(0o755)
