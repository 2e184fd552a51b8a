"""Planted bugs, one for each invariant: a simulation that does not find them proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest

from orchestrator.machines.provision import decide as decision
from orchestrator.machines.provision import release as releasing
from orchestrator.machines.provision.ready import Changes, find_machines
from orchestrator.machines.provision.release import Released
from orchestrator.money import audit, usage_recorder
from orchestrator.providers.gcp import cloud as gcp
from orchestrator.runs import actions as moves
from orchestrator.runs.cost import budget_guard as guard
from orchestrator.runs.cost import machine_cost
from orchestrator.runs.job import prepare, saved_plan
from orchestrator.runs.machine import release as hold_release
from orchestrator.runs.machine import run_lease
from orchestrator.runs.transfer import Collection
from orchestrator.sessions import session
from tests.simulation import cloud_port, commands
from tests.simulation.judge import first_line
from tests.simulation.schedule import Schedule, draw
from tests.simulation.world import Fault

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    name: str
    plant: Plant
    #: How the violation begins.
    says: str
    #: Where to begin to look: shortly before a seed that has found it, for a short search.
    seed: int = 0
    #: The one that finds it, where random ones seldom do.
    schedule: Schedule | None = None


MUTANTS: list[Mutant] = []


def planted(table: list[Mutant], says: str, **how: Any) -> Callable[[Plant], Plant]:
    """Into ``table``, by the function's name."""

    def add(plant: Plant) -> Plant:
        table.append(Mutant(plant.__name__.replace("_", " "), plant, says, **how))
        return plant

    return add


def found_by(mutant: Mutant) -> str | None:
    """How the first violation in 600 schedules begins, or that of the mutant's own schedule."""
    if mutant.schedule is not None:
        return first_line(mutant.schedule)
    seeds = range(mutant.seed, mutant.seed + 600)
    return next((failure for seed in seeds if (failure := first_line(draw(seed))) is not None), None)


@planted(MUTANTS, "vm was started")
def no_fence(patch: pytest.MonkeyPatch) -> None:
    """A machine is started without its time limit."""
    patch.setattr(decision, "_fence", lambda *_: None)


@planted(MUTANTS, "$", seed=8)
def longer_fence(patch: pytest.MonkeyPatch) -> None:
    """The limit that is set is not the one that was reckoned with."""
    wish = run_lease.MachineRequest
    patch.setattr(run_lease, "MachineRequest", lambda **kw: wish(**{**kw, "max_run_s": 3 * kw["max_run_s"]}))


@planted(MUTANTS, "20270115")
def nothing_fetched(patch: pytest.MonkeyPatch) -> None:
    """Results are called collected and were not."""
    patch.setattr(moves, "collect", lambda *_, **__: Collection(0, 0, []))


@planted(MUTANTS, "vm is ", seed=295)
def journal_too_late(patch: pytest.MonkeyPatch) -> None:
    """The cloud is asked first, and the journal told afterwards."""
    make = Changes.make

    def late(self: Changes, action: str, zone: str, change: Callable[[str], Any], limit_s: float) -> Any:
        lines: list[tuple[str, dict[str, object]]] = []
        hasty = replace(self, log=lambda kind, **data: lines.append((kind, data)))
        try:
            return make(hasty, action, zone, change, limit_s)
        finally:
            for kind, data in lines:
                self.log(kind, **data)

    patch.setattr(Changes, "make", late)


@planted(MUTANTS, "vm is ")
def never_let_go(patch: pytest.MonkeyPatch) -> None:
    """The run is over and the machine goes on."""

    def release(self: Any, **_: Any) -> None:
        self._log("release", policy="stop")
        self._log("released", how="untouched")

    patch.setattr(hold_release.Releaser, "release", release)


@planted(MUTANTS, "vm is ", seed=230)
def no_note_left(patch: pytest.MonkeyPatch) -> None:
    """What could not be stopped, or was handed on to another run, is not written down."""
    patch.setattr(hold_release.Releaser, "_add_pending", lambda *_, **__: None)


@planted(MUTANTS, "step ")
def submitted_again(patch: pytest.MonkeyPatch) -> None:
    """Whoever picks a run up begins it anew."""
    follow = moves.RunActions._follow

    def begin_anew(self: Any) -> None:
        if self.mode == "resume" and self.run_id[-1] != "z":
            plan = replace(self.saved.plan, run_id=f"{self.run_id[:-1]}z")
            self.link.call(lambda s: s.submit(plan, {}))
        follow(self)

    patch.setattr(moves.RunActions, "_follow", begin_anew)


@planted(MUTANTS, "2027", seed=5)
def nobody_picks_up(patch: pytest.MonkeyPatch) -> None:
    """What a dead controller left is left for good."""
    patch.setattr(commands, "recover", lambda services: [])


@planted(MUTANTS, "a run that stops at $")
def more_than_the_budget_buys(patch: pytest.MonkeyPatch) -> None:
    """The fence of a run that is to stop at its budget is reckoned without the budget, and nobody looks at it again."""
    patch.setattr(saved_plan, "fence_within", lambda *_: float("inf"))
    patch.setattr(prepare, "_check_cap", lambda *_: None)


@planted(MUTANTS, "$", seed=60)
def longer_session(patch: pytest.MonkeyPatch) -> None:
    """A session's machine is let run for longer than its budget lasts."""
    wish = session.MachineRequest
    patch.setattr(session, "MachineRequest", lambda **kw: wish(**{**kw, "max_run_s": 3 * kw["max_run_s"]}))
    patch.setattr(session, "arm_idle", lambda *_: 0.0)


@planted(MUTANTS, "vm is ", seed=162)
def session_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a dead fcctl had turned on for a session is called over, and left on."""
    patch.setattr(session.MachineLease, "release", lambda *_: [Released("gone", "us-west1-c")])


@planted(MUTANTS, "the day's cap is spent", seed=10)
def guard_asleep(patch: pytest.MonkeyPatch) -> None:
    """The guard never looks: a run goes on although what is spent elsewhere has used its cap up."""
    patch.setattr(guard.Guard, "look", lambda self: None)


@planted(MUTANTS, "the ledger has", seed=230)
def bill_runs_on(patch: pytest.MonkeyPatch) -> None:
    """The bill of a machine that was deleted unseen runs on until somebody comes."""
    patch.setattr(machine_cost.PowerOnPeriod, "seconds", property(lambda self: sum(self.parts.values())))
    patch.setattr(usage_recorder, "closings", lambda *_: [])
    for what in ("closings", "corrections", "bounds"):
        patch.setattr(audit, what, lambda *_: [])


@planted(MUTANTS, "a second vm is being created")
def no_lock(patch: pytest.MonkeyPatch) -> None:
    """Two fcctls of one computer turn a machine on side by side."""
    patch.setattr(cloud_port.Book, "turning_on", lambda *_: nullcontext(True))


@planted(MUTANTS, "vm is RUNNING after")
def no_second_look(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether another computer made a machine at the same moment."""
    patch.setattr(decision, "_delete_created", lambda *_: None)


@planted(MUTANTS, "vm is RUNNING after", seed=102)
def nothing_without_its_line(patch: pytest.MonkeyPatch) -> None:
    """On a full disk no machine is stopped: the journal has no room for the line that says so."""
    patch.setattr(moves, "may_wait", lambda *_: False)


@planted(
    MUTANTS,
    "vm is RUNNING after",
    schedule=Schedule(1, (Fault(1, "pending", 90.0), Fault(22, "interrupt")), ("run", "ps")),
)
def only_what_is_there(patch: pytest.MonkeyPatch) -> None:
    """A start that the cloud has not begun is not waited for: the machine is off."""
    patch.setattr(releasing, "find_settled", lambda parts, target, _: find_machines(parts.clouds.open(target), target))


@planted(MUTANTS, "vm is RUNNING after", schedule=Schedule(1, (Fault(1, "stale", 10.0),), ("run", "ps")))
def reads_believed(patch: pytest.MonkeyPatch) -> None:
    """A read that is behind an operation that is DONE is taken for the truth."""
    patch.setattr(gcp, "shows", lambda *_: True)
    patch.setattr(releasing, "shows", lambda *_: True)
