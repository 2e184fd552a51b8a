"""An emulator that lives long forgets what happened long ago, and nothing that goes on."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from orchestrator.emulator.core import operations
from orchestrator.emulator.emulator import Emulator

pytest.importorskip("google.cloud.compute_v1")
from google.api_core import exceptions


def test_the_oldest_that_are_done_are_forgotten(cloud: tuple[Emulator, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    emulator, gce = cloud
    monkeypatch.setattr(operations, "KEPT", 8)
    request_id = str(uuid.uuid4())
    first = gce.insert(request_id=request_id)
    gce.done(first)
    stops = [gce.do("stop"), *(gce.do("start" if n % 2 else "stop") for n in range(1, 12))]
    assert len(emulator.world.operations) <= 8
    with pytest.raises(exceptions.NotFound):
        gce.wait(first)
    assert gce.wait(stops[-1]).name == stops[-1].name
    with pytest.raises(exceptions.Conflict):  # the name is taken; the request of then is a new one now
        gce.insert(request_id=request_id)
