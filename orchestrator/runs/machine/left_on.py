"""Machines of clouds that a command leaves on: at what price, and which command stops each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import DiskError

if TYPE_CHECKING:
    from orchestrator.leases.session_files import SessionFiles
    from orchestrator.leases.session_rules import Machine, SavedSession
    from orchestrator.machines.targets import CloudTarget
    from orchestrator.results.store.store import FileStore
    from orchestrator.runs.job.saved_plan import SavedPlan


@dataclass(frozen=True)
class LeftOn:
    """One machine that costs money after the command."""

    target: str
    instance: str
    #: None: no price is known.
    usd_per_hour: float | None
    #: The command that stops it.
    stop: str
    #: It was to be stopped, and is not known to be off.
    not_stopped: bool = False
    #: A session, a person or another run had it on before, and still has.
    as_before: bool = False
    project: str = ""
    #: Nobody pays: it is the sandbox's.
    emulated: bool = False

    @property
    def text(self) -> str:
        price = "at an unknown price" if self.usd_per_hour is None else f"at ${self.usd_per_hour:.2f}/h"
        return f"{self.target} ({self.instance}) stays on {price}; to stop it: {self.stop}"

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.target, "name": self.instance, "project": self.project, "usd_per_hour": self.usd_per_hour,
            "stop": self.stop, "not_stopped": self.not_stopped,
        }  # fmt: skip


def kept_by_session(saved: SavedSession, target: CloudTarget, machine: Machine | None) -> LeftOn:
    """Args: machine: as the session's journal knows it."""
    from orchestrator.leases.session_rules import rate

    emulated = saved.target.kind == "sandbox"
    price, stop = rate(saved, machine), "fcctl session stop"
    return LeftOn(saved.target.name, target.instance, price, stop, project=target.project, emulated=emulated)


class MachinesLeftOn:
    """What the workflows of one command say of machines. Safe with threads."""

    def __init__(self) -> None:
        self._runs: dict[str, None] = {}
        self._others: list[LeftOn] = []

    def had_by(self, run_id: str) -> None:
        """Notes a run whose machine this command used; its journal says whether it is on."""
        self._runs.pop(run_id, None)
        self._runs[run_id] = None

    def is_off(self, run_id: str) -> None:
        """The machine of a run was stopped after all."""
        self._runs.pop(run_id, None)

    def add(self, machine: LeftOn) -> None:
        """A machine without a run."""
        self._others.append(machine)

    @contextmanager
    def unless_stopped(self, machine: LeftOn) -> Iterator[None]:
        """The block stops ``machine``; one that does not come to its end leaves it on, as far as is known."""
        try:
            yield
        except BaseException:
            self.add(replace(machine, not_stopped=True))
            raise

    def found(self, store: FileStore, sessions: SessionFiles) -> list[LeftOn]:
        """Those that are on, as far as is known; of several runs on one machine, the last one says."""
        machines: dict[tuple[str, str], LeftOn | None] = {}
        for run_id in self._runs:
            left = _of_run(store, sessions, run_id)
            if left is not None:
                machines[left[0]] = left[1]
        machines.update({(one.project, one.instance): one for one in self._others})
        return [one for one in machines.values() if one is not None and not one.emulated]


def _of_run(store: FileStore, sessions: SessionFiles, run_id: str) -> tuple[tuple[str, str], LeftOn | None] | None:
    """The run's machine, and its state if it is on; None without a billed machine."""
    from orchestrator.runs.job.saved_plan import read_saved

    saved = read_saved(store, run_id)
    machine = saved.target.cloud if saved is not None else None
    if saved is None or machine is None or saved.fence_s is None or saved.target.kind == "sandbox":
        return None
    return (machine.project, machine.instance), _left(store, sessions, saved, machine)


def _left(store: FileStore, sessions: SessionFiles, saved: SavedPlan, machine: CloudTarget) -> LeftOn | None:
    from orchestrator.money.caps import last_change
    from orchestrator.runs.cost.machine_cost import rate_of

    run_id = saved.plan.run_id
    entries = store.journal_of(run_id)
    last = last_change(entries)
    if last is None or last.kind in ("acquire", "stopped"):
        return None
    how, by = str(last.data.get("how")), str(last.data.get("by"))
    if last.kind == "released" and how not in ("kept", "used"):
        return None
    down = f"fcctl hosts down {saved.target.name}"
    session = _session_of(sessions, saved.session or by)
    active = store.active()
    if session is None and store.is_complete(by):
        return None  # that run has released it since
    if session is not None:
        stop = session
    elif last.kind in ("cloud", "acquired") and run_id in active:
        stop = f"fcctl cancel {run_id}"
    else:
        stop = f"fcctl cancel {by}" if by in active else down
    return LeftOn(
        saved.target.name, machine.instance, rate_of(entries, saved), stop, not_stopped=last.kind == "unreleased",
        as_before=session is not None or how == "used", project=machine.project,
    )  # fmt: skip


def _session_of(sessions: SessionFiles, session_id: str) -> str | None:
    """The command that ends a session; None if there is no such session."""
    from orchestrator.leases.session_rules import everywhere

    with suppress(DiskError):  # they cannot be read
        return next((s.how_to_stop for s in everywhere(sessions) if s.saved.session_id == session_id), None)
    return None
