"""One episode: a few commands of fcctl on a virtual laptop, with a schedule of faults, and what must hold throughout.

The workflows, the store and the decisions are the real ones; the cloud, the machine, the link and the clock are not.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.base.errors import FcctlError, LinkLost
from orchestrator.base.observer import NoteKeeper
from orchestrator.hosts import recover
from orchestrator.machines.cloud import Endpoint
from orchestrator.machines.interfaces import Login
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.caps import Budget
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.reservations import Reservation, Scope
from orchestrator.money.usage_recorder import UsageRecorder
from orchestrator.providers.registry import RecordingClouds
from orchestrator.runs.builder import run_there
from orchestrator.runs.run import Detached
from orchestrator.runs.services import Services
from orchestrator.sessions import session as sessions
from orchestrator.tune.bundle import TuneBundles
from tests.simulation import commands, invariants, prunes
from tests.simulation.accounts import RATE, check_start_fits, same_window
from tests.simulation.cloud import Instance, SimulatedCloud
from tests.simulation.cloud_port import Book, CloudsPort
from tests.simulation.company import Company
from tests.simulation.firings import Fired
from tests.simulation.host import HERE, Guest, Hosts
from tests.simulation.laptop import CountedBook, CountedSessions, CountedStore, Files, Nobody, VirtualClock, no_threads
from tests.simulation.schedule import ELSEWHERE, PROJECT_USD, FiringPlan, Schedule
from tests.simulation.world import EPOCH, Actor, Fault, Killed, Violation, World
from tests.support.budgets import list_price, listed

#: The workspace whose ledger has it when :meth:`Episode._bill` happens.
BILLED = "sim"
#: Whoever comes in between; the schedule's faults are not its own.
OTHER = "other"
ZONES = ["us-west1-c", "us-west1-a", "us-central1-a"]


@dataclass(frozen=True)
class Workspace:
    """A workspace on a computer."""

    root: Path
    computer: str
    key: Path
    pages: dict[tuple[str, str], Endpoint]
    locks: dict[tuple[str, str], Actor]
    target: GcpTarget

    def beside(self, name: str, **changes: Any) -> Workspace:
        """Another one, where people think of the zones the other way round."""
        root = self.root.parent / name
        root.mkdir(exist_ok=True)
        target = self.target.model_copy(update={"zones": self.target.zones[::-1]})
        return replace(self, root=root, target=target, **changes)


@dataclass
class Episode:
    """The stage, and the people on it."""

    schedule: Schedule
    root: Path
    world: World = field(init=False)
    cloud: SimulatedCloud = field(init=False)
    guests: dict[str, Guest] = field(default_factory=dict)
    workspaces: list[Workspace] = field(default_factory=list)
    company: Company = field(init=False)
    fired: Fired = field(init=False)
    targets: dict[str, GcpTarget] = field(default_factory=dict)
    #: The most that all commands together were allowed to spend, dollars.
    allowed: float = 0.0
    #: By process: the worst case that was named before its run started, dollars.
    named: dict[str, float] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    #: By process: the run that it started.
    run_of: dict[str, str] = field(default_factory=dict)
    #: The processes that the book let start something.
    reserved_by: set[str] = field(default_factory=set)
    _depth: int = 0

    def __post_init__(self) -> None:
        schedule = self.schedule
        faults: dict[int, list[Fault]] = {}
        for fault in schedule.faults:
            faults.setdefault(fault.at, []).append(fault)
        self.world = World(faults, random.Random(schedule.seed), now=EPOCH + schedule.begins)
        self.cloud = SimulatedCloud(self.world)
        self.cloud.before_delete = lambda instance: prunes.check_delete(self, instance)
        self.cloud.before_delete_snapshot = lambda snapshot: prunes.check_delete_snapshot(self, snapshot)
        self.cloud.content_of = lambda instance: self.guests[instance.id].content()
        self.world.on["made"] = self._furnish
        self.world.on["crash"] = self._crash
        self.world.on["other"] = self._other
        self.world.on["beside"] = self._beside
        self.world.on["abroad"] = self._abroad
        self.world.on["bill"] = self._bill
        self.company = Company(self.world)
        self.budget = self.with_caps()
        self.fired = Fired(schedule.firings or FiringPlan())
        target = GcpTarget(
            name="l4", project="sim-project", instance="vm", zones=ZONES, release=schedule.release,
            usd_per_hour=RATE, wake_timeout_s=300, stockout_wait_minutes=10, max_run_minutes=120, reconnect_s=300,
            on_stockout="rebuild" if schedule.rebuild else "wait",
            disk_usd_per_gib_month=0.0 if schedule.free_disks else None,
        )  # fmt: skip
        key, root = self.root / "key", self.root / BILLED
        key.write_text("a key\n")
        root.mkdir()
        self.here = Workspace(root, "here", key, {}, {}, target)
        self.workspaces.append(self.here)
        self.targets[target.name] = target
        self.world.no_stock_in = ZONES[0] if schedule.rebuild else None
        if schedule.exists:
            self.cloud.add_stopped(ZONES[0], "vm").boots = 1
        self._furnish()
        here = Instance({"id": HERE, "name": HERE, "status": "RUNNING"}, up=True, boots=1)
        self.guests[HERE] = Guest(self.world, self.cloud, here)

    def with_caps(self, **more: float | None) -> Budget:
        own = self.schedule
        caps = {"per_day_usd": own.day_cap, "per_month_usd": own.month_cap, "project_usd": own.project_cap}
        return listed(**caps, **more)

    def _furnish(self) -> None:
        for instance in self.cloud.instances.values():
            if instance.id not in self.guests:
                guest = self.guests[instance.id] = Guest(self.world, self.cloud, instance)
                if instance.made_of:
                    copied = self.cloud.snapshots[instance.made_of].runs
                    guest.runs = {run_id: replace(run, results=list(run.results)) for run_id, run in copied.items()}

    def _crash(self) -> None:
        for instance in self.cloud.instances.values():
            self.cloud.crash(instance)

    # --------------------------------------------------------------------------------------------------- one command
    def book(self, actor: Actor, workspace: Workspace, clock: VirtualClock, firing: str | None = None) -> CountedBook:
        """The book of the workspace's computer, as the workspace sees it."""
        machines = {(t.project, t.instance) for t in self.targets.values()}
        scope = Scope(workspace.root.name, str(workspace.root / "results"), frozenset(machines))
        folder = self.root / f"state-{workspace.computer}"
        return CountedBook(
            folder, clock, scope, firing, self.world, actor, partial(self._reserved, workspace, actor.name)
        )

    def _reserved(self, workspace: Workspace, process: str, reservation: Reservation) -> None:
        self.reserved_by.add(process)
        if reservation.owner != "kept":
            check_start_fits(self, reservation.usd, workspace)
            self.allowed += reservation.usd

    def services(self, actor: Actor, workspace: Workspace | None = None, firing: str | None = None) -> Services:
        workspace = workspace or self.here
        clock = VirtualClock(self.world, actor)
        book = Book(self.world, actor, workspace.pages, workspace.locks)
        results = workspace.root / "results"
        store = CountedStore(results, clock, self.world, actor)
        spending = self.book(actor, workspace, clock, firing)
        clouds = CloudsPort(self.cloud, actor, Login("me", workspace.key, "ssh-ed25519 AAAA"))
        witness = UsageRecorder(spending, clock, listed())
        return Services(
            clock=clock, hosts=Hosts(actor, self.cloud, self.guests, book), store=store, source=Files(),
            observer=NoteKeeper(), clouds=RecordingClouds(lambda: clouds, lambda: witness),
            book=book, price=list_price, notifier=Nobody(), open_book=lambda: spending, budget=self.budget,
            bundles=lambda: TuneBundles(self.root),
            sessions=CountedSessions(results, clock, self.world, actor, workspace.computer),
            recover_runs=recover.recover, recover_sessions=sessions.recover, run_on_builder=run_there,
        )  # fmt: skip

    def stores(self) -> list[CountedStore]:
        """Of all workspaces, for whoever judges; its own effects are nobody's."""
        return [self.services(Actor("judge"), workspace).store for workspace in self.workspaces]  # type: ignore[misc]

    def note(self, line: str) -> None:
        self.world.trace.append(f"{self.world.now - EPOCH:9.1f}      {line}")

    def command(self, what: str, name: str, workspace: Workspace | None = None) -> str:
        """One command of one process, from its start to its end, however it ends; how that was."""
        workspace = workspace or self.here
        carry_out = partial(commands.carry_out, self, what, workspace)
        services, ending = self.process(name, workspace, carry_out)
        self.note(f"{name}: {what} {ending}")
        if name != OTHER:
            self.company.finish()
        self.check(services)
        return ending

    def check(self, services: Services) -> None:
        """After each command, whose process has ended."""
        invariants.check(self, services)

    def process(
        self, name: str, workspace: Workspace, act: Callable[[Services, Actor], object], firing: str | None = None
    ) -> tuple[Services, str]:
        """What a process does from its start to its end, and how it ended."""
        actor = Actor(name, computer=workspace.computer)
        services = self.services(actor, workspace, firing)
        try:
            act(services, actor)
        except Killed:
            ending = "killed"
        except (Detached, KeyboardInterrupt):
            ending = "detached"
        except LinkLost:
            ending = "link lost"
        except FcctlError as e:
            ending = f"refused: {e.message}"
        else:
            ending = "ended"
        finally:
            actor.alive = False
            for active in [*services.store.held, *services.sessions.held]:  # type: ignore[attr-defined]
                active.release()
        return services, ending

    # ------------------------------------------------------------------------------------------------ who else is there
    def _other(self) -> None:
        """Another fcctl on this laptop, while the first is in the middle of something."""
        if self._depth:
            return
        self._depth += 1
        try:
            self.command(self.world.rng.choice(("ps", "run", "cancel")), OTHER)
        finally:
            self._depth -= 1

    def _beside(self) -> None:
        """Another fcctl on this laptop goes on beside the first, in its workspace or in another one."""
        if self.schedule.rebuild:
            self._join(self.here, ("prune",))
        elif self.world.rng.random() < 0.5:
            self._join(self.here, ("ps", "run", "cancel"))
        else:
            self._join(self.here.beside("beside"), ("run",))

    def _abroad(self) -> None:
        """Another fcctl, which has nothing in common with the first but its target's name."""
        key = self.root / "key-abroad"
        key.write_text("another key\n")
        self._join(self.here.beside("abroad", computer="abroad", key=key, pages={}, locks={}), ("run",))

    def _join(self, workspace: Workspace, choices: tuple[str, ...]) -> None:
        if self._depth:
            return
        self._depth += 1
        if workspace.root not in [known.root for known in self.workspaces]:
            self.workspaces.append(workspace)
        what = self.world.rng.choice(choices)
        self.company.join(lambda: self._live_beside(what, workspace))

    def _live_beside(self, what: str, workspace: Workspace) -> None:
        try:
            self.command(what, OTHER, workspace)
        finally:
            self._depth -= 1

    def _bill(self) -> None:
        """A machine of the same workspace that somebody had started by hand, as an audit finds it: a cap is spent."""
        now, began = self.world.now, self.world.now - 3600.0
        record = UsageRecord(
            project="sim-project", zone=ZONES[0], name=ELSEWHERE, instance_id="0", target=ELSEWHERE,
            usd_per_hour=PROJECT_USD, started=began, stopped=now, seen=now,
        )  # fmt: skip
        judge = Actor("judge")
        self.book(judge, self.here, VirtualClock(self.world, judge)).add_usage(record)
        over = self.schedule.spent_elsewhere
        # What a run in a session may cost was reserved when the session began.
        if over is None or "session" in self.schedule.commands or not same_window(over, began, now):
            return
        if self.world.cap_spent_at is None:
            self.world.cap_spent_at, self.world.cap_spent_over = now, over

    # -------------------------------------------------------------------------------------------------------- it all
    def play(self) -> None:
        """The commands, with time in between, then a long time; every invariant is looked at on the way."""
        rng = self.world.rng
        with no_threads(), closing(self.company):
            for number, what in enumerate(self.schedule.commands):
                if what == "never":
                    break
                ending = self.command(what, f"fcctl-{number}")
                invariants.check_off_after(self, what, ending)
                self.world.advance(rng.choice((5.0, 120.0, 1800.0, 9000.0)))
            self.world.end_of_trouble()
            if "never" in self.schedule.commands:
                self.world.advance(8 * 3600)
            else:
                # A tick at the end tells what became of the firing before it; it may begin one that is to end, too.
                for number, what in enumerate(("tick", "ps", "ps") if self.schedule.firings else ("ps", "ps")):
                    self.world.advance(3 * 3600)
                    for workspace in self.workspaces:
                        self.command(what, f"last-{number}", workspace)
            invariants.check_at_the_end(self)


def play(schedule: Schedule) -> str | None:
    """Play one schedule; None, or what was violated."""
    root = Path(tempfile.mkdtemp(prefix="fcctl-sim-", dir=memory()))
    episode = Episode(schedule, root)
    try:
        episode.play()
    except Violation as e:
        return f"{e}\n  " + "\n  ".join(episode.world.trace[-60:])
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return None


def memory() -> str | None:
    """A folder in memory, where there is one: nobody's disk has to survive this."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
