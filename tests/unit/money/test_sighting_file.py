"""The file of what the cloud said: two kinds of lines, and what a crash leaves of one."""

from __future__ import annotations

from pathlib import Path

from orchestrator.money.billable import Holding
from orchestrator.money.ledger import Sighting
from orchestrator.money.usage_file import NAME, SightingFile

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
