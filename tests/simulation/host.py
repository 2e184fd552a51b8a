"""The machine's inside: a disk that outlives the power, runs that go on without anybody, an OS shutdown timer."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fcctl_remote import wire
from orchestrator.base.errors import HostFault, HostUnreachable, LinkLost
from orchestrator.machines.interfaces import Sent, Transfer, unheard
from orchestrator.machines.targets import Target
from tests.simulation.accounts import same_window
from tests.simulation.cloud import Instance, SimulatedCloud
from tests.simulation.world import Actor, Violation, World

#: The books are read again every minute, and a run is looked at with every reply.
HEED_S = 90.0
#: This computer, among the systems.
HERE = "here"
#: Who does not ask for so long was asleep, or cut off.
AWAY_S = 30.0


@dataclass
class Run:
    """``~/.fcctl/runs/<run-id>`` and the supervisor at work in it."""

    plan: wire.RunPlan
    started: float
    boot: int
    results: list[wire.StepResult] = field(default_factory=list)
    step: int = 0
    step_started: float = 0.0
    outcome: wire.Outcome | None = None

    @property
    def ended(self) -> bool:
        return self.outcome is not None


class Guest:
    """One machine's system. Its disk is ``runs``; everything else is gone with the power."""

    def __init__(self, world: World, cloud: SimulatedCloud, instance: Instance) -> None:
        self.world, self.cloud, self.instance = world, cloud, instance
        self.runs: dict[str, Run] = {}
        #: By attempt (when it was planned) and step: another run id for the same attempt would be a second run too.
        self.executed: Counter[tuple[float | str, str]] = Counter()
        #: By run: who followed it last, since when without a pause, and until when.
        self._polls: dict[str, tuple[str, float, float]] = {}
        self.lease = wire.Lease(armed=False)
        self._tokens = iter(range(1, 10**9))
        instance.on_power = self._power

    def _power(self, on: bool) -> None:
        """A timer of the system does not outlive it. What ran is found dead by the next boot's agent."""
        self.lease = wire.Lease(armed=False)

    # ---------------------------------------------------------------------------------------------------- supervisor
    def submit(self, plan: wire.RunPlan) -> str:
        if plan.run_id in self.runs:
            return "exists"
        if (first := self.cloud.older(self.instance)) is not None:
            raise Violation(f"a run begins on a second {first.name}, in {self.instance.zone}")
        if self.world.now < self.world.disk_full_until:
            raise HostFault("the disk is full", fault="disk_full")
        before = self.runs.get(plan.resume_from or "")
        again = {r.id for r in before.results if r.status == "passed"} & {s.id for s in plan.steps} if before else set()
        if again:
            raise Violation(f"step {sorted(again)[0]} of {plan.resume_from} had passed, and runs again")
        run = self.runs[plan.run_id] = Run(plan, self.world.now, self.instance.boots)
        if plan.stop_by is not None:
            self.world.at(plan.stop_by, lambda: self._money_ends(run, run.boot))
        self._begin(run)
        return "started"

    def _begin(self, run: Run) -> None:
        if run.step >= len(run.plan.steps):
            self._end(run, "passed", 0, None)
            return
        spec = run.plan.steps[run.step]
        # On this computer several runs may have been planned at one moment.
        attempt = (run.plan.run_id if self.instance.id == HERE else run.plan.created), spec.id
        self.executed[attempt] += 1
        if self.executed[attempt] > 1:
            raise Violation(f"step {spec.id} of {run.plan.run_id} runs a second time")
        run.step_started = self.world.now
        seconds = min(self.world.rng.uniform(5, spec.timeout_s), spec.timeout_s)
        boot = self.instance.boots
        self.world.at(self.world.now + seconds, lambda: self._step_ended(run, boot))

    def _money_ends(self, run: Run, boot: int) -> None:
        """The host program keeps to ``stop_by`` with nobody there."""
        if self._alive(run, boot):
            self.cancel(run, "the run has spent its budget", "over_budget")

    def goes_on(self, run: Run) -> bool:
        return self._alive(run, run.boot)

    def content(self) -> dict[str, Run]:
        """A copy of what is on the disk; whatever goes on there does not go on in the copy."""
        return {run_id: replace(run, results=list(run.results), boot=-1) for run_id, run in self.runs.items()}

    def _alive(self, run: Run, boot: int) -> bool:
        return self.instance.up and self.instance.boots == boot == run.boot and not run.ended

    def _step_ended(self, run: Run, boot: int) -> None:
        if not self._alive(run, boot):
            return
        spec = run.plan.steps[run.step]
        run.results.append(self._result(run, spec, "passed", 0))
        run.step += 1
        self._begin(run)

    def _result(self, run: Run, spec: wire.StepSpec, status: str, code: int | None) -> wire.StepResult:
        return wire.StepResult(
            spec.id, status, code, run.step_started, self.world.now, self.world.now - run.step_started, 1,
            spec.activity, log=f"steps/{spec.id}/log.txt",
        )  # fmt: skip

    def _end(self, run: Run, status: str, code: int, message: str | None) -> None:
        done = {r.id for r in run.results}
        skipped = [wire.StepResult(s.id, "skipped") for s in run.plan.steps if s.id not in done]
        run.outcome = wire.Outcome(
            run.plan.run_id, run.plan.job, status, code, run.started, self.world.now, [*run.results, *skipped],
            message=message,
        )  # fmt: skip

    def look(self) -> None:
        """What every call of the agent begins with: a supervisor that died is noticed."""
        for run in self.runs.values():
            if not run.ended and run.boot != self.instance.boots:
                spec = run.plan.steps[run.step]
                run.results.append(self._result(run, spec, "failed", None))
                self._end(run, "lost", 100, "the host program died")

    def cancel(self, run: Run, reason: str, status: str) -> None:
        if not run.ended:
            run.results.append(self._result(run, run.plan.steps[run.step], "cancelled", None))
            self._end(run, status, 103, reason)

    def followed(self, run: Run, by: Actor) -> None:
        """Somebody who follows a run past a cap that is spent ends it soon; one who was away a while starts anew."""
        spent_at, now = self.world.cap_spent_at, self.world.now
        if self.instance.id == HERE:  # it costs nothing
            return
        if spent_at is None or run.ended or not run.plan.workspace.startswith("sim-"):  # others have other books
            return
        if not same_window(self.world.cap_spent_over, spent_at, now):
            return
        who, since, last = self._polls.get(run.plan.run_id, ("", now, now))
        if who != by.name or now - last > AWAY_S:
            since = now
        self._polls[run.plan.run_id] = (by.name, since, now)
        if now - since > HEED_S:
            raise Violation(
                f"the {self.world.cap_spent_over}'s cap is spent, and {by.name} goes on following {run.plan.run_id}"
            )

    # --------------------------------------------------------------------------------------------------------- files
    def files(self, run: Run) -> dict[str, bytes]:
        found = {"events.jsonl": b""}
        for result in run.results:
            found[f"steps/{result.id}/log.txt"] = f"{result.id} of {run.plan.run_id}\n".encode()
        if run.outcome is not None:
            found["outcome.json"] = json.dumps(wire.encode(run.outcome)).encode()
        return found

    # --------------------------------------------------------------------------------------------------------- lease
    def lease_call(self, request: wire.LeaseRequest) -> wire.Lease:
        if request.op == "arm":
            if self.lease.armed and (request.deadline or 0) > (self.lease.deadline or 0):
                raise HostFault("the lease ends before that, and is only moved later by renewing it", fault="conflict")
            self._set(request)
        elif request.op in ("renew", "disarm"):
            if request.token != self.lease.token:
                raise HostFault("not your lease", fault="denied")
            if request.op == "disarm":
                self.lease = wire.Lease(armed=False)
            else:
                self._set(request)
        return self.lease

    def _set(self, request: wire.LeaseRequest) -> None:
        limits = [t for t in (request.deadline, request.not_after, self.lease.not_after) if t is not None]
        token = self.lease.token if self.lease.armed else request.token or f"token-{next(self._tokens)}"
        lease = self.lease = wire.Lease(True, request.dry, min(limits), request.not_after, token, mechanism="shutdown")
        boot = self.instance.boots

        def fire() -> None:
            if self.lease is lease and self.instance.boots == boot and not lease.dry:
                self.cloud.guest_shutdown(self.instance)

        if lease.deadline is not None:
            self.world.at(lease.deadline, fire)


class Hosts:
    """:class:`orchestrator.machines.interfaces.HostConnector` for one controller."""

    def __init__(self, actor: Actor, cloud: SimulatedCloud, guests: dict[str, Guest], book: Any) -> None:
        self._actor, self._cloud, self._guests, self._book = actor, cloud, guests, book

    def connect(self, target: Target) -> Session:
        world = self._cloud.world
        if target.kind == "local":
            guest = self._guests[HERE]
            guest.look()
            return Session(self._actor, guest, guest.instance.boots)
        known = self._book.known(target.project, target.instance)  # type: ignore[union-attr]
        if known is None:
            raise HostUnreachable("nothing is known of the machine", reason="port")
        guest = self._guests.get(known.instance_id)

        def log_in() -> Session:
            if guest is None or not guest.instance.up:
                raise world.unreachable("nobody answers")
            guest.look()
            return Session(self._actor, guest, guest.instance.boots)

        return world.effect(self._actor, "ssh.connect", log_in, via="host")


class Session:
    """:class:`orchestrator.machines.interfaces.HostSession`."""

    def __init__(self, actor: Actor, guest: Guest, boot: int) -> None:
        self._actor, self._guest, self._world, self._boot = actor, guest, guest.world, boot

    def _do(self, name: str, action: Any) -> Any:
        def reached() -> Any:
            if not self._guest.instance.up or self._guest.instance.boots != self._boot:
                self._world.advance(20.0)  # the link's own timeout
                raise LinkLost("the machine does not answer", cause="simulated")
            self._guest.look()
            return action()

        return self._world.effect(self._actor, f"host.{name}", reached, via="host")

    @property
    def hello(self) -> wire.Hello:
        instance = self._guest.instance
        return wire.Hello(
            wire.WIRE_VERSION, "0" * 64, "3.11", "linux", instance.name, "u", "/home/u", "/home/u/.fcctl",
            f"boot-{instance.id}-{instance.boots}", self._world.now, 4, 10**11,
        )  # fmt: skip

    def tree_diff(self, workspace: str, entries: Sequence[wire.TreeEntry]) -> wire.TreeDiff:
        return self._do("tree_diff", lambda: wire.TreeDiff(["a.cu"], 0, "/home/u/.fcctl/trees/w"))

    def send(
        self, workspace: str, tree_root: str, source_root: Path, paths: Sequence[str], sent: Sent = unheard
    ) -> Transfer:
        return self._do("send", lambda: Transfer(1, 10, 0.1, "inline"))

    def snapshot(self, workspace: str, run_id: str, entries: Any, tree_sha256: str) -> wire.Snapshot:
        return self._do("snapshot", lambda: wire.Snapshot(tree_sha256, 1, 10, "/x"))

    def submit(self, plan: wire.RunPlan, secrets: Mapping[str, str]) -> wire.Submitted:
        def act() -> wire.Submitted:
            state = self._guest.submit(plan)
            return wire.Submitted(state, self._summary(self._guest.runs[plan.run_id]))

        return self._do("submit", act)

    def _run(self, run_id: str) -> Run:
        if run_id not in self._guest.runs:
            raise HostFault(f"there is no run {run_id}", fault="not_found")
        return self._guest.runs[run_id]

    def _summary(self, run: Run) -> wire.RunSummary:
        outcome = run.outcome
        return wire.RunSummary(
            run.plan.run_id, run.plan.job, outcome.status if outcome else "running", run.started,
            finished=outcome.finished if outcome else None, exit_code=outcome.exit_code if outcome else None,
        )  # fmt: skip

    def watch(self, request: wire.WatchRequest) -> tuple[wire.WatchReply, bytes]:
        def act() -> tuple[wire.WatchReply, bytes]:
            run, until = self._run(request.run_id), self._world.now + request.wait_s
            self._guest.followed(run, self._actor)
            while not run.ended and self._world.now < until and self._guest.instance.boots == self._boot:
                self._world.advance(1.0)
            return wire.WatchReply([], 0, self._summary(run)), b""

        return self._do("watch", act)

    def status(self, run_ids: Sequence[str] | None = None) -> list[wire.RunSummary]:
        wanted = self._guest.runs if run_ids is None else [r for r in run_ids if r in self._guest.runs]
        return self._do("status", lambda: [self._summary(self._guest.runs[r]) for r in list(wanted)])

    def cancel(self, run_id: str, reason: str, status: str = "cancelled", grace_s: float = 10.0) -> wire.RunSummary:
        def act() -> wire.RunSummary:
            run = self._run(run_id)
            self._guest.cancel(run, reason, status)
            return self._summary(run)

        return self._do("cancel", act)

    def files(self, run_id: str) -> wire.FileList:
        def act() -> wire.FileList:
            self._refuse_if_unreadable()
            found = self._guest.files(self._run(run_id))
            return wire.FileList([wire.FileEntry(p, len(b), hashlib.sha256(b).hexdigest()) for p, b in found.items()])

        return self._do("files", act)

    def fetch(self, run_id: str, parts: Sequence[wire.FilePart]) -> Iterator[tuple[wire.FilePart, bytes]]:
        for part in parts:
            data = self._do(f"fetch {part.path}", lambda p=part: self._content(run_id, p.path))
            yield part, data[part.offset : part.offset + part.size]

    def _content(self, run_id: str, path: str) -> bytes:
        self._refuse_if_unreadable()
        return self._guest.files(self._run(run_id))[path]

    def _refuse_if_unreadable(self) -> None:
        if self._world.now < self._world.unreadable_until and self._guest.instance.id != HERE:
            raise HostFault("OSError: [Errno 5] Input/output error", fault="internal")

    def forget(self, run_id: str) -> None:
        self._do("forget", lambda: self._guest.runs.pop(run_id, None))

    def lease(self, request: wire.LeaseRequest) -> wire.Lease:
        return self._do(f"lease {request.op}", lambda: self._guest.lease_call(request))

    def probe(self, env: Mapping[str, str]) -> dict[str, Any]:
        del env
        return {"document": {}, "text": "", "exit_code": 0}

    def close(self) -> None:
        pass
