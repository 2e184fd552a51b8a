"""What somebody else does to a machine while a run's step works on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import INSTANCE, delete_by_hand, machines, start_by_hand, stop_by_hand
from tests.support.waiting import wait_for


def preempted(cloud: Emulator) -> None:
    cloud.preempt(INSTANCE)


def waking_preempted(cloud: Emulator) -> None:
    cloud.preempt(INSTANCE)


def host_error(cloud: Emulator) -> None:
    cloud.host_error(INSTANCE)


def stopped(cloud: Emulator) -> None:
    stop_by_hand(cloud)


def restarted(cloud: Emulator) -> None:
    stop_by_hand(cloud)
    start_by_hand(cloud)


def deleted(cloud: Emulator) -> None:
    delete_by_hand(cloud)


def shut_down(cloud: Emulator) -> None:
    cloud.control.happen(INSTANCE, "guestTerminate")


def fence(cloud: Emulator) -> None:
    cloud.control.happen(INSTANCE, "deferredStop")


def api_down(cloud: Emulator) -> None:
    cloud.faults.add(action="*", nth="1+", do={"http": 503})


def soon(cloud: Emulator, name: str) -> threading.Thread:
    """Let it happen as soon as the step has left its mark in the machine's home; or, by its name, while it wakes."""
    happen: Callable[[Emulator], None] = globals()[name]

    def watch() -> None:
        wait_for(lambda: _runs(cloud) if name.startswith("waking_") else _at_work(cloud))
        happen(cloud)
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
