"""One episode: a few commands of fcctl on a virtual laptop, with a schedule of faults, and what must hold throughout.

The workflows, the store and the decisions are the real ones; the cloud, the machine, the link and the clock are not.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.base.errors import FcctlError, LinkLost
from orchestrator.hosts import recover
from orchestrator.hosts.audit import audit
from orchestrator.hosts.recover import settle
from orchestrator.leases.find import underway
from orchestrator.machines.cloud import Endpoint
from orchestrator.machines.cloud_api import Login
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.ledger import Sighting
from orchestrator.money.record_power import Witness
from orchestrator.money.usage_file import SightingFile
from orchestrator.money.watched_cloud import WatchedClouds
from orchestrator.runs.cancel import cancel
from orchestrator.runs.cost.spending import lines as ledger_lines
from orchestrator.runs.job.job import Job, Step
from orchestrator.runs.job.prepare import Prepared, Wanted, prepare
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.reopen import attach, new_link, saved_plan
from orchestrator.runs.resume_run import go_on
from orchestrator.runs.run import Detached, run
from orchestrator.runs.services import Services
from orchestrator.runs.wake import fetch, waking_usd
from orchestrator.sessions import session as sessions
from orchestrator.sessions.plan import plan_session
from orchestrator.tune.bundle import TuneBundles
from orchestrator.tune.fleet.resume import check_alone
from tests.simulation.cloud import Book, CloudsPort, Instance, SimulatedCloud
from tests.simulation.company import Company
from tests.simulation.host import Guest, Hosts
from tests.simulation.laptop import CountedSessions, CountedStore, Files, Nobody, Silent, VirtualClock, no_threads
from tests.simulation.schedule import PROJECT_USD, Schedule
from tests.simulation.world import EPOCH, Actor, Fault, Killed, Violation, World
from tests.support.budgets import listed

RATE = 0.72
SESSION_USD = 0.8
ELSEWHERE = "elsewhere"
#: The workspace whose books have it when :meth:`Episode._bill` happens.
BILLED = "sim"
#: Whoever comes in between; the schedule's faults are not its own.
OTHER = "other"
ZONES = ["us-west1-c", "us-west1-a", "us-central1-a"]
#: A command that ended leaves nothing on; how long it may still take for what it asked for to come true.
SETTLED_S = 30.0


@dataclass(frozen=True)
class Office:
    """A workspace on a computer."""

    root: Path
    computer: str
    key: Path
    pages: dict[tuple[str, str], Endpoint]
    locks: dict[tuple[str, str], Actor]
    target: GcpTarget

    def beside(self, name: str, **changes: Any) -> Office:
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
    offices: list[Office] = field(default_factory=list)
    company: Company = field(init=False)
    #: The most that all commands together were allowed to spend, dollars.
    allowed: float = 0.0
    runs: list[str] = field(default_factory=list)
    _depth: int = 0

    def __post_init__(self) -> None:
        faults: dict[int, list[Fault]] = {}
        for fault in self.schedule.faults:
            faults.setdefault(fault.at, []).append(fault)
        self.world = World(faults, random.Random(self.schedule.seed))
        self.cloud = SimulatedCloud(self.world)
        self.world.on["made"] = self._furnish
        self.world.on["crash"] = self._crash
        self.world.on["other"] = self._other
        self.world.on["beside"] = self._beside
        self.world.on["abroad"] = self._abroad
        self.world.on["bill"] = self._bill
        self.company = Company(self.world)
        self.budget = listed(project_usd=self.schedule.project_cap)
        target = GcpTarget(
            name="l4", project="sim-project", instance="vm", zones=ZONES, release=self.schedule.release,
            usd_per_hour=RATE, wake_timeout_s=300, stockout_wait_minutes=10, max_run_minutes=120, reconnect_s=300,
        )  # fmt: skip
        key, root = self.root / "key", self.root / BILLED
        key.write_text("a key\n")
        root.mkdir()
        self.here = Office(root, "here", key, {}, {}, target)
        self.offices.append(self.here)
        if self.schedule.exists:
            self.cloud.add_stopped("sim-project", ZONES[0], "vm").boots = 1
        self._furnish()

    def _furnish(self) -> None:
        for instance in self.cloud.instances.values():
            if instance.view.id not in self.guests:
                self.guests[instance.view.id] = Guest(self.world, self.cloud, instance)

    def _crash(self) -> None:
        for instance in self.cloud.instances.values():
            self.cloud.crash(instance)

    # --------------------------------------------------------------------------------------------------- one command
    def services(self, actor: Actor, office: Office | None = None) -> Services:
        office = office or self.here
        clock = VirtualClock(self.world, actor)
        book = Book(self.world, actor, office.pages, office.locks)
        results = office.root / "results"
        store = CountedStore(results, clock, self.world, actor)
        sightings = SightingFile(results)
        clouds = CloudsPort(self.cloud, actor, Login("me", office.key, "ssh-ed25519 AAAA"))
        witness = Witness(sightings, clock, listed())
        return Services(
            clock=clock, hosts=Hosts(actor, self.cloud, self.guests, book), store=store, source=Files(),
            observer=Silent(), clouds=WatchedClouds(lambda: clouds, lambda: witness),
            book=book, notifier=Nobody(), sightings=sightings, bundles=TuneBundles(self.root),
            sessions=CountedSessions(results, clock, self.world, actor, office.computer),
            recover_runs=recover.settle, recover_sessions=sessions.settle,
        )  # fmt: skip

    def command(self, what: str, name: str, office: Office | None = None) -> str:
        """One command of one process, from its start to its end, however it ends; how that was."""
        office = office or self.here
        actor = Actor(name, computer=office.computer)
        services = self.services(actor, office)
        try:
            self._carry_out(what, services, office)
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
        self.world.trace.append(f"{self.world.now - EPOCH:9.1f}      {name}: {what} {ending}")
        if name != OTHER:
            self.company.finish()
        self.check(services)
        return ending

    def _carry_out(self, what: str, services: Services, office: Office) -> None:
        if what == "run":
            self._run(services, office)
            return
        if what == "session":
            self._session(services)
            return
        states = settle(services)
        if what == "session stop":
            for found in list(underway(services.sessions)):
                sessions.stop(services, found.saved.session_id, force=True)
            return
        each: dict[str, Callable[[str], object]] = {
            "attach": lambda run_id: attach(services, run_id),
            "cancel": lambda run_id: cancel(services, run_id, reason="cancelled by the user"),
            "wake": lambda run_id: self._fetch(services, run_id),
            "go on": lambda run_id: go_on(services, run_id, self._agree, check_alone),
        }
        wanted = [s.run_id for s in states if s.state == "waiting" or what in ("attach", "cancel")]
        for run_id in wanted if what in each else ():
            try:
                each[what](run_id)
            except FcctlError as e:
                self.world.trace.append(f"{self.world.now - EPOCH:9.1f}      {what} {run_id}: {e.message}")

    def _session(self, services: Services) -> None:
        self.world.advance(0.01)
        saved = plan_session(services, self.budget, self.here.target, SESSION_USD, None, 10.0, "sim")
        self.allowed += saved.worst_case_usd
        sessions.start(services, saved)

    def _fetch(self, services: Services, run_id: str) -> None:
        saved = saved_plan(services, run_id)
        self.allowed += waking_usd(saved) if saved is not None else 0.0
        fetch(services, run_id)

    def _agree(self, saved: SavedPlan) -> None:
        self.allowed += saved.worst_case_usd

    def _run(self, services: Services, office: Office) -> None:
        prepared = self._prepared(services, office)
        if prepared.saved.session is None or prepared.saved.session_abroad:  # else it is the session's money
            self.allowed += prepared.saved.worst_case_usd
            if self.schedule.stop_at is not None and prepared.saved.worst_case_usd > self.schedule.stop_at:
                raise Violation(f"a run that stops at ${self.schedule.stop_at} is let cost more")
        self.runs.append(prepared.saved.plan.run_id)
        link = new_link(services, office.target)
        if services.book.known("sim-project", "vm") is not None:
            link.open_soon()
        run(services, link, prepared.saved, prepared.source)

    def _prepared(self, services: Services, office: Office) -> Prepared:
        steps = [
            Step(id="build", run="x", timeout="3m", activity="build"),
            Step(id="test", run="x", timeout="4m"),
            Step(id="bench", run="x", timeout="8m", activity="bench"),
        ]
        job = Job(job="bench", steps=steps)
        self.world.advance(0.01)  # an attempt is known by the moment it was planned
        return prepare(services, office.root, office.root.name, self.budget, self._wanted(job, office))

    def _wanted(self, job: Job, office: Office) -> Wanted:
        return Wanted(job, office.target, {}, None, self.schedule.stop_at, self.schedule.stop_at is not None)

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
        if self.world.rng.random() < 0.5:
            self._join(self.here, ("ps", "run", "cancel"))
        else:
            self._join(self.here.beside("beside"), ("run",))

    def _abroad(self) -> None:
        """Another fcctl, which has nothing in common with the first but its target's name."""
        key = self.root / "key-abroad"
        key.write_text("another key\n")
        self._join(self.here.beside("abroad", computer="abroad", key=key, pages={}, locks={}), ("run",))

    def _join(self, office: Office, commands: tuple[str, ...]) -> None:
        if self._depth:
            return
        self._depth += 1
        if office.root not in [known.root for known in self.offices]:
            self.offices.append(office)
        what = self.world.rng.choice(commands)
        self.company.join(lambda: self._live_beside(what, office))

    def _live_beside(self, what: str, office: Office) -> None:
        try:
            self.command(what, OTHER, office)
        finally:
            self._depth -= 1

    def _bill(self) -> None:
        """A machine of the same workspace that somebody had started by hand, as an audit finds it: the cap is spent."""
        now = self.world.now
        word = Sighting(
            project="sim-project", zone=ZONES[0], name=ELSEWHERE, instance_id="0", target=ELSEWHERE,
            usd_per_hour=PROJECT_USD, started=now - 3600.0, stopped=now, seen=now,
        )  # fmt: skip
        SightingFile(self.here.root / "results").note(word)
        # What a run in a session may cost was reserved when the session began.
        capped = self.schedule.project_cap is not None and "session" not in self.schedule.commands
        if capped and self.world.cap_spent_at is None:
            self.world.cap_spent_at = now

    # -------------------------------------------------------------------------------------------------------- it all
    def play(self) -> None:
        """The commands, with time in between, then a long time; every invariant is looked at on the way."""
        rng = self.world.rng
        with no_threads(), closing(self.company):
            for number, what in enumerate(self.schedule.commands):
                if what == "never":
                    break
                ending = self.command(what, f"fcctl-{number}")
                self._after(ending)
                self.world.advance(rng.choice((5.0, 120.0, 1800.0, 9000.0)))
            self.world.faults.clear()
            self.world.link_down_until = self.world.cloud_down_until = self.world.no_stock_until = 0.0
            if "never" in self.schedule.commands:
                self.world.advance(8 * 3600)
            else:
                for number in range(2):
                    self.world.advance(3 * 3600)
                    for office in self.offices:
                        self.command("ps", f"last-{number}", office)
            self.converged()

    # -------------------------------------------------------------------------------------------------- what must hold
    def check(self, services: Services) -> None:
        """After every command: money, results."""
        spent = self.cloud.spent(RATE)
        # A system that is slow to go down is on for so long past its fence; nobody can shorten that.
        going_down = self.world.stop_seconds * len(self.cloud.starts) * RATE / 3600
        limit = self.allowed + self._by_console() + going_down
        if spent > limit + 1e-6:
            raise Violation(f"${spent:.4f} spent, ${limit:.4f} allowed")
        for guest in self.guests.values():
            for run_id, found in guest.runs.items():
                self._results(services, guest, run_id, found.ended)

    def _by_console(self) -> float:
        """What a person's own starts may cost: fcctl set their limit, and has no say in how many there are."""
        return sum(limit + 90 for limit in self.cloud.console_limits) * RATE / 3600

    def _results(self, services: Services, guest: Guest, run_id: str, ended: bool) -> None:
        """A step that finished has its result here, or still there and a run here that will ask for it."""
        store = self._store_of(services, run_id)
        there = guest.files(guest.runs[run_id])
        if not store.is_complete(run_id):
            if run_id not in store.active():
                raise Violation(f"nobody remembers {run_id}, whose results are on the machine")
            return
        record = store.get(run_id)
        if len(self.offices) > 1 and record.status == "lost" and "is gone" in (record.message or ""):
            return  # who shares nothing with the run cannot know that its results are on the disk that is deleted
        for path, content in there.items():
            here = store.folder(run_id) / path
            if path.startswith("steps/") and (not here.is_file() or here.read_bytes() != content):
                raise Violation(f"{run_id} is complete as {record.status}, and {path} stayed behind")
        if not ended and guest.instance in self.cloud.instances.values():
            raise Violation(f"{run_id} is complete as {record.status}, and goes on at the machine")

    def _store_of(self, services: Services, run_id: str) -> Any:
        """Where the run is known; if nowhere, where somebody looks for it."""
        stores = [services.store, *(self.services(Actor("judge"), office).store for office in self.offices)]
        return next((s for s in stores if s.is_complete(run_id) or run_id in s.active()), services.store)

    def _after(self, ending: str) -> None:
        """A run that was seen to its end, or refused, leaves no machine on behind it."""
        if self.schedule.release == "keep" or not ending.startswith(("ended", "refused")) or self._live():
            return
        self.world.advance(SETTLED_S + self.world.stop_seconds)
        for instance in self.cloud.running():
            if not self._excused(instance):
                raise Violation(f"{instance.view.name} is {instance.view.status} after a command that {ending}")

    def _live(self) -> bool:
        results = [office.root / "results" for office in self.offices]
        sessions_open = [p for r in results for p in (r / "sessions").glob("2*") if not (p / "end.json").exists()]
        return bool(sessions_open) or any(True for r in results for _ in (r / "active").glob("2*"))

    def _excused(self, instance: Instance) -> bool:
        """Whether something else turns it on or off: a person did, or a note was left that it could not be stopped."""
        debts = [d for office in self.offices for d in self.services(Actor("judge"), office).store.owed().values()]
        owed = {hold["zone"] for debt in debts for hold in debt["holds"]}
        return self.cloud.starts[-1:] == ["console"] or instance.view.zone in owed

    def _books(self, services: Services) -> None:
        """The ledger knows what was billed: not more than was, and all of it if fcctl alone turned machines on.

        With a laptop whose clock jumps, what a run says of its times does not fit what the cloud says; a cloud that
        does not answer leaves a run to assume the worst; two runs side by side both use the same seconds. The ledger
        shows the difference; here it is left alone.
        """
        kinds = {fault.kind for fault in self.schedule.faults}
        if kinds & {"skew", "cloud_down", "lost_reply", "other", "beside", "abroad"}:
            return
        audit(services, {"l4": self.here.target}, listed(), workspace="sim")
        lines = [line for line in ledger_lines(services) if line.what is None]
        known = sum(line.seconds for line in lines if not (line.machine or "").startswith(ELSEWHERE))
        true = sum(max(60.0, (end or self.world.now) - start) for start, end in self.cloud.billed())
        if known > true + 60.0 * len(self.cloud.billed()):
            raise Violation(f"the ledger has {known:.0f} s, {true:.0f} s were billed")
        if set(self.cloud.starts) <= {"fcctl"} and known < true - 60.0:
            raise Violation(f"the ledger has {known:.0f} s of {true:.0f} s that were billed")

    def converged(self) -> None:
        """Long after: everything is off, nothing is left to be done."""
        for instance in self.cloud.running():
            raise Violation(f"{instance.view.name} is still {instance.view.status}, hours later")
        services = self.services(Actor("judge"))
        self.check(services)
        self._books(services)
        for office in self.offices if "never" not in self.schedule.commands else ():
            self._all_done(self.services(Actor("judge"), office))

    def _all_done(self, services: Services) -> None:
        if services.store.owed():
            raise Violation(f"still to be stopped, hours later: {services.store.owed()}")
        if services.sessions.open():
            raise Violation(f"still not over, hours later: {services.sessions.open()}")
        for run_id in services.store.active():
            kinds = [entry.kind for entry in services.store.journal_of(run_id)]
            if "stopped" not in kinds:
                raise Violation(f"{run_id} is still not complete, hours later: {kinds}")


def play(schedule: Schedule) -> str | None:
    """Play one schedule; None, or what was violated."""
    root = Path(tempfile.mkdtemp(prefix="fcctl-sim-", dir=_memory()))
    episode = Episode(schedule, root)
    try:
        episode.play()
    except Violation as e:
        return f"{e}\n  " + "\n  ".join(episode.world.trace[-60:])
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return None


def _memory() -> str | None:
    """A folder in memory, where there is one: nobody's disk has to survive this."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def shrink(schedule: Schedule, failing: Callable[[Schedule], bool]) -> Schedule:
    """The shortest schedule that still fails: fewer faults, fewer commands, smaller amounts."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(schedule):
            if failing(smaller):
                schedule, changed = smaller, True
                break
    return schedule


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    faults: Sequence[Fault] = schedule.faults
    for i in range(len(faults)):
        yield replace(schedule, faults=(*faults[:i], *faults[i + 1 :]))
    for i in range(len(schedule.commands) - 1, 0, -1):
        yield replace(schedule, commands=(*schedule.commands[:i], *schedule.commands[i + 1 :]))
    for i, fault in enumerate(faults):
        if fault.amount > 60:
            less = replace(fault, amount=float(round(fault.amount / 2)))
            yield replace(schedule, faults=(*faults[:i], less, *faults[i + 1 :]))
