"""The file of what the cloud said: two kinds of lines, and what a crash leaves of one."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.money.usage_file import NAME, SightingFile

from orchestrator.money import price_file
from orchestrator.money.billable import Holding
from orchestrator.money.ledger import Sighting
from orchestrator.providers.gcp.list_prices import LIST_PRICES

MACHINE = Sighting(
    project="p", zone="z", name="vm", instance_id="1", target="l4", usd_per_hour=None, started=1.0, seen=2.0
)
DISK = Holding(project="p", kind="disk", place="z", name="vm", gb=100, seen=2.0)


def test_each_line_is_read_as_what_it_is(tmp_path: Path) -> None:
    file = SightingFile(tmp_path / "results")
    assert (file.all(), file.holdings()) == ([], [])
    file.note(MACHINE)
    file.note_holding(DISK)
    path = tmp_path / "results" / NAME
    with path.open("ab") as torn:
        torn.write(b'{"project": "p", "ki')
    later = SightingFile(tmp_path / "results")
    later.note(MACHINE.model_copy(update={"stopped": 9.0}))
    assert [word.stopped for word in later.all()] == [None, 9.0]
    assert later.holdings() == [DISK]


def test_who_may_read_them(tmp_path: Path, private_home: Path) -> None:
    """A workspace's records: whoever may read it. A user's own price list: that user."""
    before = os.umask(0)
    try:
        SightingFile(tmp_path / "results").note(MACHINE)
        prices = price_file.write(LIST_PRICES)
    finally:
        os.umask(before)
    assert prices.is_relative_to(private_home)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "results" / NAME, prices.parent)]
    assert modes == [0o644, 0o700]
