"""A search over several machines: a run on the leader, a member's run on each other machine, and tunnels between them.

The search continues on the leader, with its own GPUs, if this computer sleeps or this process is killed. The members
work only while this process connects them; without it they wait for a while, then end. If the leader is lost, the
machine of a member becomes the leader, with what was found until then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from orchestrator.base.errors import FcctlError, HostUnreachable, LinkLost, MachineStopped
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.provision.wake_options import StartOptions
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
#: The leader may be away for so long while others are there, seconds.
LEADER_AWAY_S = 60.0
#: When the leader is lost, how long a member that is at work may take to be reached, seconds.
REACHED_S = 15.0
#: Lines of the search that are about machines and are shown, at most.
MAX_LINES = 500
Make = Callable[[Observer], Services]
Search = Callable[[], "Finished | None"]


class FleetCoordinator:
    """Runs the members while the search runs, and releases all of them at its end.

    Args:
        make: what a workflow may touch, for one thread, with this observer.
        left: runs of members that an earlier fcctl left, by target, oldest first.
    """

    def __init__(
        self, make: Make, tunnels: Tunnels, place: FleetPlanner, plans: Plans, waking: StartOptions, observer: Observer,
        left: Mapping[str, Sequence[str]] | None = None,
    ) -> None:  # fmt: skip
        self._saved, self._source = plans.search.saved, plans.search.source
        self._make, self._tunnels, self._place, self._waking, self._notes = make, tunnels, place, waking, observer
        after = self._saved.plan.run_id if left is not None else None
        self.observer = MembershipObserver(observer, self._on_host_line, self._on_status, after=after)
        self.services = make(self.observer)
        self._lines = 0
        #: Whether a machine is in the search, as it has said last; and if it has not, to this fcctl at least.
        self._there: dict[str, bool] = {}
        self._presumed = left is not None
        self._leader_tunnel = self._tunnel_to_leader(self._saved)
        #: Machines that led the search: those that are left to themselves until another has it, and the others.
        self._moving_from: list[PreviousLeader] = []
        self._previous_leaders: list[PreviousLeader] = []
        before = self._saved.fleet.before if left is not None and self._saved.fleet else []
        if before:  # the search may still wait for what was found elsewhere
            store = self.services.store
            journals = stored_journal(store, before[-1]), brought(store, self._saved.plan.run_id)
            self._leader_tunnel.seed = longest(*journals)
            self._moving_from = self._leaders(before, "the search moved")
        #: Set once machines may be turned on to help. A search that an earlier fcctl left may have ended by itself.
        self._is_running = threading.Event()
        if left is None or self._moving_from:
            self._is_running.set()
        self.members: dict[str, Member] = {}
        self._worker_tunnels: dict[str, WorkerTunnel] = {}
        for prepared in plans.members:
            self._add_member(prepared, list((left or {}).get(prepared.saved.target.name, ())))
        for name, runs in (left or {}).items():  # one was a member and leads now, which may wait for that run's end
            if name not in self.members:
                self._previous_leaders += self._leaders(runs, "the search is there")

    def _add_member(self, prepared: Prepared, before: list[str]) -> None:
        host = prepared.saved.target

        def again(usd: float | None) -> Prepared:
            return plan_member(self.services, self._place, self._saved, self._source, host, usd)

        def unusable(error: FcctlError) -> None:
            self._notes.note(f"host {host.name}: of no use: {_in_words(error)}")
            self.members[host.name].stop("no way leads from here to the search")

        tunnel = WorkerTunnel(self._tunnels, host, self._is_on_host, self._leader_tunnel)
        tunnel.before, tunnel.on_failure = before, unusable
        self._worker_tunnels[host.name] = tunnel
        self.members[host.name] = Member(
            self._make, tunnel, prepared, again, self._waking, self._notes, self._is_running, before
        )

    def _tunnel_to_leader(self, saved: SavedPlan) -> LeaderTunnel:
        def unusable(error: FcctlError) -> None:
            self._notes.note(f"the search has {saved.target.name} alone: {_in_words(error)}")
            for member in self.members.values():
                member.stop("the search cannot be reached")

        tunnel = LeaderTunnel(self._tunnels, saved.target, self._leader_is_on_host)
        tunnel.on_failure = unusable
        tunnel.set_run(saved.plan.run_id)
        return tunnel

    def _leaders(self, run_ids: Sequence[str], why: str) -> list[PreviousLeader]:
        """Those of ``run_ids`` that are not complete, to be ended for the reason ``why``."""
        plans = [(run_id, self.services.store.plan_of(run_id)) for run_id in run_ids]
        return [
            PreviousLeader(self._make, self._notes, run_id, str((plan.get("target") or {}).get("name")), why)
            for run_id, plan in plans
            if plan is not None
        ]

    def coordinate(self, search: Search) -> Finished | None:
        """Run ``search``, on another machine if its own is lost; then nothing is left of the members, or the user is
        told what is."""
        self._leader_tunnel.start()
        for tunnel in self._worker_tunnels.values():
            tunnel.start()
        for member in self.members.values():
            member.start()
        for leader in self._previous_leaders:
            leader.start()
        news: str | None = None
        ended = False
        try:
            finished = self._search_with_successors(search)
            ended = True
            if finished is not None:
                news = f"the search has ended: {finished.record.status}; fcctl results report {finished.record.run_id}"
            return finished
        except Detached as detached:
            news = f"the search {detached.run_id} goes on; with all again: fcctl tune --resume {detached.run_id}"
            raise
        except FcctlError as error:
            news = _in_words(error)
            raise
        except KeyboardInterrupt:
            self._name_incomplete_runs()
            raise
        finally:
            self._end(news, in_order=ended)

    def _name_incomplete_runs(self) -> None:
        """Of a search that was interrupted, and then again while that was put in order."""
        store, own = self.services.store, self._saved.plan.run_id
        for run_id in store.active():
            plan = (store.plan_of(run_id) or {}).get("plan") or {}
            if own in (run_id, plan.get("resume_from")):
                self._notes.note(f"run {run_id} is not complete yet: fcctl pull-results {run_id}")

    # ------------------------------------------------------------------------------------------------- a lost leader
    def _search_with_successors(self, search: Search) -> Finished | None:
        """Raises: FcctlError, if the leader is lost and there is no other machine."""
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
            again = self._search_elsewhere(why, self._known_journal(finished))
            if again is None:
                if error is not None:
                    raise error
                return finished
            search = again

    def _known_journal(self, finished: Finished | None) -> bytes | None:
        """The search's journal: as it was collected, as it was seen last, or as it is still to be put there."""
        collected = stored_journal(self.services.store, finished.record.run_id) if finished is not None else None
        return longest(collected, self._leader_tunnel.journal, self._leader_tunnel.seed)

    def _search_elsewhere(self, why: str, journal: bytes | None) -> Search | None:
        """The search on a machine that works for it and can be reached; None if there is none, or nobody has seen the
        search at work."""
        if not self._was_at_work(journal):
            return None
        lost, moves = self._saved.target.name, bool(self._moving_from)
        self._moving_from += self._leaders([self._saved.plan.run_id], why)
        while (successor := self._successor_in_time(f"host {lost}: {why}")) is not None:
            moves = True
            self._notes.note(f"host {lost}: {why}; the search moves to {successor.name}, with what was found")
            usd = successor.hand_over()
            try:
                fleet = self._saved.fleet
                (host,) = [host for host in (fleet.members if fleet else ()) if host.name == successor.name]
                prepared = plan_again(
                    self.services, self._place, self._saved, self._source, host, usd, seeded=journal is not None
                )
            except FcctlError as error:
                lost, why = successor.name, _in_words(error)
                continue
            return self._moved(prepared, successor, journal)
        if not moves:
            self._moving_from.clear()
        return None

    def _was_at_work(self, journal: bytes | None) -> bool:
        return self._leader_tunnel.scheduler is not None or journal is not None or bool(self._moving_from)

    def _moved(self, prepared: Prepared, successor: Member, journal: bytes | None) -> Search:
        self._leader_tunnel.close()
        self._worker_tunnels[successor.name].close()
        if journal is not None:  # the leader may have been reached again, while the successor was handed over
            journal = longest(journal, self._leader_tunnel.journal)
        self._saved, self._there, self._presumed = prepared.saved, {}, False
        self._leader_tunnel = self._tunnel_to_leader(prepared.saved)
        self._leader_tunnel.seed = journal
        for tunnel in self._worker_tunnels.values():
            tunnel.leader_tunnel = self._leader_tunnel
        self._leader_tunnel.start()
        beside = {JOURNAL: journal} if journal is not None else {}
        return lambda: run(self.services, self.link(), prepared.saved, self._source, waking=self._waking, beside=beside)

    def _at_work(self) -> None:
        """The leader has the search: now what is left on those that had it before is ended."""
        leaders, self._moving_from = self._moving_from, []
        self._previous_leaders += leaders
        for leader in leaders:
            leader.start()

    def _successor_in_time(self, news: str) -> Member | None:
        """A member at work may just be being reached, by an fcctl that has only begun. Who interrupts the wait is told
        the ``news``."""
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
        """To the leader."""
        link = ReconnectingHost(self.services.hosts, self._saved.target, self.services.clock, self.observer)
        link.doubts.append(self.check_away)
        return link

    def check_away(self) -> None:
        """Raises LinkLost if the leader, whose link broke, stays away and another machine could lead."""
        away_s = self._leader_tunnel.away_s
        if away_s > LEADER_AWAY_S and self._was_at_work(self._known_journal(None)) and self._successor() is not None:
            raise LinkLost(f"no link to {self._saved.target.name} for {away_s:.0f} s, and others answer")

    # ------------------------------------------------------------------------------------------------- what happens
    def _is_on_host(self, run_id: str) -> bool:
        return on_host(self.services.store, run_id)

    def _leader_is_on_host(self, run_id: str) -> bool:
        """The search may have become another run since, which resumes it."""
        store = self.services.store
        for later in store.active():
            if ((store.plan_of(later) or {}).get("plan") or {}).get("resume_from") == run_id:
                self._leader_tunnel.set_run(later)
                return False
        return on_host(store, run_id)

    def _on_status(self, is_running: bool) -> None:
        if is_running:
            self._is_running.set()
        self._at_work()

    def _on_host_line(self, line: str) -> None:
        """What the search, which is not trusted, says of one of the machines."""
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._notes.note(line)
        name, _, text = line.removeprefix("host ").partition(": ")
        self._there[name] = text != "lost" and not text.startswith("left out")
        if name in self.members and text.startswith("left out"):
            self.members[name].left_out.set()

    # ------------------------------------------------------------------------------------------------- the end
    def _end(self, news: str | None, *, in_order: bool) -> None:
        """``news`` of the search, for who does not wait until they are told in full."""
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
                runs = " ".join(r for m in left for r in m.runs if not self.services.store.is_complete(r))
                self._notes.note(
                    f"left to their own limits: {', '.join(m.name for m in left)}; see to them with: fcctl hosts audit"
                    + (f", fcctl cancel {runs}" if runs else "")
                )
            for leader in self._previous_leaders:
                leader.tell()
            raise

    def _close(self) -> None:
        tunnels = [*self._worker_tunnels.values(), self._leader_tunnel]
        for leader in self._previous_leaders:
            leader.close()
        for tunnel in tunnels:
            tunnel.close()
        for tunnel in tunnels:
            tunnel.join()

    def _release_members(self, *, in_order: bool) -> None:
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
        for leader in self._previous_leaders:
            leader.end()

    def _hears_goodbye(self, name: str) -> bool:
        """Whether the search may have told it that it is over: not who never joined, or had lost its tunnel."""
        is_there = self._there.get(name, self._presumed)
        return is_there and self._leader_tunnel.scheduler is not None and self._worker_tunnels[name].is_up

    def _stop(self, members: Sequence[Member]) -> None:
        if members:
            self.observer.phase("end", f"letting {', '.join(m.name for m in members)} go")
        for member in members:
            threading.Thread(target=member.stop, args=("the search is over",), name="fcctl-stop", daemon=True).start()
        for member in members:
            member.join()


def _in_words(error: FcctlError) -> str:
    return "; ".join(part for part in (error.message, error.cause, error.hint) if part)
