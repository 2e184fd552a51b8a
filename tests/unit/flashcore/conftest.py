from __future__ import annotations

import ctypes

import pytest

from flashcore.registry import VARIANTS
from tests.support.cuda_on_cpu.build import compile_on_cpu


@pytest.fixture(scope="session")
def auto(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The flagship with all its tilings, by far the longest to compile: its tests are of the group ``flagship-auto``,
    so that one worker compiles it once."""
    return compile_on_cpu(VARIANTS["flagship"], {}, tmp_path_factory.mktemp("flagship"))
