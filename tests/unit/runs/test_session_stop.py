"""Who uses the machine of a session that is stopped."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.base.errors import ConflictError
from orchestrator.machines.targets import CloudTarget
from orchestrator.sessions import session


@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_begins_while_results_are_fetched_keeps_its_machine(
    force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = SimpleNamespace(run_id="left", uses_it=False, left_behind=True)
    begun = SimpleNamespace(run_id="begun", uses_it=True, left_behind=False)
    there, fetched = [left], list[list[str]]()

    def recover(_: object, run_ids: list[str]) -> None:
        fetched.append(run_ids)
        there[:] = [begun]

    monkeypatch.setattr(session, "neighbours", lambda *_: there)
    monkeypatch.setattr(session, "others_on_host", lambda *_: None)
    services: Any = SimpleNamespace(unread=SimpleNamespace(noted=nullcontext), recover_runs=recover)
    target = cast("CloudTarget", SimpleNamespace(instance="vm"))
    with nullcontext() if force else pytest.raises(ConflictError, match="run begun uses vm"):
        session._collect_runs(services, target, force=force)
    assert fetched == [["left"]]
