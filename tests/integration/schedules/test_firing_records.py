"""A schedule's record: whole lines only, whoever writes and whoever dies."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from orchestrator.schedules.due import Firing
from orchestrator.schedules.fire import FiringRecords


def line(due: float, outcome: str = "started") -> Firing:
    return Firing(outcome=outcome, due=due, at=due, key="k")  # type: ignore[arg-type]


def write(folder: Path, who: int) -> None:
    for i in range(50):
        FiringRecords(folder).append("n", (line(who * 1000 + i),))


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    writers = [multiprocessing.get_context("spawn").Process(target=write, args=(tmp_path, w)) for w in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {f.due for f in FiringRecords(tmp_path).read("n")} == {w * 1000 + i for w in range(3) for i in range(50)}


def test_one_decides_and_one_fires(tmp_path: Path) -> None:
    one, other = FiringRecords(tmp_path), FiringRecords(tmp_path)
    with one.deciding() as first, other.deciding() as second:
        assert (first, second) == (True, False)
    with one.firing("n") as first:
        assert first
        assert other.at_work("n")
        assert not other.at_work("m")
    assert not other.at_work("n")
