"""Answers that a candidate's process may have forged."""

from __future__ import annotations

from typing import Any

import pytest

from flashcore import separate
from flashcore.errors import LaunchFailed


class Forger:
    """A process whose every answer is ``reply``."""

    def __init__(self, reply: dict[str, Any]) -> None:
        self._reply = separate.Reply(reply)

    def ask(self, op: str, **what: Any) -> separate.Reply:
        return self._reply


@pytest.mark.parametrize("reply", [{}, {"launches": None}, {"launches": "3"}, {"launches": True}, {"launches": 1e9}])
def test_a_number_is_a_whole_number(reply: dict[str, Any]) -> None:
    assert separate.Reply({"launches": 3}).number("launches") == 3
    with pytest.raises(LaunchFailed, match="answered without launches"):
        separate.Reply(reply).number("launches")


@pytest.mark.parametrize("trials", [None, {}, [1], [["a", [1, 1, 1, 64]]], [["a", ["1"], None]], [["a", [1], 3]]])
def test_trials_are_trials(trials: Any) -> None:
    kernel = separate.Kernel.__new__(separate.Kernel)
    kernel.number = 0
    good = [["another stream", [1, 8, 192, 64, None], None], ["queued", [1, 8, 512, 64], "late"]]
    kernel.runner = Forger({"trials": good})  # type: ignore[assignment]
    assert kernel.streams(1) == good
    kernel.runner = Forger({"trials": trials})  # type: ignore[assignment]
    with pytest.raises(LaunchFailed, match="has no trials"):
        kernel.streams(1)
