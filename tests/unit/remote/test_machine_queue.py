from __future__ import annotations

import fcntl
from pathlib import Path

from fcctl_remote.base.layout import Layout
from fcctl_remote.run.control import HostLock


def _run(number: int) -> str:
    return f"20261121t081530z-job-box-{number:06x}"


def _join(layout: Layout, number: int, mode: str = "exclusive") -> HostLock:
    lock = HostLock(layout, _run(number), mode)
    lock.join()
    return lock


def test_who_looks_is_not_taken_for_the_dead_s_ticket_s_owner(layout: Layout) -> None:
    """Two runs that wait look at once whether a third one lives, which does not."""
    ticket = Path(layout.tickets, f"000000000001.x.{_run(1)}")
    ticket.touch()
    waits = _join(layout, 2)
    with ticket.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert waits.behind() is None
    waits.leave()
    assert not ticket.exists()


def test_the_tickets_of_the_dead_are_dropped(layout: Layout) -> None:
    Path(layout.tickets, f"000000000001.x.{_run(1)}").touch()  # nobody holds its lock
    Path(layout.tickets, "README").touch()
    alive = _join(layout, 2)
    assert alive.behind() is None
    assert sorted(path.name for path in Path(layout.tickets).iterdir()) == [f"000000000002.x.{_run(2)}", "README"]
    alive.leave()
