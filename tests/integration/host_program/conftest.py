from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.integration.host_program.agent_client import Agent, Host


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: make setup installs it")
    made = Host(tmp_path_factory.mktemp("h"))
    yield made
    made.close()


@pytest.fixture
def agent(host: Host) -> Agent:
    opened = host.agent()
    opened.call("hello")
    return opened
