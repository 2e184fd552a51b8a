"""What somebody else does to a machine while a run's step works on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import INSTANCE, delete_by_hand, machines, start_by_hand, stop_by_hand
from tests.support.waiting import wait_for


def restarted(cloud: Emulator) -> None:
    stop_by_hand(cloud)
    start_by_hand(cloud)


#: As the rows of the fault table name them.
HAPPENINGS: dict[str, Callable[[Emulator], object]] = {
    "preempted": lambda cloud: cloud.preempt(INSTANCE),
    "waking_preempted": lambda cloud: cloud.preempt(INSTANCE),
    "host_error": lambda cloud: cloud.host_error(INSTANCE),
    "stopped": stop_by_hand,
    "restarted": restarted,
    "deleted": delete_by_hand,
    "shut_down": lambda cloud: cloud.control.happen(INSTANCE, "guestTerminate"),
    "fence": lambda cloud: cloud.control.happen(INSTANCE, "deferredStop"),
    "api_down": lambda cloud: cloud.faults.add(action="*", nth="1+", do={"http": 503}),
}


def soon(cloud: Emulator, name: str) -> threading.Thread:
    """Let it happen as soon as the step has left its mark in the machine's home; or, by its name, while it wakes."""

    def watch() -> None:
        wait_for(lambda: _runs(cloud) if name.startswith("waking_") else _at_work(cloud))
        HAPPENINGS[name](cloud)
        with contextlib.suppress(LookupError, OSError):  # the machine, and its disk, may be gone now
            (cloud.home(INSTANCE) / "happened").touch()

    thread = threading.Thread(target=watch, name=f"happening-{name}", daemon=True)
    thread.start()
    return thread


def _runs(cloud: Emulator) -> bool:
    return any(machine.status == "RUNNING" for machine in machines(cloud).values())


def _at_work(cloud: Emulator) -> bool:
    try:
        return (cloud.home(INSTANCE) / "at-work").exists()
    except LookupError:
        return False
