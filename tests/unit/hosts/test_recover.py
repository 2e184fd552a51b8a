"""Runs that another fcctl follows, as ``ps`` and ``pull-results`` find them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import ConflictError
from orchestrator.hosts import recover
from orchestrator.machines.targets import LocalTarget
from orchestrator.results.records import SourceRecord
from orchestrator.runs.job.saved_plan import SavedPlan

RUN = "20261121t081530z-j-here-3fa9c1"


@pytest.mark.parametrize("completes", [False, True])
def test_one_that_the_other_completes_while_its_host_is_asked_is_not_active(
    monkeypatch: pytest.MonkeyPatch, completes: bool
) -> None:
    """Else ``pull-results RUN`` would end with an error although it is here."""
    complete: list[bool] = []

    def resumed(*_: object, **__: object) -> None:
        raise ConflictError(f"another fcctl process follows run {RUN}")

    def ask(_action: object) -> list[wire.RunSummary]:
        complete.append(completes)
        return [wire.RunSummary(RUN, "j", "running", 0.0)]

    plan = wire.RunPlan(RUN, "j", "here", "w", "0" * 64, [wire.StepSpec("a", "x")])
    saved = SavedPlan(plan=plan, target=LocalTarget(name="here"), source=SourceRecord(tree_sha256="0" * 64))
    monkeypatch.setattr(recover, "saved_plan", lambda *_: saved)
    monkeypatch.setattr(recover, "resumed", resumed)
    monkeypatch.setattr(recover, "new_link", lambda *_, **__: SimpleNamespace(ask=ask, close=lambda: None))
    store = SimpleNamespace(is_complete=lambda _: any(complete), pending_releases=dict)
    services: Any = SimpleNamespace(store=store, sessions=SimpleNamespace(open=list))
    states = recover.recover(services, [RUN])
    assert [state.state for state in states] == ([] if completes else ["followed"])
