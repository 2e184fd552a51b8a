"""Which runs are a search's members', after its fcctl was killed, also if the search had moved."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runs.cancel import with_members
from orchestrator.tune.fleet.member import Member
from orchestrator.tune.fleet.plan import left_behind


def run_id(minute: int, job: str = "tune-member-b") -> str:
    return f"20261121t08{minute:02}30z-{job}-3fa9c1"


FIRST, MOVED, STRANGE = run_id(10, "tune-a"), run_id(30, "tune-b"), run_id(31, "tune-x")
OLD, LOST, WAITING, NEWEST, ELSEWHERE = (run_id(minute) for minute in (9, 11, 12, 32, 33))


class Store:
    """Runs under way, and runs that are home."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plans: dict[str, dict[str, Any]] = {}
        self.home: list[str] = []

    def has(self, run: str, plan: dict[str, Any], *, complete: bool = False) -> None:
        plan = {"plan": {"run_id": run}, **plan}
        if complete:
            self.home.append(run)
            self.folder(run).mkdir()
            (self.folder(run) / "plan.json").write_text(json.dumps(plan))
        else:
            self.plans[run] = plan

    def folder(self, run: str) -> Path:
        return self.root / run

    def active(self) -> list[str]:
        return sorted(self.plans)

    def plan_of(self, run: str) -> dict[str, Any] | None:
        return self.plans.get(run)

    def rows(self, *, job: str) -> list[Any]:
        assert job == "tune-member"
        return [SimpleNamespace(run_id=run) for run in sorted(self.home, reverse=True)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path)
    b, c = {"target": {"name": "b"}}, {"target": {"name": "c"}}
    made.has(OLD, {"fleet_of": FIRST, **b}, complete=True)  # before the search: its file is not even looked at
    made.has(LOST, {"fleet_of": FIRST, **c}, complete=True)
    made.has(WAITING, {"fleet_of": FIRST, **c})
    made.has(MOVED, {"fleet": {"before": [FIRST]}})
    made.has(NEWEST, {"fleet_of": MOVED, **c})
    made.has(ELSEWHERE, {"fleet_of": STRANGE, **c})
    (made.folder(OLD) / "plan.json").write_text("[")
    return made


def test_members_of_what_the_search_was_before_are_its_own(store: Store) -> None:
    services: Any = SimpleNamespace(store=store)
    moved: Any = SimpleNamespace(to_json=lambda: store.plans[MOVED])
    assert left_behind(services, moved) == {"c": [LOST, WAITING, NEWEST]}
    alone: Any = SimpleNamespace(to_json=lambda: {"plan": {"run_id": STRANGE}})
    assert left_behind(services, alone) == {"c": [ELSEWHERE]}


def test_who_ends_a_search_ends_all_that_help_it(store: Store) -> None:
    asked: Any = store
    assert with_members(asked, [MOVED]) == [MOVED, WAITING, NEWEST]
    assert with_members(asked, [STRANGE]) == [STRANGE, ELSEWHERE]
    store.has(run_id(40, "tune-b"), {"plan": {"run_id": run_id(40, "tune-b"), "resume_from": STRANGE}})
    assert with_members(asked, [run_id(40, "tune-b")]) == [run_id(40, "tune-b"), ELSEWHERE]


@pytest.mark.parametrize(
    ("steps", "over", "why"),
    [
        (["passed"], False, None),  # it was told, and we hear of it later
        (["warned"], False, "gave up waiting for the search"),
        (["warned"], True, None),
    ],
)
def test_a_member_that_is_not_needed_any_more_is_not_started_again(
    steps: list[str], over: bool, why: str | None
) -> None:
    record: Any = SimpleNamespace(status="passed", steps=[SimpleNamespace(status=status) for status in steps])
    member: Any = SimpleNamespace(over=Event(), left_out=Event())
    if over:
        member.over.set()
    assert Member._judged(member, record) == why
