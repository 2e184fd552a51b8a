"""The machines of a fleet: one leads a search, others help it, whenever they reach each other through fcctl."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fcctl_remote import wire
from orchestrator.base.errors import HostFault, HostUnreachable, HostUnusable, LinkLost
from orchestrator.machines.interfaces import Stream, TunnelConnection
from orchestrator.machines.targets import GcpTarget, Target
from orchestrator.tune.fleet_rules import JOIN_FILE, MEMBER, SCHEDULER_FILE
from tests.simulation.cloud import Instance, SimulatedCloud
from tests.simulation.host import Guest, Run, Session
from tests.simulation.world import Actor, World

#: Trials of a search, and how often each machine that is in it has done another one, seconds.
TRIALS, TICK_S = 30, 8.0
#: How long a member waits for its first search, and for one that went: seconds.
FIRST_S, PATIENCE_S = 1800.0, 300.0


@dataclass
class Part(Run):
    """A run of a search or of a member."""

    #: Files of its private folder.
    private: dict[str, bytes] = field(default_factory=dict)
    log: bytearray = field(default_factory=bytearray)
    #: Trials that were done, and where; of a search.
    journal: list[str] = field(default_factory=list)
    port: int | None = None
    #: Machines that are in the search, and that were.
    there: dict[str, Part] = field(default_factory=dict)
    were: set[str] = field(default_factory=set)
    #: The search that a member works for, and since when it is without one.
    leader: Part | None = None
    alone_since: float | None = None
    #: Threads that wait for its end.
    watching: list[Any] = field(default_factory=list)

    @property
    def is_search(self) -> bool:
        return self.plan.job != MEMBER

    def says(self, line: str) -> None:
        self.log += line.encode() + b"\n"


class Machine(Guest):
    """One machine of the fleet; one run at a time has it."""

    def __init__(self, world: World, cloud: SimulatedCloud, instance: Instance, name: str, fleet: Any) -> None:
        super().__init__(world, cloud, instance)
        self.name, self.fleet = name, fleet
        self.cut_until = self.refuses_until = self.slow_until = 0.0
        self.fits = self.forwards = True
        self.ports: dict[int, tuple[Way, Callable[[], Stream]]] = {}
        self.parts: dict[str, Part] = self.runs  # type: ignore[assignment]

    # ---------------------------------------------------------------------------------------------------- supervisor
    @property
    def working(self) -> Part | None:
        return next((run for run in self.parts.values() if run.started and self._alive(run, run.boot)), None)

    def submit(self, plan: wire.RunPlan) -> str:
        if plan.run_id in self.runs:
            return "exists"
        run = Part(plan, 0.0, self.instance.boots)
        is_free = self.working is None
        self.fleet.begun(run)
        self.parts[plan.run_id] = run
        if plan.stop_by is not None:
            self.world.at(plan.stop_by, lambda: self._money_ends(run, run.boot))
        if is_free:
            self._begin(run)
        return "started" if is_free else "queued"

    def _begin(self, run: Run) -> None:
        assert isinstance(run, Part)
        run.started = run.step_started = self.world.now
        self.world.at(self.world.now + TICK_S, lambda: self._tick(run))

    def _tick(self, run: Part) -> None:
        if not self._alive(run, run.boot):
            return
        (step,) = run.plan.steps
        if self.world.now - run.started > step.timeout_s:
            self._ends(run, "timed_out", 124)
        elif run.is_search:
            self._search(run)
        else:
            self._help(run)
        if not run.ended:
            self.world.at(self.world.now + TICK_S, lambda: self._tick(run))

    def _ends(self, run: Part, step: str, code: int) -> None:
        run.results.append(self._result(run, run.plan.steps[0], step, code))
        self._end(run, "passed" if step in ("passed", "warned") else "failed", code, None)

    def _end(self, run: Run, status: str, code: int, message: str | None) -> None:
        assert isinstance(run, Part)
        super()._end(run, status, code, message)
        run.private.clear()
        self.fleet.wake(run.watching)
        waiting = [r for r in self.parts.values() if not r.started and self._alive(r, r.boot)]
        if waiting and self.working is None:
            self._begin(waiting[0])

    # ---------------------------------------------------------------------------------------------------- the search
    def _search(self, run: Part) -> None:
        if run.port is None:
            run.port = self.fleet.number()
            said = {"schema": 1, "port": run.port, "tls": {"pem": f"KEY of {run.plan.run_id}"}}
            run.private[SCHEDULER_FILE] = b'{"port": "22; rm"}' if self.fleet.story.lies else json.dumps(said).encode()
        there = {name: part for name, part in self.fleet.members() if part.leader is run}
        for name in sorted({*there, *run.there}):
            self._roster(run, name, there.get(name))
        for name in (self.name, *run.there):
            if len(run.journal) < TRIALS:
                run.journal.append(f"{len(run.journal)} {name}")
        if len(run.journal) == TRIALS:
            for name, part in run.there.items():
                self.fleet.machines[name]._ends(part, "passed", 0)
            self._ends(run, "passed", 0)

    def _roster(self, run: Part, name: str, part: Part | None) -> None:
        machine = self.fleet.machines[name]
        if part is not run.there.get(name) and name in run.there:
            run.says(f"host {name}: lost")
            del run.there[name]
        if part is None or name in run.there:
            return
        if not machine.fits:
            run.says(f"host {name}: not used: its GPU is another")
            machine._ends(part, "passed", 0)
            return
        run.says(f"host {name}: " + ("back, " if name in run.were else "") + "1 x card")
        run.there[name] = part
        run.were.add(name)

    def _help(self, run: Part) -> None:
        """Ask whether there is a search, and whether it is still there."""
        run.leader = None
        said = run.private.get(JOIN_FILE)
        if said is not None:
            way, reach = self.ports.get(json.loads(said)["scheduler"], (None, None))
            if way is not None and reach is not None and way.stands:
                with contextlib.suppress(LinkLost, HostFault, HostUnusable):
                    run.leader = reach().run  # type: ignore[attr-defined]
        if run.leader is not None:
            run.alone_since = None
            run.were.add(run.leader.plan.run_id)
            return
        run.alone_since = run.alone_since or self.world.now
        patience = PATIENCE_S if run.were else FIRST_S
        if self.world.now - run.alone_since > patience:
            self._ends(run, "warned", 75)

    # --------------------------------------------------------------------------------------------------------- files
    def files(self, run: Run) -> dict[str, bytes]:
        assert isinstance(run, Part)
        found = super().files(run)
        if run.results:
            found[f"steps/{run.results[-1].id}/log.txt"] = bytes(run.log)
        return found

    @property
    def answers(self) -> bool:
        """Whether who logs in is let in, and soon."""
        blocked = max(self.cut_until, self.refuses_until, self.slow_until, self.world.link_down_until)
        return self.instance.up and self.world.now >= blocked

    def reached(self, boot: int | None, link_timeout_s: float) -> None:
        """What a call meets. Raises: LinkLost."""
        now = self.world.now
        gone = not self.instance.up or (boot is not None and self.instance.boots != boot)
        if gone or now < self.cut_until:
            self.world.advance(link_timeout_s if gone or self.cut_until - now > link_timeout_s else 2.0)
            raise LinkLost(f"{self.name} does not answer", cause="simulated")
        if now < self.slow_until:
            self.world.advance(6.0)


class Hosts:
    """``HostConnector`` and ``Tunnels`` for one fcctl."""

    def __init__(self, actor: Actor, fleet: Any, book: Any) -> None:
        self._actor, self._fleet, self._book = actor, fleet, book

    def connect(self, target: Target) -> FleetSession:
        return self._log_in(target, "connect", lambda m: FleetSession(self._actor, m, m.instance.boots))

    def open(self, target: Target) -> TunnelConnection:
        return self._log_in(target, "open", lambda m: Way(self._actor, m))

    def _log_in(self, target: Target, what: str, make: Callable[[Machine], Any]) -> Any:
        world: World = self._fleet.world
        machine = self._fleet.machines[target.name]

        def log_in() -> Any:
            known = self._book.known(target.project, target.instance) if isinstance(target, GcpTarget) else None
            if isinstance(target, GcpTarget) and (known is None or known.instance_id != machine.instance.id):
                raise HostUnreachable("nothing is known of the machine", reason="port")
            if not machine.instance.up or world.now < machine.cut_until:
                raise world.unreachable("nobody answers")
            if world.now < machine.refuses_until:
                raise HostUnreachable("the login is refused", reason="login", cause="simulated")
            machine.look()
            return make(machine)

        return world.effect(self._actor, f"{what} {target.name}", log_in, via="host")


class FleetSession(Session):
    """:class:`orchestrator.machines.interfaces.HostSession`, of a machine that queues runs and has searches."""

    _guest: Machine

    def _do(self, name: str, action: Any) -> Any:
        def reached() -> Any:
            self._guest.reached(self._boot, 20.0)
            self._guest.look()
            return action()

        return self._world.effect(self._actor, f"{self._guest.name} {name}", reached, via="host")

    def bundle(self, sha256: str, size: int, offset: int, data: bytes) -> wire.BundleState:
        return self._do("bundle", lambda: wire.BundleState(ready=True, received=0))

    def _summary(self, run: Run) -> wire.RunSummary:
        found = super()._summary(run)
        if not run.started and not run.ended:
            found.status = "queued"
        return found

    def watch(self, request: wire.WatchRequest) -> tuple[wire.WatchReply, bytes]:
        def act() -> tuple[wire.WatchReply, bytes]:
            run = self._guest.parts.get(request.run_id)
            if run is None:
                raise HostFault("there is no such run", fault="not_found")
            if not run.ended:
                self._guest.fleet.wait(request.wait_s, run.watching)
                self._guest.reached(self._boot, 20.0)
                self._guest.look()
            tail = bytes(run.log[request.log_offset :])
            step = run.plan.steps[0].id if run.started else None
            reply = wire.WatchReply([], 0, self._summary(run), step, request.log_offset, len(run.log))
            return reply, tail if step else b""

        return self._do("watch", act)


@dataclass
class Pipe:
    """What leads to a search."""

    run: Part

    def close(self) -> None: ...


class Way:
    """:class:`orchestrator.machines.interfaces.TunnelConnection`."""

    def __init__(self, actor: Actor, machine: Machine) -> None:
        self._actor, self._machine, self._boot = actor, machine, machine.instance.boots
        self._closed = False

    @property
    def stands(self) -> bool:
        machine = self._machine
        is_there = machine.instance.up and machine.instance.boots == self._boot
        world = machine.world
        return self._actor.alive and not self._closed and is_there and world.now >= max(
            machine.cut_until, world.link_down_until
        )  # fmt: skip

    def _do(self, name: str, action: Callable[[], Any]) -> Any:
        machine = self._machine

        def reached() -> Any:
            machine.reached(self._boot, 20.0)
            return action()

        return machine.world.effect(self._actor, f"{machine.name} {name}", reached, via="host")

    def listen(self, reach: Callable[[], Stream]) -> int:
        if not self._machine.forwards:
            raise HostUnusable(f"{self._machine.name} does not forward ports")

        def act() -> int:
            port: int = self._machine.fleet.number()
            self._machine.ports[port] = self, reach
            return port

        return int(self._do("listen", act))

    def dial(self, port: int) -> Stream:
        if not self._machine.forwards:
            raise HostUnusable(f"{self._machine.name} does not forward ports")
        if not self.stands:
            raise LinkLost(f"{self._machine.name} does not answer")
        working = self._machine.working
        if working is None or working.port != port:
            raise HostFault("nobody is there")
        return Pipe(working)  # type: ignore[return-value]

    def check(self) -> None:
        self._do("check", lambda: None)

    def read(self, run_id: str, name: str, limit: int) -> bytes | None:
        def act() -> bytes | None:
            run = self._machine.parts.get(run_id)
            return run.private.get(name) if run is not None else None

        found: bytes | None = self._do(f"read {name}", act)
        return found

    def write(self, run_id: str, name: str, data: bytes) -> bool:
        def act() -> bool:
            run = self._machine.parts.get(run_id)
            if run is not None:
                run.private[name] = data
            return run is not None

        return bool(self._do(f"write {name}", act))

    def remove(self, run_id: str, name: str) -> None:
        def act() -> None:
            if run_id in self._machine.parts:
                self._machine.parts[run_id].private.pop(name, None)

        self._do(f"remove {name}", act)

    def close(self) -> None:
        self._closed = True
