"""An episode of a search on several machines: what is typed, what goes wrong when, and what must hold throughout.

The workflows, the store and the decisions are the real ones, threads among them; the machines, the cloud, the links
and the time are not.
"""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from orchestrator.base.errors import FcctlError
from orchestrator.base.observer import Observer
from orchestrator.hosts.recover import recover
from orchestrator.machines.interfaces import Bundle, Login
from orchestrator.machines.targets import GcpTarget, SshTarget, StartOptions, Target
from orchestrator.money.book import SpendingBook
from orchestrator.money.reservations import Scope
from orchestrator.money.usage_recorder import UsageRecorder
from orchestrator.providers.registry import RecordingClouds
from orchestrator.runs.builder import run_there
from orchestrator.runs.job.prepare import RunRequest
from orchestrator.runs.reopen import cancel, with_members
from orchestrator.runs.run import Detached
from orchestrator.runs.services import Services
from orchestrator.sessions import session as sessions
from orchestrator.tune import fleet as conducting
from orchestrator.tune import member as fleet_member
from orchestrator.tune import tunnels as fleet_ways
from orchestrator.tune.fleet import FleetCoordinator, FleetPlanner, plan
from orchestrator.tune.search_file import SearchFile, SearchOptions, job_of, parse
from tests.simulation.accounts import RATE
from tests.simulation.cloud import Instance, SimulatedCloud
from tests.simulation.cloud_port import Book, CloudsPort
from tests.simulation.episode import ZONES, memory
from tests.simulation.fleet_checks import check_heard, check_in_order, check_left, check_refused
from tests.simulation.fleet_host import Hosts, Machine, Part
from tests.simulation.fleet_story import Command, Mishap, Story, Told
from tests.simulation.laptop import CountedSessions, CountedStore, Files, Nobody, VirtualClock, no_threads
from tests.simulation.threads import Threads
from tests.simulation.world import EPOCH, Actor, Fault, Killed, Violation, World
from tests.support.budgets import list_price, listed

SEARCH = parse(SearchFile.read("tune: saxpy\nparameters: {P: [1, 2]}\ncheck: 'true'\nbench: 'true'\n"
                          "metric: {reader: metrics, file: b.json, value: metrics.us}\n", "saxpy.yaml"))  # fmt: skip
#: The longest that a command may take, seconds.
MOST_S = 4 * 3600.0


@dataclass
class Fleet:
    """The machines, and the people who search on them."""

    story: Story
    root: Path
    world: World = field(init=False)
    cloud: SimulatedCloud = field(init=False)
    machines: dict[str, Machine] = field(default_factory=dict)
    threads: Threads | None = None
    #: The most that all commands together were allowed to spend, dollars.
    allowed: float = 0.0
    #: The runs that are one search, oldest first, as they were submitted.
    searches: list[str] = field(default_factory=list)
    stores: list[CountedStore] = field(default_factory=list)
    coordinator: FleetCoordinator | None = None
    #: All that the user was told.
    words: list[str] = field(default_factory=list)
    _parts: dict[str, Part] = field(default_factory=dict)
    #: Searches that there were before the command.
    before: int = 0

    def __post_init__(self) -> None:
        faults = {n: [Fault(n, "lost_reply")] for n in self.story.unanswered}
        self.world = World(faults, random.Random(self.story.seed))
        self.cloud = SimulatedCloud(self.world)
        self._numbers = itertools.count(40001)
        self.pages: dict[Any, Any] = {}
        self.locks: dict[Any, Any] = {}
        self.key = self.root / "key"
        self.key.write_text("a key\n")
        self.bundle = Bundle(self.key, "2" * 64, 6)
        self.targets: dict[str, Target] = {name: self._target(name) for name in self.story.names}
        self.world.on["made"] = lambda: None
        for name in self.story.names:
            self.machines[name] = machine = Machine(self.world, self.cloud, self._instance(name), name, self)
            machine.fits, machine.forwards = name not in self.story.unfit, name not in self.story.closed
        for mishap in self.story.mishaps:
            self.world.at(EPOCH + mishap.at, lambda m=mishap: self._strike(m))  # type: ignore[misc]

    def _target(self, name: str) -> Target:
        if name not in self.story.cloud:
            return SshTarget(name=name, host=name, reconnect_s=300)
        return GcpTarget(
            name=name, project="sim-project", instance=name.replace("l4", "vm"), zones=ZONES[:1], usd_per_hour=RATE,
            wake_timeout_s=300, stockout_wait_minutes=10, max_run_minutes=120, reconnect_s=300,
        )  # fmt: skip

    def _instance(self, name: str) -> Instance:
        target = self.targets[name]
        if isinstance(target, GcpTarget):
            made = self.cloud.add_stopped(ZONES[0], target.instance)
            made.boots = 1
            return made
        return Instance({"id": f"ssh-{name}", "name": name, "status": "RUNNING"}, up=True, boots=1)

    def _strike(self, mishap: Mishap) -> None:
        world, machine = self.world, self.machines[mishap.name]
        until = world.now + mishap.amount
        self.trace(f"  !! {mishap}")
        match mishap.kind:
            case "preempt" if mishap.name in self.story.cloud:
                self.cloud.preempt(machine.instance)
            case "preempt" | "crash":
                self.cloud.crash(machine.instance)
            case "forget":
                machine.runs.clear()
            case "cut" | "refuse" | "slow":
                setattr(machine, {"refuse": "refuses"}.get(mishap.kind, mishap.kind) + "_until", until)
            case "asleep" | "cloud_down" | "stockout":
                name = {"asleep": "link_down", "stockout": "no_stock"}.get(mishap.kind, mishap.kind)
                setattr(world, f"{name}_until", until)

    # ------------------------------------------------------------------------------------------ what machines ask for
    def number(self) -> int:
        return next(self._numbers)

    def wait(self, seconds: float, awaited: list[Any]) -> None:
        if self.threads is None:
            self.world.advance(seconds)
        else:
            self.threads.wait(seconds, awaited)

    def wake(self, awaited: list[Any]) -> None:
        if self.threads is not None:
            self.threads.wake(awaited)

    def members(self) -> Iterator[tuple[str, Part]]:
        for name, machine in self.machines.items():
            part = machine.working
            if part is not None and not part.is_search:
                yield name, part

    # --------------------------------------------------------------------------------------------------- one command
    def trace(self, line: str) -> None:
        self.world.trace.append(f"{self.world.now - EPOCH:9.1f} {line}")

    def services(self, actor: Actor, observer: Observer) -> Services:
        clock = VirtualClock(self.world, actor)
        book = Book(self.world, actor, self.pages, self.locks)
        results = self.root / "results"
        spending = SpendingBook(self.root / "state", clock, Scope("sim", str(results)))
        clouds = CloudsPort(self.cloud, actor, Login("me", self.key, "ssh-ed25519 AAAA"))
        witness = UsageRecorder(spending, clock, listed())
        store = CountedStore(results, clock, self.world, actor)
        self.stores.append(store)
        return Services(
            clock=clock, hosts=Hosts(actor, self, book), store=store, source=Files(),
            observer=observer, clouds=RecordingClouds(lambda: clouds, lambda: witness), book=book, notifier=Nobody(),
            open_book=lambda: spending, budget=listed(), price=list_price,
            bundles=lambda: SimpleNamespace(tune=lambda: self.bundle, find=lambda _: self.bundle),
            sessions=CountedSessions(results, clock, self.world, actor, "here"),
            recover_runs=recover, recover_sessions=sessions.recover, run_on_builder=run_there,
        )  # fmt: skip

    def command(self, number: int, what: Command) -> None:
        """One process, from its start to its end, however it ends."""
        actor = Actor(f"fcctl-{number}")
        told = Told(self.trace)
        self.stores, self.coordinator = [], None
        self.before = len(self.searches)
        strikes = {at: error for command, at, error in self.story.strikes if command == number}
        began = self.world.now
        self.threads = Threads(self.world, actor, self.world.rng, strikes)
        clock = SimpleNamespace(monotonic=lambda: self.world.now)
        try:
            with (
                mock.patch.object(fleet_ways, "time", clock),
                self.threads.in_place_of(conducting, fleet_member, fleet_ways),
            ):
                ending = self._carry_out(what, actor, told)
        finally:
            struck_at, self.threads = self.threads.struck_at, None
            actor.alive = False
            for store in self.stores:
                for active in store.held:
                    active.release()
        self.trace(f"{what} {ending}")
        if self.world.now - began > MOST_S:
            raise Violation(f"{what} took {self.world.now - began:.0f} s")
        if what == "tune" and ending.startswith("ended") and not (self.story.mishaps or self.story.unanswered):
            check_refused(self, told)
        if self.story.is_calm and what == "tune" and ending != "killed":
            check_in_order(self, told, struck_at)
        self.check(what, ending, told)

    def _carry_out(self, what: Command, actor: Actor, told: Told) -> str:
        services = self.services(actor, told)
        try:
            match what:
                case "tune":
                    return self._tune(actor, told, services)
                case "ps":
                    recover(services)
                case "cancel":
                    for run_id in with_members(services.store, self._active(services)):
                        cancel(services, run_id, reason="cancelled by the user")
        except Killed:
            return "killed"
        except Detached as left:
            return f"detached: {left.run_id}"
        except KeyboardInterrupt:
            return "interrupted"
        except FcctlError as error:
            return f"refused: {error.message} | {error.hint}"
        return "ended"

    def _active(self, services: Services) -> list[str]:
        return [run_id for run_id in self.searches if run_id in services.store.active()]

    def _tune(self, actor: Actor, told: Told, services: Services) -> str:
        place = FleetPlanner(self.root, "sim", listed())
        hosts = [self.targets[name] for name in self.story.names]
        job = job_of(SEARCH, SearchOptions(timeout_s=self.story.limit_s, host=hosts[0].name))
        usd = self.story.budget_usd
        wanted = RunRequest(job, hosts[0], {}, None, usd, usd is not None, {SEARCH.name: SEARCH})
        plans = plan(services, place, wanted, hosts[1:])
        self.allowed += plans.worst_case_usd
        self.coordinator = FleetCoordinator(
            lambda o: self.services(actor, o), services.hosts, plans, StartOptions(), told
        )  # type: ignore[arg-type]
        finished = self.coordinator.coordinate()
        return f"ended: {finished.record.status}" if finished is not None else "ended without a record"

    # -------------------------------------------------------------------------------------------------- what must hold
    def check(self, what: Command, ending: str, told: Told) -> None:
        """After every command."""
        spent, going_down = self.cloud.spent(RATE), self.world.longest_stop_s * len(self.cloud.billed) * RATE / 3600
        if spent > self.allowed + going_down + 1e-6:
            raise Violation(f"${spent:.4f} spent, ${self.allowed:.4f} allowed")
        for note in told.notes:
            if "unexpected" in note:
                raise Violation(note)
        if what == "tune":
            check_heard(self, what, ending, told)
            self.words += [*told.notes, ending]
            if ending != "killed":
                check_left(self, ending, "\n".join(self.words))

    @property
    def parts(self) -> dict[str, Part]:
        return self._parts

    def begun(self, run: Part) -> None:
        self._parts[run.plan.run_id] = run
        if run.is_search:
            self.searches.append(run.plan.run_id)

    def play(self) -> None:
        with no_threads():
            for number, what in enumerate(self.story.commands):
                self.command(number, what)
                self.world.advance(self.world.rng.choice((5.0, 120.0, 1800.0)))
            self.world.faults.clear()
            for number in (98, 99):
                self.world.advance(3 * 3600.0)
                self.command(number, "ps")
        self.converged()

    def converged(self) -> None:
        """Long after: everything is off, nothing is left to be done."""
        for name, machine in self.machines.items():
            if name in self.story.cloud and machine.instance.is_billed:
                raise Violation(f"{name} is still on, hours later")
            if machine.working is not None:
                raise Violation(f"{machine.working.plan.run_id} is still at work on {name}, hours later")
        store = self.services(Actor("judge"), Told(self.trace)).store
        if store.pending_releases():
            raise Violation(f"still to be stopped, hours later: {store.pending_releases()}")
        for run_id in store.active():
            if "stopped" not in [entry.kind for entry in store.journal_of(run_id)]:
                raise Violation(f"{run_id} is still not complete, hours later")


def play(story: Story, trace: list[str] | None = None) -> str | None:
    """None, or what was violated.

    Args:
        trace: gets each thing that happened.
    """
    root = Path(tempfile.mkdtemp(prefix="fcctl-sim-", dir=memory()))
    fleet = Fleet(story, root)
    try:
        fleet.play()
    except Violation as e:
        return f"{e}\n{story}\n  " + "\n  ".join(fleet.world.trace[-400:])
    finally:
        shutil.rmtree(root, ignore_errors=True)
        if trace is not None:
            trace += fleet.world.trace
    return None
