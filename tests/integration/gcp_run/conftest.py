"""One emulated cloud for a module's tests, each with a machine of its own name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace

pytest.importorskip("google.cloud.compute_v1")

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def shared_cloud() -> Iterator[Emulator]:
    """A cloud in which nothing is short, for tests that change nothing but their own machine."""
    with Emulator() as cloud:
        yield cloud


@pytest.fixture
def start_cloud() -> Iterator[Callable[..., Emulator]]:
    """``start_cloud(...)``: a cloud of the test's own."""
    running: list[Emulator] = []

    def started(**given: Any) -> Emulator:
        running.append(Emulator(**given).start())
        return running[-1]

    yield started
    for cloud in running:
        cloud.stop()


Make = Callable[..., CloudWorkspace]


@pytest.fixture
def workspace_on(tmp_path: Path, private_home: Path) -> Make:
    """``workspace_on(cloud, ...)``: a workspace whose target ``l4`` is there, under a name that nobody else has."""

    def make(cloud: Emulator, **target: Any) -> CloudWorkspace:
        name = f"vm-{next(_NUMBERS)}"
        return CloudWorkspace(tmp_path / f"w{name}", private_home, cloud, instance=name, **target)

    return make
