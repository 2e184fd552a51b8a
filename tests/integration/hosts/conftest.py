"""An emulated cloud in virtual time, and a workspace with a machine in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import CloudWorkspace, emulated


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with emulated() as emulator:
        yield emulator


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    return CloudWorkspace(tmp_path / "w", private_home, cloud)
