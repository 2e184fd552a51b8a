"""What a workspace has spent and reserved, and what is left of its caps."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from orchestrator.base.errors import BudgetError
from orchestrator.machines.targets import SandboxTarget
from orchestrator.money import book as books
from orchestrator.runs.cost import spending
from tests.support.budgets import listed
from tests.support.money_world import L4, World
from tests.support.spending import reservation
from tests.support.stores import make_id


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "ws")


def test_a_damaged_run_does_not_hide_what_the_others_cost(world: World) -> None:
    damaged = world.spent(3.0)
    world.spent(2.0)
    (world.store.folder(damaged) / "run.json").write_text("{")
    assert [line.usd for line in spending.lines(world.services)] == [2.0]


def test_each_cap_has_what_is_left_of_it(world: World) -> None:
    world.spent(2.0)
    assert world.left() == []
    assert world.left(per_day_usd=5) == [("day", 3.0)]
    assert world.left(per_day_usd=1, per_month_usd=6, project_usd=7) == [
        ("day", -1.0),
        ("month", 4.0),
        ("project", 5.0),
    ]


def test_a_run_counts_with_its_worst_case_until_it_is_complete(world: World) -> None:
    run = world.begun(2.0)
    world.begun(100.0, SandboxTarget(name="sandbox"))  # nobody pays
    world.store.begin(make_id(), {"plan": "of another version"})
    assert world.left(per_day_usd=5) == [("day", 3.0)]
    world.ended(run, 0.5)
    assert world.left(per_day_usd=5) == [("day", 4.5)]


def test_a_run_that_is_deleted_was_spent_all_the_same(world: World) -> None:
    run = world.begun(2.0)
    world.ended(run, 1.5)
    world.store.delete([run.run_id])
    assert world.store.rows() == []
    assert world.left(per_day_usd=5) == [("day", 3.5)]


def test_a_run_whose_machine_nobody_bills_for_reserves_nothing(world: World) -> None:
    world.begun(0.0)
    assert world.services.spending.state().open() == {}


def test_a_run_in_a_session_is_paid_by_it(world: World) -> None:
    session = {"cloud_project": "my-project", "instance": "vm", "owner_id": "there"}
    with world.services.spending.changing() as change:
        change.reserve(reservation("session", 1.25, "session", project="theirs", results="/theirs", **session))
    world.begun(1.0, session="here")
    world.begun(1.0, session="there", session_abroad=True)
    assert world.left(per_day_usd=5) == [("day", 3.75)], "on this workspace's machine, whoever began the session"


def test_a_run_that_was_planned_for_another_workspace_s_session_pays_for_itself_once_that_is_over(world: World) -> None:
    """It turns the machine on then."""
    run = world.begun(0.72, L4, session="there", session_abroad=True)
    worst = run.saved.model_copy(update={"session": None}).worst_case_usd
    assert world.reserved() == {run.run_id: worst}
    world.services.budget = listed(per_day_usd=worst + 0.01)
    with pytest.raises(BudgetError):
        world.begun(0.72, L4, session="there", session_abroad=True)


def test_what_could_break_a_cap_is_refused_and_what_fits_exactly_is_not(world: World) -> None:
    world.spent(2.0)
    run = world.begun(1.0)
    spending.check_caps(world.services, listed(per_day_usd=5), 2.0)
    spending.check_caps(world.services, listed(per_day_usd=1), 0.0)  # it costs nothing
    spending.check_caps(world.services, listed(), 1000.0)
    with pytest.raises(BudgetError, match=r"could cost \$2\.01, and \$2\.00 are left of the day's \$5\.00") as refused:
        spending.check_caps(world.services, listed(per_day_usd=5), 2.01)
    assert refused.value.cause == (
        f"$2.00 are spent (fcctl cost ledger --by day), and $1.00 are reserved for {run.run_id}"
    )
    assert refused.value.hint is not None
    assert refused.value.hint.endswith("raise [budget] per_day_usd")
    with pytest.raises(BudgetError, match=r"\$0\.00 are left of the month's \$2\.50"):
        spending.check_caps(world.services, listed(per_month_usd=2.5), 1.0)
    with pytest.raises(BudgetError, match="of the project's"):
        spending.check_caps(world.services, listed(per_month_usd=9, project_usd=3.5), 1.0)


def test_a_start_that_the_caps_refuse_is_reserved_and_begun_nowhere(world: World) -> None:
    world.services.budget = listed(per_month_usd=1.5)
    world.begun(1.0)
    with pytest.raises(BudgetError, match=r"\$0\.50 are left of the month's"):
        world.begun(0.6)
    assert len(world.store.active()) == 1
    assert [one.usd for one in world.services.spending.state().open().values()] == [1.0]


def test_of_a_start_that_is_interrupted_nothing_stays_reserved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes when the reservation is in the book, and before that is known."""
    kept = world.begun(1.0)

    def interrupted(*_: object) -> NoReturn:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(books, "sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.begun(2.0)
    assert list(world.reserved()) == world.store.active() == [kept.run_id]


def test_what_a_run_itself_cost_is_none_of_what_the_others_did(world: World) -> None:
    mine = world.spent(3.0)
    world.spent(2.0)
    spent = spending.spent_without(world.services, mine)
    assert (spent.day, spent.month, spent.project) == (2.0, 2.0, 2.0)
