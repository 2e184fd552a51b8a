"""The folder of an active run is deleted, or the disk of the results fails, while its controller follows it."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from orchestrator.runs.cost.spending import lines, reservations
from tests.simulation.accounts import RATE
from tests.simulation.commands import carry_out
from tests.simulation.episode import Episode
from tests.simulation.schedule import Schedule
from tests.simulation.world import Actor, Fault


@pytest.mark.parametrize("at", [20, 60, 150, 165], ids=["starting", "running", "collecting", "stopping"])
def test_its_machine_goes_off_and_its_results_are_whole(at: int, tmp_path: Path) -> None:
    played = Episode(Schedule(1, (Fault(at, "other"),), ("run",)), tmp_path)
    deleted: list[Path] = []

    def delete() -> None:
        deleted.extend((played.here.root / "results/active").glob("2*"))
        for folder in deleted:
            shutil.rmtree(folder)

    played.world.on["other"] = delete
    assert played.command("run", "fcctl") == "ended"
    assert [instance.status for instance in played.cloud.instances.values()] == ["TERMINATED"]
    services = played.services(Actor("next"))
    (row,) = services.store.rows()
    assert (row.run_id, row.status) == (deleted[0].name, "passed")
    assert [entry.kind for entry in services.store.journal_of(row.run_id)][-1] == "complete"
    assert reservations(services) == []
    booked = sum(line.usd for line in lines(services) if line.what is None)
    assert booked == pytest.approx(played.cloud.spent(RATE), abs=1e-4)


@pytest.mark.parametrize("folder", ["", "active", "runs"])
@pytest.mark.parametrize("at", [20, 54, 148, 158], ids=["starting", "running", "collecting", "stopping"])
def test_a_disk_that_fails_keeps_no_machine_on(at: int, folder: str, tmp_path: Path) -> None:
    """Results that cannot be listed any more, as on a network drive that is gone."""
    played = Episode(Schedule(1, (Fault(at, "other"),), ("run",), day_cap=1.8), tmp_path)
    broken = played.here.root / "results" / folder

    def break_it() -> None:
        shutil.rmtree(broken, ignore_errors=True)
        broken.write_text("whoever lists this folder gets an error of the disk")

    played.world.on["other"] = break_it
    _, ending = played.process("fcctl", played.here, partial(carry_out, played, "run", played.here))
    assert ending.startswith("refused: ")
    assert [instance.status for instance in played.cloud.instances.values()] == ["TERMINATED"]


def test_a_session_whose_files_are_deleted_while_it_starts_leaves_no_machine_on(tmp_path: Path) -> None:
    played = Episode(Schedule(1, (Fault(30, "other"),), ("session",)), tmp_path)
    played.world.on["other"] = lambda: shutil.rmtree(played.here.root / "results/sessions")
    _, ending = played.process("fcctl", played.here, partial(carry_out, played, "session", played.here))
    assert ending.startswith("refused: ")
    assert [instance.status for instance in played.cloud.instances.values()] == ["TERMINATED"]


@pytest.mark.parametrize("at", [10, 60, 100])
def test_a_disk_that_fails_stops_no_machine_that_was_on_before(at: int, tmp_path: Path) -> None:
    """``hosts up`` keeps it on, until its own limit."""
    played = Episode(Schedule(1, (), ("up", "run")), tmp_path)
    assert played.command("up", "first") == "ended"
    played.world.faults[played.world.effects + at] = [Fault(at, "other")]

    def break_it() -> None:
        shutil.rmtree(played.here.root / "results/active")
        (played.here.root / "results/active").write_text("whoever lists this folder gets an error of the disk")

    played.world.on["other"] = break_it
    _, ending = played.process("fcctl", played.here, partial(carry_out, played, "run", played.here))
    assert ending.startswith("refused: ")
    assert [instance.status for instance in played.cloud.instances.values()] == ["RUNNING"]
