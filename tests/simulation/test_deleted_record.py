"""Somebody deletes the folder of an active run while its controller follows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.runs.cost.spending import lines, reservations
from tests.simulation.accounts import RATE
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
