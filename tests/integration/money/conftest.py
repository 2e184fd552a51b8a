"""An emulated cloud in virtual time for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import emulated


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with emulated() as emulator:
        yield emulator
