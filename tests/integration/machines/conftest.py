from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.machines.connect.agent import AgentSession
from orchestrator.machines.connect.connector import Connector
from orchestrator.machines.targets import LocalTarget, Target
from tests.support.sshd import LoopbackSshd


@pytest.fixture(params=["ssh", "local"])
def session(request: pytest.FixtureRequest, sshd: LoopbackSshd) -> Iterator[AgentSession]:
    target: Target = sshd.target(link_timeout_s=30.0) if request.param == "ssh" else LocalTarget(name="local")
    session = Connector().connect(target)
    assert isinstance(session, AgentSession)
    yield session
    session.close()
