"""The emulator in the background: one for each folder, found through a file there, stopped when idle.

``python -m orchestrator.emulator.daemon SETTINGS``. SETTINGS is JSON: ``state`` (the folder),
``idle_s``, ``identity`` (the digest of its code), ``machine`` (created and stopped in a new folder), ``guest_path``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.base.clock import wait_for
from orchestrator.base.files import write_atomic
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import Latency, Scenario

#: The record of a daemon, ``{"url", "pid", "identity"}``, in its folder, readable by its user only.
RECORD = "daemon.json"
#: Exit code: the saved state is unreadable for this version.
UNREADABLE = 3
#: Fast, but visible: a start takes about three seconds.
_LATENCY = Latency(pending=0.1, provisioning=0.4, staging=0.6, boot=0.6, login=0.3, stop=0.8, delete=0.5, disk=0.3)
_LOOK_S = 1.0
_SEED_LIMIT_S = 60.0


def wait_until_stopped(emulator: Emulator, *, idle_s: float | None, seconds: float | None, record: Path | None) -> str:
    """Returns the reason to stop: a client's request, ``seconds`` passed, ``idle_s`` without use, or ``record`` is
    gone."""
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        left = _LOOK_S if until is None else until - time.monotonic()
        if left <= 0:
            return "its time limit was reached"
        if emulator.ended.wait(min(left, _LOOK_S)):
            return "it was asked to stop"
        if idle_s is not None and emulator.idle_s() >= idle_s:
            return "idle"
        if record is not None and not record.exists():
            return f"{record} was deleted"


def seed(emulator: Emulator, machine: dict[str, Any]) -> None:
    """Creates an instance that was booted once and stopped.

    Args:
        machine: project, zone, name, machine_type, image.

    Raises OSError: it does not boot here.
    """
    zone = f"projects/{machine['project']}/zones/{machine['zone']}"
    path = f"{zone}/instances/{machine['name']}"
    parameters = {"sourceImage": machine["image"], "diskType": f"zones/{machine['zone']}/diskTypes/pd-balanced"}
    body = {
        "name": machine["name"],
        "machineType": f"zones/{machine['zone']}/machineTypes/{machine['machine_type']}",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": parameters}],
        "networkInterfaces": [{"accessConfigs": [{"name": "External NAT"}]}],
        "metadata": {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]},
        "scheduling": {"onHostMaintenance": "TERMINATE", "automaticRestart": False},
    }
    emulator.request("POST", f"{zone}/instances", body)
    _until(emulator, path, "RUNNING")
    if not emulator.world.machines[path].booted:
        raise OSError("the instance does not boot; see the reason above")
    emulator.request("POST", f"{path}/stop", {})
    _until(emulator, path, "TERMINATED")


def _until(emulator: Emulator, path: str, status: str) -> None:
    is_there = lambda: emulator.world.machines[path].status == status and emulator.all_done()  # noqa: E731
    if not wait_for(is_there, _SEED_LIMIT_S, pause_s=0.01):
        raise OSError(f"the instance is not {status} after {_SEED_LIMIT_S:.0f} s")


def serve(settings: dict[str, Any]) -> int:
    """Serves until it is idle; :data:`RECORD` is there while it listens. Returns the exit code. Raises OSError,
    ConflictError: it cannot serve, whatever the state is."""
    state = Path(settings["state"])
    scenario = Scenario(guest_path=tuple(settings["guest_path"]))
    emulator = Emulator(state, scenario=scenario, fresh_secret=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, partial(_signalled, emulator))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        emulator.start()
    except (ValueError, LookupError, TypeError, AttributeError):
        traceback.print_exc()
        return UNREADABLE
    record = state / RECORD
    record.unlink(missing_ok=True)  # of a killed one
    try:
        _begin(emulator, state, settings["machine"])
        scenario.latency = _LATENCY
        value = {"url": emulator.url, "pid": os.getpid(), "identity": settings["identity"]}
        write_atomic(state, RECORD, json.dumps(value).encode(), mode=0o600, durable=False)
        why = wait_until_stopped(emulator, idle_s=settings["idle_s"], seconds=None, record=record)
        _say(f"stopping: {why}")
        with contextlib.suppress(OSError):
            record.unlink()
    finally:
        emulator.stop()
    return 0


def _signalled(emulator: Emulator, number: int, _frame: object) -> None:
    _say(f"signal {number}")
    emulator.ended.set()


def _say(text: str) -> None:
    """Writes to the log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")


def _begin(emulator: Emulator, state: Path, machine: dict[str, Any]) -> None:
    """Creates the first machine once; one that an earlier emulator did not finish is set to off."""
    begun = state / "begun"
    if begun.exists():
        return
    if emulator.world.machines:
        emulator.control.switch_all_off()
    else:
        seed(emulator, machine)
    begun.touch()


if __name__ == "__main__":
    sys.exit(serve(json.loads(sys.argv[1])))
