"""A search on several machines: its plans and what all of them may cost; a run on the leader, a member's run on each
worker host, and tunnels between them.

If this process ends, the search continues on the leader's own GPUs; members wait for a while, then end. If the leader
is lost, they are released; ``fcctl run --resume`` continues the search on it alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fcctl_remote import wire
from orchestrator.base.errors import FcctlError
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.interfaces import Tunnels
from orchestrator.machines.targets import StartOptions, Target
from orchestrator.money.caps import Budget
from orchestrator.runs.job.prepare import Prepared, RunRequest, prepare
from orchestrator.runs.run import Detached, Finished, run
from orchestrator.runs.services import Services
from orchestrator.runs.source import Source
from orchestrator.tune.fleet_rules import HOST_LINE, check_apart, member_job
from orchestrator.tune.member import Member, on_host
from orchestrator.tune.tunnels import LeaderTunnel, WorkerTunnel


@dataclass(frozen=True)
class FleetPlanner:
    """The workspace of the plans, and its caps."""

    root: Path
    project: str
    budget: Budget


@dataclass(frozen=True)
class Plans:
    search: Prepared
    members: Sequence[Prepared]

    @property
    def all(self) -> list[Prepared]:
        return [self.search, *self.members]

    @property
    def worst_case_usd(self) -> float:
        return sum(prepared.saved.worst_case_usd for prepared in self.all)


def plan(
    services: Services, place: FleetPlanner, wanted: RunRequest, others: Sequence[Target], source: Source | None = None
) -> Plans:
    """The plans of a search on ``wanted.target`` and of its members on ``others``; of the working tree without a
    ``source``. Its budget is divided evenly. Raises UsageError: two of them are the same; BudgetError: one could cost
    more than its share, or all together more than is left."""
    check_apart([wanted.target, *others])
    share = wanted.budget_usd / (1 + len(others)) if wanted.budget_usd is not None else None
    wanted = replace(wanted, budget_usd=share)
    search = prepare(services, place.root, place.project, place.budget, wanted, source)
    members = [_plan_member(services, place, search, wanted, host) for host in others]
    plans = Plans(search, members)
    if place.budget.holds_over_runs:
        from orchestrator.runs.cost.spending import check_caps

        real = [one.saved for one in plans.all if one.saved.target.kind != "sandbox"]
        check_caps(services, place.budget, sum(saved.worst_case_usd for saved in real))
    return plans


def _plan_member(
    services: Services, place: FleetPlanner, search: Prepared, wanted: RunRequest, host: Target
) -> Prepared:
    """The plan of one member of ``search``, which is what is ``wanted``."""
    plan = search.saved.plan
    (tuning,) = (step.tune for step in plan.steps if step.tune is not None)
    member = RunRequest(
        member_job(plan, host.name, wanted.job.env), host, wanted.settings, budget_usd=wanted.budget_usd,
        stop_at_budget=wanted.stop_at_budget, tunings={"member": tuning},
    )  # fmt: skip
    prepared = prepare(services, place.root, place.project, place.budget, member, search.source)
    return replace(prepared, saved=prepared.saved.model_copy(update={"fleet_of": plan.run_id}))


#: Seconds that members have to end by themselves after the search, which dismissed them.
GOODBYE_S = 30.0
#: Lines about hosts that are shown of one search.
MAX_LINES = 500
Make = Callable[[Observer], Services]


class FleetCoordinator:
    """Runs the members while the search runs, and releases all of them at its end.

    Args:
        make: services for one thread, with this observer.
    """

    def __init__(
        self, make: Make, tunnels: Tunnels, plans: Plans, waking: StartOptions, observer: Observer
    ) -> None:  # fmt: skip
        self._saved, self._source = plans.search.saved, plans.search.source
        self._make, self._tunnels, self._waking, self._notes = make, tunnels, waking, observer
        self.observer = MembershipObserver(observer, self._on_host_line)
        self.services = make(self.observer)
        self._lines = 0
        self._leader_tunnel = LeaderTunnel(self._tunnels, self._saved.target, self._leader_is_on_host)
        self._leader_tunnel.on_failure = self._leader_unusable
        self._leader_tunnel.run_id = self._saved.plan.run_id
        self.members: dict[str, Member] = {}
        self._worker_tunnels: dict[str, WorkerTunnel] = {}
        for prepared in plans.members:
            self._add_member(prepared)

    def _add_member(self, prepared: Prepared) -> None:
        host = prepared.saved.target

        def unusable(error: FcctlError) -> None:
            self._notes.note(f"host {host.name}: cannot be used: {_in_words(error)}")
            self.members[host.name].stop("this computer has no connection to the search")

        tunnel = WorkerTunnel(self._tunnels, host, partial(on_host, self.services.store), self._leader_tunnel)
        tunnel.on_failure = unusable
        self._worker_tunnels[host.name] = tunnel
        self.members[host.name] = Member(self._make, tunnel, prepared, self._waking, self._notes)

    def _leader_unusable(self, error: FcctlError) -> None:
        self._notes.note(f"the search continues on {self._saved.target.name} only: {_in_words(error)}")
        for member in self.members.values():
            member.stop("the search cannot be reached")

    def coordinate(self) -> Finished | None:
        """Run the search. At its end all members are released, or a note names those that are not."""
        self._leader_tunnel.start()
        for tunnel in self._worker_tunnels.values():
            tunnel.start()
        for member in self.members.values():
            member.start()
        news: str | None = None
        ended = False
        try:
            link = ReconnectingHost(self.services.hosts, self._saved.target, self.services.clock, self.observer)
            finished = run(self.services, link, self._saved, self._source, waking=self._waking)
            ended = finished is None or finished.record.status not in ("lost", "preempted")
            if finished is not None:
                news = f"the search has ended: {finished.record.status}; fcctl results report {finished.record.run_id}"
            return finished
        except Detached as detached:
            run_id = detached.run_id
            news = f"the search {run_id} is active on {self._saved.target.name}; follow it: fcctl attach {run_id}"
            raise
        except FcctlError as error:
            news = _in_words(error)
            raise
        except KeyboardInterrupt:
            self._name_incomplete_run()
            raise
        finally:
            self._end(news, in_order=ended)

    def _name_incomplete_run(self) -> None:
        """After a second Ctrl-C."""
        own = self._saved.plan.run_id
        if own in self.services.store.active():
            self._notes.note(f"run {own} is not complete yet: fcctl pull-results {own}")

    def _leader_is_on_host(self, run_id: str) -> bool:
        store = self.services.store
        return not store.is_complete(run_id) and on_host(store, run_id)

    def _on_host_line(self, line: str) -> None:
        """A line about a host in the log of the search, which is not trusted."""
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._notes.note(line)
        name, _, text = line.removeprefix("host ").partition(": ")
        if name in self.members and text.startswith("not used"):
            self.members[name].left_out.set()

    def _end(self, news: str | None, *, in_order: bool) -> None:
        """``news`` of the search is printed after Ctrl-C."""
        try:
            try:
                self._release_members(in_order=in_order)
            finally:
                self._close()
        except KeyboardInterrupt:
            if news is not None:
                self._notes.note(news)
            left = [m for m in self.members.values() if not m.join(0)]
            if left:
                runs = " ".join(m.run_id for m in left if m.run_id in self.services.store.active())
                self._notes.note(
                    f"not released: {', '.join(m.name for m in left)}; their own time limits stop them; to stop them "
                    f"now: fcctl hosts audit --stop" + (f", fcctl cancel {runs}" if runs else "")
                )
            raise

    def _close(self) -> None:
        tunnels = [*self._worker_tunnels.values(), self._leader_tunnel]
        for tunnel in tunnels:
            tunnel.close()
        for tunnel in tunnels:
            tunnel.join()

    def _release_members(self, *, in_order: bool) -> None:
        at_work = [m for m in self.members.values() if not m.join(0)]
        for member in at_work:
            member.over.set()
        if in_order:
            clock = self.services.clock
            deadline = clock.monotonic() + GOODBYE_S
            for member in at_work:
                # Over both tunnels the search dismisses it.
                if self._leader_tunnel.scheduler is not None and self._worker_tunnels[member.name].is_up:
                    member.join(max(0.0, deadline - clock.monotonic()))
        self._stop([m for m in at_work if not m.join(0)])

    def _stop(self, members: Sequence[Member]) -> None:
        if members:
            self.observer.phase("end", f"releasing {', '.join(m.name for m in members)}")
        for member in members:
            threading.Thread(target=member.stop, args=("the search has ended",), name="fcctl-stop", daemon=True).start()
        for member in members:
            member.join()


def _in_words(error: FcctlError) -> str:
    return "; ".join(part for part in (error.message, error.cause, error.hint) if part)


class MembershipObserver(Observer):
    """Passes everything to ``inner``, and the lines about hosts in the search's log to ``on_line``."""

    def __init__(self, inner: Observer, on_line: Callable[[str], None]) -> None:
        self._inner, self._on_line = inner, on_line
        self._step: tuple[str, str | None] | None = None
        self._seen = 0
        self._rest = b""

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None:
        step = reply.summary.run_id, reply.log_step
        if step != self._step:
            self._step, self._seen, self._rest = step, 0, b""
        fresh = log_tail if reply.log_offset >= self._seen else log_tail[self._seen - reply.log_offset :]
        self._seen = max(self._seen, reply.log_offset + len(log_tail))
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        self._rest = self._rest[-1000:]
        for line in lines:
            if HOST_LINE.fullmatch(line.rstrip(b"\r")):
                self._on_line(line.decode(errors="replace"))
        self._inner.progress(reply, log_tail)

    def phase(self, name: str, detail: str = "") -> None:
        self._inner.phase(name, detail)

    def event(self, event: wire.Event) -> None:
        self._inner.event(event)

    def note(self, message: str) -> None:
        self._inner.note(message)

    def aside(self) -> AbstractContextManager[None]:
        return self._inner.aside()

    def close(self) -> None:
        self._inner.close()
