"""A search on several machines: a run on the leader, a member's run on each worker host, and tunnels between them.

If this process ends, the search continues on the leader's own GPUs; members wait for a while, then end. If the leader
is lost, a member's machine becomes the leader and continues from the search's journal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from orchestrator.base.errors import FcctlError, HostUnreachable, LinkLost, MachineStopped
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.host_api import Tunnels
from orchestrator.machines.provision.wake_options import StartOptions
from orchestrator.runs.job.prepare import Prepared
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.run import Detached, Finished, run
from orchestrator.runs.services import Services
from orchestrator.tune.fleet.member import Member, on_host
from orchestrator.tune.fleet.observers import MembershipObserver
from orchestrator.tune.fleet.plan import FleetPlanner, Plans, plan_again, plan_member
from orchestrator.tune.fleet.previous_leader import PreviousLeader, active_journal, longest, stored_journal
from orchestrator.tune.fleet.rules import JOURNAL
from orchestrator.tune.fleet.tunnels import SOON_S, LeaderTunnel, WorkerTunnel

#: Seconds that members have to end by themselves after the search, which dismissed them.
GOODBYE_S = 30.0
#: Seconds that the leader may be out of reach while another machine could lead.
LEADER_AWAY_S = 60.0
#: Seconds to reach an active member after the leader was lost.
REACHED_S = 15.0
#: Lines about hosts that are shown of one search.
MAX_LINES = 500
Make = Callable[[Observer], Services]
Search = Callable[[], "Finished | None"]


class FleetCoordinator:
    """Runs the members while the search runs, and releases all of them at its end.

    Args:
        make: services for one thread, with this observer.
        left: runs of members that an earlier fcctl started, by target, oldest first; None: the search is new.
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
        #: Whether a host is in the search, by its last line; ``_presumed`` for hosts without a line.
        self._there: dict[str, bool] = {}
        self._presumed = left is not None
        self._leader_tunnel = self._tunnel_to_leader(self._saved)
        #: Earlier leaders: those to be ended once another machine leads, and those that are being ended.
        self._moving_from: list[PreviousLeader] = []
        self._previous_leaders: list[PreviousLeader] = []
        before = self._saved.fleet.before if left is not None and self._saved.fleet else []
        if before:  # the search may still wait for its journal
            store = self.services.store
            journals = stored_journal(store, before[-1]), active_journal(store, self._saved.plan.run_id)
            self._leader_tunnel.seed = longest(*journals)
            self._moving_from = self._leaders(before, "the search moved")
        #: Set once members may start. A search that an earlier fcctl started may have ended by itself.
        self._is_running = threading.Event()
        if left is None or self._moving_from:
            self._is_running.set()
        self.members: dict[str, Member] = {}
        self._worker_tunnels: dict[str, WorkerTunnel] = {}
        for prepared in plans.members:
            self._add_member(prepared, list((left or {}).get(prepared.saved.target.name, ())))
        for name, runs in (left or {}).items():  # a member that leads now, and may wait for that run's end
            if name not in self.members:
                self._previous_leaders += self._leaders(runs, "the search is there")

    def _add_member(self, prepared: Prepared, before: list[str]) -> None:
        host = prepared.saved.target

        def again(usd: float | None) -> Prepared:
            return plan_member(self.services, self._place, self._saved, self._source, host, usd)

        def unusable(error: FcctlError) -> None:
            self._notes.note(f"host {host.name}: cannot be used: {_in_words(error)}")
            self.members[host.name].stop("this computer has no connection to the search")

        tunnel = WorkerTunnel(self._tunnels, host, self._is_on_host, self._leader_tunnel)
        tunnel.before, tunnel.on_failure = before, unusable
        self._worker_tunnels[host.name] = tunnel
        self.members[host.name] = Member(
            self._make, tunnel, prepared, again, self._waking, self._notes, self._is_running, before
        )

    def _tunnel_to_leader(self, saved: SavedPlan) -> LeaderTunnel:
        def unusable(error: FcctlError) -> None:
            self._notes.note(f"the search continues on {saved.target.name} only: {_in_words(error)}")
            for member in self.members.values():
                member.stop("the search cannot be reached")

        tunnel = LeaderTunnel(self._tunnels, saved.target, self._leader_is_on_host)
        tunnel.on_failure = unusable
        tunnel.set_run(saved.plan.run_id)
        return tunnel

    def _leaders(self, run_ids: Sequence[str], why: str) -> list[PreviousLeader]:
        """Those of ``run_ids`` that are active, to be ended for the reason ``why``."""
        plans = [(run_id, self.services.store.plan_of(run_id)) for run_id in run_ids]
        return [
            PreviousLeader(self._make, self._notes, run_id, str((plan.get("target") or {}).get("name")), why)
            for run_id, plan in plans
            if plan is not None
        ]

    def coordinate(self, search: Search) -> Finished | None:
        """Run ``search``, on another machine if its own is lost. At its end all members are released, or a note names
        those that are not."""
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
            run_id = detached.run_id
            news = f"the search {run_id} is active; follow it with all its machines: fcctl tune --resume {run_id}"
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
        """After a second Ctrl-C."""
        store, own = self.services.store, self._saved.plan.run_id
        for run_id in store.active():
            plan = (store.plan_of(run_id) or {}).get("plan") or {}
            if own in (run_id, plan.get("resume_from")):
                self._notes.note(f"run {run_id} is not complete yet: fcctl pull-results {run_id}")

    # ------------------------------------------------------------------------------------------------- a lost leader
    def _search_with_successors(self, search: Search) -> Finished | None:
        """Raises: FcctlError, if the leader is lost and no other machine can lead."""
        while True:
            finished: Finished | None = None
            error: FcctlError | None = None
            try:
                finished = search()
                if finished is None or finished.record.status not in ("lost", "preempted"):
                    return finished
                why: str = finished.record.status
            except FcctlError as raised:
                is_lost = isinstance(raised, MachineStopped | HostUnreachable | LinkLost)
                if not is_lost and not self._moving_from:
                    raise
                error, why = raised, "no connection" if is_lost else _in_words(raised)
                if isinstance(raised, MachineStopped):
                    why = raised.status.replace("_", " ")
            again = self._search_elsewhere(why, self._known_journal(finished))
            if again is None:
                if error is not None:
                    raise error
                return finished
            search = again

    def _known_journal(self, finished: Finished | None) -> bytes | None:
        """The search's journal: the collected one, the one read last, or the one still to be sent."""
        collected = stored_journal(self.services.store, finished.record.run_id) if finished is not None else None
        return longest(collected, self._leader_tunnel.journal, self._leader_tunnel.seed)

    def _search_elsewhere(self, why: str, journal: bytes | None) -> Search | None:
        """The search on an active member's machine; None if none can be reached, or the search never began."""
        if not self._was_at_work(journal):
            return None
        lost, moves = self._saved.target.name, bool(self._moving_from)
        self._moving_from += self._leaders([self._saved.plan.run_id], why)
        while (successor := self._successor_in_time(f"host {lost}: {why}")) is not None:
            moves = True
            self._notes.note(f"host {lost}: {why}; the search continues on {successor.name} with all finished trials")
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
        """The leader runs the search: end the runs of earlier leaders."""
        leaders, self._moving_from = self._moving_from, []
        self._previous_leaders += leaders
        for leader in leaders:
            leader.start()

    def _successor_in_time(self, news: str) -> Member | None:
        """A member to lead; an fcctl that has just begun may still be connecting. Ctrl-C prints the ``news``."""
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
        """Raises LinkLost if the leader stays out of reach and another machine could lead."""
        away_s = self._leader_tunnel.away_s
        if away_s > LEADER_AWAY_S and self._was_at_work(self._known_journal(None)) and self._successor() is not None:
            raise LinkLost(f"no connection to {self._saved.target.name} for {away_s:.0f} s, but to other machines")

    # ------------------------------------------------------------------------------------------------- what happens
    def _is_on_host(self, run_id: str) -> bool:
        return on_host(self.services.store, run_id)

    def _leader_is_on_host(self, run_id: str) -> bool:
        """Another run may have resumed the search meanwhile."""
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
        """A line about a host in the log of the search, which is not trusted."""
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._notes.note(line)
        name, _, text = line.removeprefix("host ").partition(": ")
        self._there[name] = text != "lost" and not text.startswith("left out")
        if name in self.members and text.startswith("left out"):
            self.members[name].left_out.set()

    # ------------------------------------------------------------------------------------------------- the end
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
                runs = " ".join(r for m in left for r in m.runs if not self.services.store.is_complete(r))
                self._notes.note(
                    f"not released: {', '.join(m.name for m in left)}; their own time limits stop them; to stop them "
                    f"now: fcctl hosts audit --stop" + (f", fcctl cancel {runs}" if runs else "")
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
            self._notes.note(
                f"the search did not continue on another machine; continue it: fcctl tune --resume {run_id}"
            )
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
        """Whether the search could dismiss it: it had joined, and its tunnel is up."""
        is_there = self._there.get(name, self._presumed)
        return is_there and self._leader_tunnel.scheduler is not None and self._worker_tunnels[name].is_up

    def _stop(self, members: Sequence[Member]) -> None:
        if members:
            self.observer.phase("end", f"releasing {', '.join(m.name for m in members)}")
        for member in members:
            threading.Thread(target=member.stop, args=("the search has ended",), name="fcctl-stop", daemon=True).start()
        for member in members:
            member.join()


def _in_words(error: FcctlError) -> str:
    return "; ".join(part for part in (error.message, error.cause, error.hint) if part)
