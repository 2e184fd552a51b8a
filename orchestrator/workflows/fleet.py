"""A search over several machines: a run on the first, a member's run on each other, and the ways between them.

The search goes on where it is, with that machine's own GPUs, if this computer sleeps or this process is killed. The
others are of use only while this process leads them there; without it they wait for a while, then end. If the search's
machine is lost, another one has the search, from what was found until then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from fcctl_remote import wire
from orchestrator.domain.fleet import HOST_LINE, JOURNAL, MAX_JOURNAL_BYTES
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.domain.target import Target
from orchestrator.errors import FcctlError, LinkLost, MachineStopped
from orchestrator.ports import Observer, Services, Tunnels
from orchestrator.workflows.fleet_member import Member, close_waiting, on_host
from orchestrator.workflows.fleet_plan import Place, Plans, plan_again, plan_member
from orchestrator.workflows.fleet_ways import SOON_S, Hub, Spoke
from orchestrator.workflows.link import Link
from orchestrator.workflows.prepare import Prepared
from orchestrator.workflows.run import Finished, run
from orchestrator.workflows.waking import Waking

#: When the search has ended, how long its members may take to end in order, seconds. Its goodbye reached them before.
GOODBYE_S = 30.0
#: The search's machine may be away for so long while others are there, seconds.
LEADER_AWAY_S = 60.0
#: When the search's machine is lost, how long another one that is at work may take to be reached, seconds.
REACHED_S = 15.0
#: Lines of the search that are about machines and are shown, at most.
MAX_LINES = 500
Make = Callable[[Observer], Services]


class Conductor:
    """Has the members work while the search goes on, and lets all of them go at its end.

    Args:
        make: what a workflow may touch, for one thread, with this observer.
        left: runs of members that an earlier fcctl left, by target, oldest first.
    """

    def __init__(
        self,
        make: Make,
        tunnels: Tunnels,
        place: Place,
        plans: Plans,
        waking: Waking,
        observer: Observer,
        left: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.observer = Watching(observer, self._said, from_now=left is not None)
        self.services = make(self.observer)
        saved = plans.search.saved
        self._notes = observer
        self._place = place
        self._source = plans.search.source
        self._saved = saved
        self._lines = 0
        self._tunnels = tunnels
        self._waking = waking

        def is_there(run_id: str) -> bool:
            return on_host(self.services.store, run_id)

        self._hub = self._way_to_the_search(saved)
        if left is not None and saved.fleet and saved.fleet.before:  # it may still wait for what was found elsewhere
            self._hub.seed = self._at_home(saved.fleet.before[-1])
        self.members: dict[str, Member] = {}
        self._spokes: dict[str, Spoke] = {}
        for first in plans.members:
            host = first.saved.target
            before = list((left or {}).get(host.name, ()))
            spoke = self._spokes[host.name] = Spoke(tunnels, host, is_there, self._hub)
            spoke.before, spoke.hopeless = before, self._no_way_to(host.name)
            self.members[host.name] = Member(make, spoke, first, self._again(host), waking, observer, before)

    def _way_to_the_search(self, saved: SavedPlan) -> Hub:
        hub = Hub(self._tunnels, saved.target, self._search_is_there)
        hub.hopeless = self._no_way
        hub.leads_to(saved.plan.run_id)
        return hub

    def conduct(self, search: Callable[[], Finished | None]) -> Finished | None:
        """Carry ``search`` out, on another machine if its own is lost; then nothing is left of the members, or it is
        told what is."""
        self._hub.start()
        for spoke in self._spokes.values():
            spoke.start()
        for member in self.members.values():
            member.start()
        ended = False
        try:
            finished = self._led(search)
            ended = True
            return finished
        finally:
            self._end(in_order=ended)

    # ------------------------------------------------------------------------------------------------- a lost leader
    def _led(self, search: Callable[[], Finished | None]) -> Finished | None:
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
            except LinkLost as lost:
                error, why = lost, "out of reach"
            again = self._follow_on(why, self._found(finished))
            if again is None:
                if error is not None:
                    raise error
                return finished
            search = again

    def _found(self, finished: Finished | None) -> bytes | None:
        """The journal of the search: as it came home, else as it was seen last."""
        return (self._at_home(finished.record.run_id) if finished is not None else None) or self._hub.journal

    def _at_home(self, run_id: str) -> bytes | None:
        path = self.services.store.folder(run_id) / JOURNAL
        with contextlib.suppress(OSError):
            if 0 < path.stat().st_size <= MAX_JOURNAL_BYTES:
                return path.read_bytes()
        return None

    def _follow_on(self, why: str, journal: bytes | None) -> Callable[[], Finished | None] | None:
        """The search on a machine that is at work for it and can be reached; None if there is none, or nobody has seen
        the search at work."""
        was_at_work = self._hub.scheduler is not None or journal is not None
        lost, heir = self._saved.target.name, self._heir_in_time() if was_at_work else None
        if heir is None:
            return None
        self._notes.note(f"host {lost}: {why}; the search moves to {heir.name}, with what was found")
        left = heir.give_way()
        own = self.services
        close_waiting(own, self._saved.plan.run_id, f"{why}; the search moved to {heir.name}")
        host = next(host for host in (self._saved.fleet.members if self._saved.fleet else ()) if host.name == heir.name)
        try:
            prepared = plan_again(own, self._place, self._saved, self._source, host, left, seeded=journal is not None)
        except FcctlError as error:
            self._notes.note(f"host {heir.name}: {_in_words(error)}")
            return self._follow_on(why, journal)
        for way in (self._hub, self._spokes[heir.name]):
            way.close()
        self._saved = prepared.saved
        self._hub = self._way_to_the_search(prepared.saved)
        self._hub.seed = journal
        for spoke in self._spokes.values():
            spoke.hub = self._hub
        self._hub.start()
        return lambda: run(own, self.link(), prepared.saved, self._source, waking=self._waking)

    def _heir_in_time(self) -> Member | None:
        """One that is at work may just be being reached, by an fcctl that has only begun."""
        clock = self.services.clock
        deadline = clock.monotonic() + REACHED_S
        while (heir := self._heir()) is None:
            if clock.monotonic() >= deadline or not any(member.works for member in self.members.values()):
                return None
            clock.sleep(SOON_S)
        return heir

    def _heir(self) -> Member | None:
        return next((m for m in self.members.values() if m.works and self._spokes[m.name].is_up), None)

    def link(self) -> Link:
        """To the search's machine."""
        link = Link(self.services.hosts, self._saved.target, self.services.clock, self.observer)
        link.doubts.append(self.doubt)
        return link

    def doubt(self) -> None:
        """Of a link that broke: raises LinkLost if the search's machine stays away and another could go on."""
        away_s = self._hub.away_s
        if away_s > LEADER_AWAY_S and self._heir() is not None:
            raise LinkLost(f"no link to {self._saved.target.name} for {away_s:.0f} s, and others answer")

    # ------------------------------------------------------------------------------------------------- what happens
    def _search_is_there(self, run_id: str) -> bool:
        """It may have become another run since, which goes on with it."""
        store = self.services.store
        for later in store.active():
            if ((store.plan_of(later) or {}).get("plan") or {}).get("resume_from") == run_id:
                self._hub.leads_to(later)
                return False
        return on_host(store, run_id)

    def _again(self, host: Target) -> Callable[[float | None], Prepared]:
        return lambda usd: plan_member(self.services, self._place, self._saved, self._source, host, usd)

    def _said(self, line: str) -> None:
        """The search, which is not trusted, has a word on one of the machines."""
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._notes.note(line)
        name, _, text = line.removeprefix("host ").partition(": ")
        if name in self.members and text.startswith("left out"):
            self.members[name].left_out.set()

    def _no_way(self, error: FcctlError) -> None:
        self._notes.note(f"the search has {self._saved.target.name} alone: {_in_words(error)}")
        for member in self.members.values():
            member.stop("the search cannot be reached")

    def _no_way_to(self, name: str) -> Callable[[FcctlError], None]:
        def hopeless(error: FcctlError) -> None:
            self._notes.note(f"host {name}: of no use: {_in_words(error)}")
            self.members[name].stop("no way leads from here to the search")

        return hopeless

    # ------------------------------------------------------------------------------------------------- the end
    def _end(self, *, in_order: bool) -> None:
        at_work = [m for m in self.members.values() if not m.join(0)]
        for member in at_work:
            member.over.set()
        if in_order:
            clock = self.services.clock
            deadline = clock.monotonic() + GOODBYE_S
            for member in at_work:
                if self._spokes[member.name].is_up:
                    member.join(max(0.0, deadline - clock.monotonic()))
        try:
            self._stop([m for m in at_work if not m.join(0)])
        finally:
            for way in (*self._spokes.values(), self._hub):
                way.close()
            for way in (*self._spokes.values(), self._hub):
                way.join()

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
        try:
            for member in members:
                member.join()
        except KeyboardInterrupt:
            names = ", ".join(m.name for m in members if not m.join(0))
            self._notes.note(f"left to their own limits: {names}; see to them with: fcctl ps, fcctl hosts audit")
            raise


class Watching:
    """The search's own observer, and an ear for what its log says of the machines."""

    def __init__(self, inner: Observer, heard: Callable[[str], None], *, from_now: bool) -> None:
        """``from_now``: what it said before is no news."""
        self._inner = inner
        self._heard = heard
        self._deaf = from_now
        self._step: str | None = None
        self._seen = 0
        self._rest = b""

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None:
        if reply.log_step != self._step:
            self._step, self._seen, self._rest = reply.log_step, 0, b""
        fresh = log_tail if reply.log_offset >= self._seen else log_tail[self._seen - reply.log_offset :]
        self._seen = max(self._seen, reply.log_offset + len(log_tail))
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        self._rest = self._rest[-1000:]
        deaf, self._deaf = self._deaf, self._deaf and not log_tail
        for line in [] if deaf else lines:
            if HOST_LINE.fullmatch(line.rstrip(b"\r")):
                self._heard(line.decode(errors="replace"))
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


def _in_words(error: FcctlError) -> str:
    return "; ".join(part for part in (error.message, error.cause, error.hint) if part)
