from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashcore import separate


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each test module has a build cache of its own, which its tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHCORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For a test that counts builds."""
    monkeypatch.setenv("FLASHCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def judging() -> Iterator[None]:
    """For a test that judges kernels in this process: others end with it, and it may be debugged again."""
    yield
    separate.end()
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
