"""Every row of the fault table: what is said, what is left on, what it cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.faults.fault_table import ROWS, Row
from tests.integration.faults.page import PAGE, page
from tests.integration.faults.scene import Played, play
from tests.support.tiers import sampled

pytest.importorskip("google.cloud.compute_v1")

RATE = 0.706832  # dollars an hour of g2-standard-4 in us-west1 and us-central1


#: One of each way in which the cloud, the network, the machine or the caller's rights fail.
OF_EACH_KIND = frozenset({
    "insert-503-storm", "insert-lost-after", "start-stockout-rebuild", "start-iam", "stop-lost-before", "preempted",
    "laptop-ahead",
})  # fmt: skip


@pytest.mark.parametrize("row", sampled(ROWS, OF_EACH_KIND, lambda row: row.name))
def test_row(row: Row, tmp_path: Path, private_home: Path) -> None:
    played = play(row, tmp_path / "w", private_home)
    said = played.first.said
    assert played.first.code == row.code, said
    for words in row.says:
        assert words in said
    if row.code and "error:" in said:
        assert "hint:" in said
    elif row.code:
        assert any(status in played.first.out for status in row.statuses)  # the run's own report says it
    status = played.record["status"] if played.record else None
    assert status in (row.statuses or (None,)), said
    check_what_is_left(row, played)
    check_cost(row, played)


def check_what_is_left(row: Row, played: Played) -> None:
    assert played.left_on == []
    assert played.zones == ([] if row.zone is None else row.kept or [row.zone])
    assert played.workspace.active() == []


def check_cost(row: Row, played: Played) -> None:
    """By the emulator's own events, at the list price, with the cloud's minimum of a minute a start."""
    if row.cost == "nothing":
        assert played.meter.seconds == 0
        return
    (plan,) = re.findall(r"may cost \$([0-9.]+) at most", played.first.err)
    woken_again = re.findall(r"costs \$([0-9.]+) at most", "".join(done.err for done in played.then))
    assert played.meter.usd(RATE) <= float(plan) + sum(map(float, woken_again)) + 0.005  # printed to the cent
    if played.record and "cost" in played.record and row.during is None:
        assert played.record["cost"]["usd"] <= float(plan) + 0.005


def test_the_table_is_long_enough_and_its_names_are_names() -> None:
    assert len(ROWS) >= 40
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_the_page_is_made_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.integration.faults.page > docs/faults.md"
