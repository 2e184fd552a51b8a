"""Whose steps make the machine load PyTorch while their source is on its way."""

from __future__ import annotations

from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.runs.sync import warm_up


@pytest.mark.parametrize(
    ("run", "asked"),
    [("make", 0), ('"$FCCTL_PYTHON" a.py', 1), ("fcctl-host venv build/venv", 1), ("fcctl-host read", 0)],
)
def test_steps_that_use_the_machines_python(run: str, asked: int) -> None:
    plan = wire.RunPlan("r", "job", "box", "w", "ab" * 32, [wire.StepSpec("a", "true"), wire.StepSpec("b", run)])
    calls: list[Any] = []

    class Link:
        call = staticmethod(calls.append)

    link: Any = Link()
    warm_up(link, plan)
    assert len(calls) == asked
