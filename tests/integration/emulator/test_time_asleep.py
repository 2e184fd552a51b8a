"""The emulated cloud's time goes on while the computer sleeps, as the real one's does."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.emulator.core import clock
from orchestrator.emulator.emulator import Emulator
from tests.support.waiting import wait_for

pytest.importorskip("google.cloud.compute_v1")


def test_a_machine_whose_limit_passed_meanwhile_is_stopped(
    cloud: tuple[Emulator, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator, gce = cloud
    gce.create()  # with a limit of an hour
    before, awake = emulator.clock.now(), clock._ticks
    monkeypatch.setattr(clock, "_ticks", lambda: awake() + 2 * 3600)  # two hours asleep
    assert emulator.clock.now() >= before + 7200
    wait_for(lambda: gce.status() == "TERMINATED")
    assert gce.history()[-1] == "deferredStop"
