from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from orchestrator.machines.connect.agent import AgentSession
from orchestrator.machines.connect.reconnect import Connector
from orchestrator.machines.targets import LocalTarget, Target


@pytest.fixture
def connect() -> Iterator[Callable[[Target], AgentSession]]:
    """Open a session, which is closed in the end."""
    opened: list[AgentSession] = []

    def session(target: Target) -> AgentSession:
        made = Connector().connect(target)
        assert isinstance(made, AgentSession)
        opened.append(made)
        return made

    yield session
    for one in opened:
        one.close()


@pytest.fixture(params=["ssh", "local"])
def session(request: pytest.FixtureRequest) -> AgentSession:
    over_ssh = request.param == "ssh"  # its sshd is started first, and ends last
    target = request.getfixturevalue("sshd").target(link_timeout_s=30.0) if over_ssh else LocalTarget(name="local")
    made: AgentSession = request.getfixturevalue("connect")(target)
    return made
