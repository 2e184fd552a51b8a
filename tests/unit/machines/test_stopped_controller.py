"""A controller that was stopped, by SIGSTOP or a laptop's lid, for longer than any limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import LinkLost
from orchestrator.machines.connect import framing
from orchestrator.machines.connect.framing import FrameStream

HOUR_S = 3600.0
TICK = b'{"tick": 1}\n'
ANSWER = b'{"id": 1, "result": {}}\n'


class StoppedIn:
    """A process whose reads return ``reads`` in turn: (bytes, seconds it takes); for None it times out."""

    def __init__(self, *reads: tuple[bytes | None, float]) -> None:
        self.now, self._reads = 1000.0, iter(reads)

    def read(self, _limit: int, timeout_s: float) -> bytes:
        data, took_s = next(self._reads)
        self.now += took_s
        if data is None:
            raise TimeoutError
        assert took_s >= HOUR_S or took_s < timeout_s
        return data


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(*reads: tuple[bytes | None, float]) -> FrameStream:
        process = StoppedIn(*reads)
        monkeypatch.setattr(framing, "time", SimpleNamespace(monotonic=lambda: process.now))
        frames = FrameStream(process, 20.0)  # type: ignore[arg-type]
        frames.answer_by = process.now + 20.0
        return frames

    return made


@pytest.mark.parametrize(
    "reads",
    [
        [(TICK, 1.0), (None, HOUR_S), (ANSWER, 0.1)],  # Paramiko's timeout, before its thread has read anything
        [(TICK, HOUR_S), (ANSWER, 0.1)],
        [(ANSWER[:9], HOUR_S), (ANSWER[9:], 19.0)],
    ],
)
def test_an_answer_that_waited_meanwhile_is_read(stream: Any, reads: list[tuple[bytes | None, float]]) -> None:
    frames = stream(*reads)
    while "tick" in (message := frames.read()[0]):
        pass
    assert message == {"id": 1, "result": {}}


def test_who_was_not_stopped_waits_as_long_as_ever(stream: Any) -> None:
    frames = stream(*[(TICK, 6.0)] * 3, (None, 2.0))
    for _ in range(3):
        frames.read()
    with pytest.raises(TimeoutError):
        frames.read()
    frames = stream((None, 20.1))
    frames.answer_by = float("inf")
    with pytest.raises(LinkLost, match="nothing more"):
        frames.read()
