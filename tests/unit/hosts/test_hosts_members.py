"""Which of the machines that searches make like a target are listed with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.hosts import hosts
from orchestrator.hosts.claims import with_members
from orchestrator.hosts.hosts import Row
from orchestrator.machines.targets import GcpTarget, SshTarget, Target
from orchestrator.money.caps import Budget

TARGETS: dict[str, Target] = {
    "l4": GcpTarget(name="l4", project="proj-one", instance="vm", zones=["us-west1-a"]),
    "box": SshTarget(name="box", host="box"),
}


def services(*, logged_in: str = "", ran: str = "", runs: str = "") -> Any:
    """What this computer remembers: an instance that it logged in to, where a run was, and where one is."""
    return SimpleNamespace(
        book=SimpleNamespace(known=lambda project, name: (project, name) == ("proj-one", logged_in) or None),
        budget=Budget(),
        store=SimpleNamespace(
            active=lambda: ["r"],
            plan_of=lambda _: {"target": {"name": runs}},
            rows=lambda *, target, limit: ["row"][:limit] if target == ran else [],
        ),
    )


@pytest.mark.parametrize(
    "known", [{"logged_in": "vm-2"}, {"ran": "l4-2"}, {"runs": "l4-2"}], ids=lambda k: next(iter(k))
)
def test_a_machine_is_listed_after_the_target_that_it_is_like(known: dict[str, str]) -> None:
    found = with_members(services(**known), TARGETS)
    assert list(found) == ["l4", "l4-2", "box"]
    assert getattr(found["l4-2"], "instance", None) == "vm-2"


def test_what_no_search_could_have_made_is_not_listed() -> None:
    for name in ("l4-1", "l4-17", "box-2", "l4-02"):
        assert list(with_members(services(ran=name, runs=name), TARGETS)) == ["l4", "box"]


def test_one_that_was_deleted_since_is_not_listed_and_one_that_nobody_can_ask_about_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {"l4": "absent", "l4-2": "absent", "l4-3": "unknown"}
    monkeypatch.setattr(hosts, "_cloud_rows", lambda _s, name, *_: [Row(name, "gcp", said[name])])
    rows = hosts.rows(services(ran="l4-2", runs="l4-3"), TARGETS, workspace="w")
    assert [(row.target, row.state, row.member_of) for row in rows] == [
        ("l4", "absent", None), ("l4-3", "unknown", "l4"), ("box", "-", None),
    ]  # fmt: skip
