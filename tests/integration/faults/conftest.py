"""One process with Google's library in it, for all commands that are to be killed or to race."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()
