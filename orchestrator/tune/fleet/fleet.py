"""A search over several machines: a run on the first, a member's run on each other, and the ways between them.

The search goes on where it is, with that machine's own GPUs, if this computer sleeps or this process is killed. The
others are of use only while this process leads them there; without it they wait for a while, then end. If the search's
machine is lost, another one has the search, from what was found until then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from orchestrator.base.errors import FcctlError, HostUnreachable, LinkLost, MachineStopped
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.provision.wake_options import StartOptions
from orchestrator.machines.targets import Target
from orchestrator.machines.tunnel_api import Tunnels
from orchestrator.runs.job.prepare import Prepared
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.run import Detached, Finished, run
from orchestrator.runs.services import Services
from orchestrator.tune.fleet.journal import brought, longest, stored_journal
from orchestrator.tune.fleet.member import Member, on_host
from orchestrator.tune.fleet.membership import MembershipObserver
from orchestrator.tune.fleet.plan import FleetPlanner, Plans, plan_again, plan_member
from orchestrator.tune.fleet.previous_leader import PreviousLeader
from orchestrator.tune.fleet.rules import JOURNAL
from orchestrator.tune.fleet.tunnels import SOON_S, LeaderTunnel, WorkerTunnel

#: When the search has ended, how long its members may take to end in order, seconds. Its goodbye reached them before.
GOODBYE_S = 30.0
#: The search's machine may be away for so long while others are there, seconds.
LEADER_AWAY_S = 60.0
#: When the search's machine is lost, how long another one that is at work may take to be reached, seconds.
REACHED_S = 15.0
#: Lines of the search that are about machines and are shown, at most.
MAX_LINES = 500
Make = Callable[[Observer], Services]


class FleetCoordinator:
    """Has the members work while the search goes on, and lets all of them go at its end.

    Args:
        make: what a workflow may touch, for one thread, with this observer.
        left: runs of members that an earlier fcctl left, by target, oldest first.
    """

    def __init__(
        self,
        make: Make,
        tunnels: Tunnels,
        place: FleetPlanner,
        plans: Plans,
        waking: StartOptions,
        observer: Observer,
        left: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.observer = MembershipObserver(
            observer,
            self._on_host_line,
            self._on_status,
            after=plans.search.saved.plan.run_id if left is not None else None,
        )
        self.services = make(self.observer)
        self._make = make
        saved = plans.search.saved
        self._notes = observer
        self._place = place
        self._source = plans.search.source
        self._saved = saved
        self._lines = 0
        #: Whether a machine is in the search, as it has said last; and if it has not, to this fcctl at least.
        self._there: dict[str, bool] = {}
        self._presumed = left is not None
        self._tunnels = tunnels
        self._waking = waking

        def is_there(run_id: str) -> bool:
            return on_host(self.services.store, run_id)

        self._leader_tunnel = self._tunnel_to_leader(saved)
        #: Machines that the search was on: those that are left to themselves until another has it, and the others.
        self._moving_from: list[PreviousLeader] = []
        self._previous_leaders: list[PreviousLeader] = []
        if left is not None and saved.fleet and saved.fleet.before:  # it may still wait for what was found elsewhere
            store = self.services.store
            *_, last = saved.fleet.before
            self._leader_tunnel.seed = longest(stored_journal(store, last), brought(store, saved.plan.run_id))
            self._moving_from = [
                previous_leader for run_id in saved.fleet.before if (previous_leader := self._previous_leader(run_id))
            ]
        #: Set once machines may be turned on to help. A search that an earlier fcctl left may have ended by itself.
        self._goes_on = threading.Event()
        if left is None or self._moving_from:
            self._goes_on.set()
        self.members: dict[str, Member] = {}
        self._worker_tunnels: dict[str, WorkerTunnel] = {}
        for first in plans.members:
            host = first.saved.target
            before = list((left or {}).get(host.name, ()))
            worker_tunnel = self._worker_tunnels[host.name] = WorkerTunnel(tunnels, host, is_there, self._leader_tunnel)
            worker_tunnel.before, worker_tunnel.on_failure = before, self._worker_unusable(host.name)
            self.members[host.name] = Member(
                make, worker_tunnel, first, self._again(host), waking, observer, self._goes_on, before
            )
        for name, runs in (left or {}).items():  # one was a member, and has the search now, which may wait for its end
            if name not in self.members:
                self._previous_leaders += [
                    previous_leader
                    for run_id in runs
                    if (previous_leader := self._previous_leader(run_id, "the search is there"))
                ]

    def _tunnel_to_leader(self, saved: SavedPlan) -> LeaderTunnel:
        leader_tunnel = LeaderTunnel(self._tunnels, saved.target, self._search_is_there)
        leader_tunnel.on_failure = self._leader_unusable
        leader_tunnel.set_run(saved.plan.run_id)
        return leader_tunnel

    def coordinate(self, search: Callable[[], Finished | None]) -> Finished | None:
        """Carry ``search`` out, on another machine if its own is lost; then nothing is left of the members, or it is
        told what is."""
        self._leader_tunnel.start()
        for worker_tunnel in self._worker_tunnels.values():
            worker_tunnel.start()
        for member in self.members.values():
            member.start()
        for previous_leader in self._previous_leaders:
            previous_leader.start()
        news: str | None = None
        ended = False
        try:
            finished = self._search_with_successors(search)
            ended = True
            news = _news(finished)
            return finished
        except Detached as left:
            news = f"the search {left.run_id} goes on; with all again: fcctl tune --resume {left.run_id}"
            raise
        except FcctlError as error:
            news = _in_words(error)
            raise
        except KeyboardInterrupt:
            self._say_what_is_left()
            raise
        finally:
            self._end(news, in_order=ended)

    def _say_what_is_left(self) -> None:
        """Of a search that was interrupted, and then again while that was put in order."""
        store, own = self.services.store, self._saved.plan.run_id
        for run_id in store.active():
            plan = (store.plan_of(run_id) or {}).get("plan") or {}
            if own in (run_id, plan.get("resume_from")):
                self._notes.note(f"run {run_id} is not complete yet: fcctl pull-results {run_id}")

    # ------------------------------------------------------------------------------------------------- a lost leader
    def _search_with_successors(self, search: Callable[[], Finished | None]) -> Finished | None:
        """Raises: FcctlError, if the search's machine is lost and there is no other."""
        while True:
            finished: Finished | None = None
            error: FcctlError | None = None
            why: str
            try:
                finished = search()
                if finished is None or finished.record.status not in ("lost", "preempted"):
                    return finished
                why = finished.record.status
            except MachineStopped as stopped:
                error, why = stopped, stopped.status.replace("_", " ")
            except (HostUnreachable, LinkLost) as lost:
                error, why = lost, "out of reach"
            except FcctlError as refused:
                if not self._moving_from:
                    raise
                error, why = refused, _in_words(refused)
            again = self._follow_on(why, self._found(finished))
            if again is None:
                if error is not None:
                    raise error
                return finished
            search = again

    def _found(self, finished: Finished | None) -> bytes | None:
        """The journal of the search: as it came home, as it was seen last, or as it is still to be put there."""
        brought_home = stored_journal(self.services.store, finished.record.run_id) if finished is not None else None
        return longest(brought_home, self._leader_tunnel.journal, self._leader_tunnel.seed)

    def _follow_on(self, why: str, journal: bytes | None) -> Callable[[], Finished | None] | None:
        """The search on a machine that is at work for it and can be reached; None if there is none, or nobody has seen
        the search at work."""
        if not self._was_at_work(journal):
            return None
        lost, moves = self._saved.target.name, bool(self._moving_from)
        previous_leader = self._previous_leader(self._saved.plan.run_id, why)
        self._moving_from += [previous_leader] if previous_leader else []
        while (successor := self._successor_in_time(f"host {lost}: {why}")) is not None:
            moves = True
            self._notes.note(f"host {lost}: {why}; the search moves to {successor.name}, with what was found")
            prepared = self._planned_for(successor, seeded=journal is not None)
            if isinstance(prepared, Prepared):
                return self._moved(prepared, successor, journal)
            lost, why = successor.name, prepared
        if not moves:
            self._moving_from.clear()
        return None

    def _was_at_work(self, journal: bytes | None) -> bool:
        return self._leader_tunnel.scheduler is not None or journal is not None or bool(self._moving_from)

    def _planned_for(self, successor: Member, *, seeded: bool) -> Prepared | str:
        """The plan, or why there is none."""
        left = successor.hand_over()
        host = next(
            host for host in (self._saved.fleet.members if self._saved.fleet else ()) if host.name == successor.name
        )
        try:
            return plan_again(self.services, self._place, self._saved, self._source, host, left, seeded=seeded)
        except FcctlError as error:
            return _in_words(error)

    def _moved(self, prepared: Prepared, successor: Member, journal: bytes | None) -> Callable[[], Finished | None]:
        for way in (self._leader_tunnel, self._worker_tunnels[successor.name]):
            way.close()
        if journal is not None:  # it may have been reached again, while the other made way
            journal = longest(journal, self._leader_tunnel.journal)
        self._saved, self._there, self._presumed = prepared.saved, {}, False
        self._leader_tunnel = self._tunnel_to_leader(prepared.saved)
        self._leader_tunnel.seed = journal
        for worker_tunnel in self._worker_tunnels.values():
            worker_tunnel.leader_tunnel = self._leader_tunnel
        self._leader_tunnel.start()
        beside = {JOURNAL: journal} if journal is not None else {}
        return lambda: run(self.services, self.link(), prepared.saved, self._source, waking=self._waking, beside=beside)

    def _previous_leader(self, run_id: str, why: str = "the search moved") -> PreviousLeader | None:
        """Who ends what is left of ``run_id``; None if it is complete."""
        plan = self.services.store.plan_of(run_id)
        if plan is None:
            return None
        return PreviousLeader(self._make, self._notes, run_id, str((plan.get("target") or {}).get("name")), why)

    def _on_status(self, goes_on: bool) -> None:
        if goes_on:
            self._goes_on.set()
        self._at_work()

    def _at_work(self) -> None:
        """The search's machine has it: now nothing is left to be done on those that had it before."""
        leaving, self._moving_from = self._moving_from, []
        self._previous_leaders += leaving
        for previous_leader in leaving:
            previous_leader.start()

    def _successor_in_time(self, news: str) -> Member | None:
        """One that is at work may just be being reached, by an fcctl that has only begun. Who does not wait for that
        is told the ``news``."""
        clock = self.services.clock
        deadline = clock.monotonic() + REACHED_S
        try:
            while (successor := self._successor()) is None:
                if clock.monotonic() >= deadline or not any(member.works for member in self.members.values()):
                    return None
                clock.sleep(SOON_S)
        except KeyboardInterrupt:
            self._notes.note(news)
            raise
        return successor

    def _successor(self) -> Member | None:
        return next((m for m in self.members.values() if m.works and self._worker_tunnels[m.name].is_up), None)

    def link(self) -> ReconnectingHost:
        """To the search's machine."""
        link = ReconnectingHost(self.services.hosts, self._saved.target, self.services.clock, self.observer)
        link.doubts.append(self.check_away)
        return link

    def check_away(self) -> None:
        """Of a link that broke: raises LinkLost if the search's machine stays away and another could go on."""
        away_s = self._leader_tunnel.away_s
        if away_s > LEADER_AWAY_S and self._was_at_work(self._found(None)) and self._successor() is not None:
            raise LinkLost(f"no link to {self._saved.target.name} for {away_s:.0f} s, and others answer")

    # ------------------------------------------------------------------------------------------------- what happens
    def _search_is_there(self, run_id: str) -> bool:
        """It may have become another run since, which goes on with it."""
        store = self.services.store
        for later in store.active():
            if ((store.plan_of(later) or {}).get("plan") or {}).get("resume_from") == run_id:
                self._leader_tunnel.set_run(later)
                return False
        return on_host(store, run_id)

    def _again(self, host: Target) -> Callable[[float | None], Prepared]:
        return lambda usd: plan_member(self.services, self._place, self._saved, self._source, host, usd)

    def _on_host_line(self, line: str) -> None:
        """The search, which is not trusted, has a word on one of the machines."""
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._notes.note(line)
        name, _, text = line.removeprefix("host ").partition(": ")
        self._there[name] = text != "lost" and not text.startswith("left out")
        if name in self.members and text.startswith("left out"):
            self.members[name].left_out.set()

    def _leader_unusable(self, error: FcctlError) -> None:
        self._notes.note(f"the search has {self._saved.target.name} alone: {_in_words(error)}")
        for member in self.members.values():
            member.stop("the search cannot be reached")

    def _worker_unusable(self, name: str) -> Callable[[FcctlError], None]:
        def on_failure(error: FcctlError) -> None:
            self._notes.note(f"host {name}: of no use: {_in_words(error)}")
            self.members[name].stop("no way leads from here to the search")

        return on_failure

    # ------------------------------------------------------------------------------------------------- the end
    def _end(self, news: str | None, *, in_order: bool) -> None:
        """``news`` of the search, for who does not wait until they are told in full."""
        try:
            try:
                self._let_go(in_order=in_order)
            finally:
                self._close()
        except KeyboardInterrupt:
            if news is not None:
                self._notes.note(news)
            left = [m for m in self.members.values() if not m.join(0)]
            if left:
                runs = " ".join(r for m in left for r in m.runs if not self.services.store.is_complete(r))
                self._notes.note(
                    f"left to their own limits: {', '.join(m.name for m in left)}; see to them with: fcctl hosts audit"
                    + (f", fcctl cancel {runs}" if runs else "")
                )
            for previous_leader in self._previous_leaders:
                previous_leader.tell()
            raise

    def _close(self) -> None:
        for previous_leader in self._previous_leaders:
            previous_leader.close()
        for way in (*self._worker_tunnels.values(), self._leader_tunnel):
            way.close()
        for way in (*self._worker_tunnels.values(), self._leader_tunnel):
            way.join()

    def _let_go(self, *, in_order: bool) -> None:
        if self._moving_from and on_host(self.services.store, self._saved.plan.run_id):
            self._at_work()
        elif self._moving_from:
            run_id = self._moving_from[0].run_id
            self._notes.note(f"the search did not move; go on with it: fcctl tune --resume {run_id}")
        at_work = [m for m in self.members.values() if not m.join(0)]
        for member in at_work:
            member.over.set()
        if in_order:
            clock = self.services.clock
            deadline = clock.monotonic() + GOODBYE_S
            for member in at_work:
                if self._hears_goodbye(member.name):
                    member.join(max(0.0, deadline - clock.monotonic()))
        self._stop([m for m in at_work if not m.join(0)])
        for previous_leader in self._previous_leaders:
            previous_leader.end()

    def _hears_goodbye(self, name: str) -> bool:
        """Whether the search may have told it that it is over: not who never joined, or had lost its way there."""
        is_there = self._there.get(name, self._presumed)
        return is_there and self._leader_tunnel.scheduler is not None and self._worker_tunnels[name].is_up

    def _stop(self, members: Sequence[Member]) -> None:
        if not members:
            return
        self.observer.phase("end", f"letting {', '.join(m.name for m in members)} go")
        tellers = [
            threading.Thread(target=m.stop, args=("the search is over",), name="fcctl-stop", daemon=True)
            for m in members
        ]
        for teller in tellers:
            teller.start()
        for member in members:
            member.join()


def _in_words(error: FcctlError) -> str:
    return "; ".join(part for part in (error.message, error.cause, error.hint) if part)


def _news(finished: Finished | None) -> str | None:
    if finished is None:
        return None
    record = finished.record
    return f"the search has ended: {record.status}; fcctl results report {record.run_id}"
