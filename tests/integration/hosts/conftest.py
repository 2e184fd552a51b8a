"""A workspace with a machine in an emulated cloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import CloudWorkspace


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    return CloudWorkspace(tmp_path / "w", private_home, cloud)
