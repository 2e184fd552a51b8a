from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from flashcore.registry import VARIANTS
from tests.support.cuda_on_cpu.build import compile_on_cpu, loaded


@pytest.fixture(scope="session")
def auto(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The flagship with all its tilings, by far the longest to compile: its tests are of the group ``flagship-auto``,
    so that one worker compiles it once."""
    return compile_on_cpu(VARIANTS["flagship"], {}, tmp_path_factory.mktemp("flagship"))


@pytest.fixture
def auto_on_l4(auto: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """A copy of it: a library asks once which device it runs on, and other tests may have let it."""
    monkeypatch.setenv("CUDA_ON_CPU_DEVICE", "L4")
    return loaded(Path(shutil.copy(auto._name, tmp_path / "on_l4.so")))
