"""Planted bugs of money that must be found; and schedules that broke a cap once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from orchestrator.base.errors import BudgetError, DiskError
from orchestrator.hosts.hosts import down
from orchestrator.machines.cloud import MANAGED_LABEL
from orchestrator.runs.cost import machine_cost, outlook, owners
from orchestrator.runs.cost.owners import reservation
from orchestrator.runs.cost.spending import reservations, reserve
from tests.simulation.commands import carry_out
from tests.simulation.episode import ZONES, Episode
from tests.simulation.judge import outcome
from tests.simulation.money_mutants import LEFT_ON, MONEY_MUTANTS, RESUME, TIGHT, UP, WAKE
from tests.simulation.mutants import MUTANTS
from tests.simulation.schedule import Command, FiringPlan, Schedule
from tests.simulation.world import Actor, Fault


def test_as_many_are_planted_as_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/testing.md").read_text()
    assert f"{len(MUTANTS)} bugs of machines and {len(MONEY_MUTANTS)} of money are planted" in page


#: Each broke a cap before every start asked one book, and its check and its reservation were one step.
ONCE_BROKE_A_CAP = [
    # Controllers that started at one moment all saw the same money left.
    TIGHT,
    Schedule(0, (), ("rush", "ps"), month_cap=0.5, free_disks=True),
    Schedule(0, (), ("rush", "ps"), project_cap=0.5, free_disks=True),
    # What these commands start was held to no cap.
    UP,
    WAKE,
    RESUME,
    Schedule(0, (), ("detach", "wake"), month_cap=0.45, free_disks=True),
    Schedule(0, (Fault(100, "preempt"),), ("run", "go on"), project_cap=0.45, free_disks=True),
    # A firing whose machine could not be stopped counted until then only, and not until the machine was off.
    LEFT_ON,
]


@pytest.mark.parametrize("schedule", ONCE_BROKE_A_CAP, ids=str)
def test_a_cap_holds(schedule: Schedule) -> None:
    assert outcome(schedule) is None


def test_controllers_that_start_at_one_moment_and_fit_the_caps_all_run() -> None:
    assert outcome(Schedule(0, (), ("rush", "ps"), day_cap=3.5, free_disks=True)) is None


def test_a_firing_that_ended_in_an_error_counts_in_its_schedules_month() -> None:
    firings = FiringPlan(30, 0.45, 0.5, strictly=True)
    commands = ("tick", "serve", "serve", "tick")
    assert outcome(Schedule(0, (Fault(80, "kill"),), commands, firings=firings)) is None


def test_a_ledger_that_cannot_be_written_leaves_no_run_unfollowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The notice about a cap is to be written there, in the middle of the run."""
    asked: list[object] = []

    def send(services: object) -> list[str]:
        asked.append(services)
        raise DiskError("could not write the ledger", cause="the disk is full")

    monkeypatch.setattr(outlook, "send_cap_notices", send)
    played = Episode(Schedule(1, (), ("run",), day_cap=1.8), tmp_path)
    assert (played.command("run", "fcctl"), len(asked)) == ("ended", 1)


def test_what_hosts_up_turned_on_is_reported_and_reserved_though_the_ledger_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    played = Episode(Schedule(1, (), ("up",)), tmp_path / "first")
    assert played.command("up", "fcctl") == "ended"
    (tmp_path / "second").mkdir()
    full = Fault(played.world.effects - 1, "laptop_full", 3600.0)  # from just before its last line
    played = Episode(Schedule(1, (full,), ("up",)), tmp_path / "second")
    assert played.command("up", "fcctl") == "ended"
    assert [one.owner for one in reservations(played.services(Actor("next")))] == ["up"]


@pytest.mark.parametrize("cap", [None, 1.8], ids=["no caps", "day's cap"])
def test_what_the_ledger_could_not_take_at_a_run_s_end_is_booked_before_the_next_start(
    cap: float | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise DiskError("could not write the ledger", cause="the disk is full")

    played = Episode(Schedule(1, (), ("run",), day_cap=cap), tmp_path)
    with monkeypatch.context() as full:
        full.setattr(owners, "settle_run", refuse)
        assert played.command("run", "fcctl-0") == "ended"
    first = played.services(Actor("reader")).spending
    assert (len(first.state().runs()), len(first.state().open())) == (0, 1)
    assert played.command("run", "fcctl-1") == "ended"
    assert (len(first.state().runs()), len(first.state().open())) == (2, 0)


def test_results_that_would_cost_more_than_the_run_may_stay_on_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_cost, "affordable_bytes", lambda *_: 10)
    played = Episode(Schedule(1, (), ("run",), release="delete", day_cap=1.8), tmp_path)
    services, ending = played.process("fcctl", played.here, partial(carry_out, played, "run", played.here))
    assert ending == "ended"
    (instance,) = played.cloud.instances.values()
    assert instance.status == "TERMINATED", "and is not deleted"
    (row,) = services.store.rows()
    assert {one.reason for one in services.store.get(row.run_id).omitted} == {"too_large"}
    notes = services.observer.notes  # type: ignore[attr-defined]
    assert any("stays on the machine's disk: the cloud bills what is fetched" in note for note in notes)


def test_hosts_down_stops_a_machine_in_a_zone_that_the_target_does_not_name_any_more(tmp_path: Path) -> None:
    """It is not fcctl's own, so that no label tells where it is."""
    played = Episode(Schedule(1, (), ("up",)), tmp_path)
    (instance,) = played.cloud.instances.values()
    del instance.resource["labels"][MANAGED_LABEL]
    assert played.command("up", "fcctl") == "ended"
    services = played.services(Actor("next"))
    assert [one.owner for one in reservations(services)] == ["up"]
    moved = played.here.target.model_copy(update={"zones": [ZONES[2]]})
    assert [one.how for one in down(services, moved, workspace="sim")] == ["stopped"]
    assert instance.status == "TERMINATED"


def test_hosts_down_says_that_a_suspended_machine_costs(tmp_path: Path) -> None:
    played = Episode(Schedule(1, (), ("up",)), tmp_path)
    (instance,) = played.cloud.instances.values()
    for change in ("start", "suspend"):
        played.cloud.ask("POST", f"zones/{ZONES[0]}/instances/vm/{change}", {}, {})
        played.world.advance(120)
    assert instance.status == "SUSPENDED"
    services = played.services(Actor("next"))
    assert down(services, played.here.target, workspace="sim") == []
    (note,) = services.observer.notes  # type: ignore[attr-defined]
    assert note.startswith("vm is suspended: the cloud bills its memory until it is stopped: gcloud compute instances")


@pytest.mark.parametrize("at", [30, 60, 155], ids=["starting", "running", "stopping"])
def test_a_ledger_that_cannot_be_read_keeps_no_machine_on(at: int, tmp_path: Path) -> None:
    played = Episode(Schedule(1, (Fault(at, "other"),), ("run",), day_cap=1.8), tmp_path)

    def break_it() -> None:
        (book,) = tmp_path.glob("state-*/book.jsonl")
        book.rename(book.with_name("aside"))
        book.mkdir()  # whoever reads it gets an error of the disk

    played.world.on["other"] = break_it
    services, ending = played.process("fcctl", played.here, partial(carry_out, played, "run", played.here))
    assert [instance.status for instance in played.cloud.instances.values()] == ["TERMINATED"]
    assert ending == "ended"
    notes = services.observer.notes  # type: ignore[attr-defined]
    assert any("a later command will record the cost" in note for note in notes)


@pytest.mark.parametrize("first", ["detach", "session"])
def test_what_is_on_counts_though_the_ledger_is_gone(first: Command, tmp_path: Path) -> None:
    """Its folder was deleted, or is an older one by now, of a backup."""
    played = Episode(Schedule(1, (), (first,), project_cap=1.0, free_disks=True), tmp_path)
    assert played.command(first, "first") == "ended"
    (folder,) = tmp_path.glob("state-*")
    shutil.rmtree(folder)
    other = played.here.target.model_copy(update={"name": "l4-2", "instance": "vm-2"})
    played.targets[other.name] = other
    services = played.services(Actor("second"), replace(played.here, target=other))
    with pytest.raises(BudgetError, match="only"):
        reserve(services, reservation(services, "run", "20270115t080000z-bench-l4-db954f", other, 0.6))
