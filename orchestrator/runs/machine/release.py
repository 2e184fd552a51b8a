"""Releases a run's machine: stops it, keeps it, deletes it, or leaves it to whoever else uses it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.base.errors import DiskError, FcctlError, HostError, LinkLost
from orchestrator.base.journal import newest
from orchestrator.leases.machine_lease import MachineLease
from orchestrator.machines.cloud import Machine, Power
from orchestrator.machines.provision import release as releasing
from orchestrator.machines.provision.actions import started_by_hosts_up
from orchestrator.machines.shutdown_timer import keep_on
from orchestrator.money.caps import dollars
from orchestrator.results.records import RunRecord
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.machine.pending_releases import PERSON, neighbours, off_before_a_person
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.leases.session_rules import SavedSession


class Releaser:
    """Releases the machine of one run."""

    def __init__(self, services: Services, lease: MachineLease, saved: SavedPlan) -> None:
        self._services, self._lease, self._saved = services, lease, saved
        self._target, self._log, self._run_id = lease.target, lease.log, saved.plan.run_id
        #: The runs that the machine itself knows, this one among them; None: unknown.
        self._known_there: set[str] | None = None
        #: When the machine went off, if it was started again since; epoch seconds.
        self._off: float | None = None

    def release(self, *, ran: bool, on_disk: str | None = None) -> None:
        """Releases the machine as its target says. ``ran``: the run was collected, so that the machine may be kept;
        ``on_disk``: what only its disk has, so that it is not deleted. What fails now is left to later commands."""
        self._services.left_on.had_by(self._run_id)
        session = self._session_there()
        if session is not None and session.session_id != self._saved.session:
            self._log("released", how="used", by=session.session_id)
            return
        policy: releasing.Policy = "keep" if session is not None else self._policy(ran, on_disk)
        minutes = session.idle_minutes if session is not None else self._target.keep_minutes
        minutes -= self._idle_before_the_end(minutes)
        self._log("release", policy=policy)
        if not (self._lease.acquired() or self._lease.start_requests()):
            self._log("released", how="untouched")
            return
        if self._lease.acquired().get("joins") or self._did_nothing_there():
            armed = newest(self._lease.entries(), "acquire", "armed")
            if armed.get("token") and self._goes_back():
                return
            self._give_timer_back(armed.get("before"), minutes)
            self._log("released", how="used", by="its earlier owner")
            return
        user = self._user_of_it()
        if user is not None:
            self._leave_it_to(user)
            return
        if policy == "keep" and self._keep(minutes):
            return
        if policy != "keep" and self._goes_back():
            return
        self._stop("stop" if policy == "keep" else policy)

    def _policy(self, ran: bool, on_disk: str | None) -> releasing.Policy:
        """What the target says, as far as no results are lost by it."""
        if self._target.release == "keep":
            return "keep" if ran else "stop"
        if self._target.release == "delete" and (waiting := self._left_there()):
            on_disk = f"the results of {waiting} are on its disk (fcctl pull-results --wake {waiting})"
        if self._target.release == "delete" and on_disk is not None:
            self._services.observer.note(f"fcctl stops {self._target.instance} instead of deleting it: {on_disk}")
            return "stop"
        return self._target.release

    def turn_off_again(self) -> float | None:
        """Stops what a failed wake started, unless somebody else uses it by now; returns when, by the cloud's clock. A
        failed stop becomes a pending release."""
        acquired = self._lease.acquired()
        if not (acquired or self._lease.start_requests()):
            return None
        if acquired and not acquired.get("turned_on"):
            self._note_user("another owner")
            return None
        user = self._user_of_it()
        try:
            done = self._lease.release("stop", lambda machine: user or self._in_use_by(machine))
        except releasing.InUse as wanted:
            self._note_user(wanted.by)
            if wanted.by != PERSON:
                self._add_pending(left=self._services.clock.now())
            return None
        except FcctlError as error:
            self._record_pending(error)
            return None
        return next((r.stopped for r in done if r.stopped is not None), None)

    def stop_unrecorded(self) -> None:
        """Stops the machine unless it was on before, or another run is on it, as it says itself: this computer's disk
        cannot tell."""
        lease, note = self._lease, self._services.observer.note
        if lease.acquired() and not lease.acquired().get("turned_on"):
            return
        try:
            if releasing.others_on_host(self._services, self._target, self._run_id) is None:
                lease.release("stop")
                note(f"{self._target.instance} is off")
        except (FcctlError, OSError) as error:
            note(f"{self._target.instance} may still be on: {error}; check: fcctl hosts audit")

    def delete_stopped(self) -> None:
        """Deletes the stopped machine if its target says ``delete`` and nobody else needs it; one that cannot be
        deleted stays off."""
        others = neighbours(self._services, self._target, self._run_id)
        if self._target.release != "delete" or any(n.uses_it or n.left_behind for n in others):
            return
        if not self._lease.release_requests():
            return

        def is_on(machine: Machine) -> str | None:
            return None if machine.power is Power.STOPPED else "its earlier owner"

        #: When it went off, which what becomes of it now does not change.
        off = next((e.data.get("at") for e in reversed(self._lease.entries()) if e.kind == "stopped"), None)
        self._log("release", policy="delete")
        try:
            deleted = asdict(self._lease.release("delete", is_on)[0])
            self._log("released", **{**deleted, "stopped": deleted["stopped"] or off})
        except releasing.InUse as wanted:
            self._log("released", how="used", by=wanted.by, stopped=off)
        except FcctlError as error:
            self._services.observer.note(f"{self._target.instance} is off, but could not be deleted: {error.message}")
            self._log("released", how="stopped", stopped=off)

    def left_behind(self) -> list[str]:
        """Runs on the machine that nobody follows: they are collected before it is stopped."""
        return [n.run_id for n in neighbours(self._services, self._target, self._run_id) if n.left_behind]

    def _left_there(self) -> str | None:
        """A run whose results may be only on the machine's disk: of this workspace, or of another one of this user,
        which the ledger has as not complete."""
        if left := self.left_behind():
            return left[0]
        machine, open_ = (self._target.project, self._target.instance), self._services.spending.state().open()
        others = (
            o for o in open_.values() if o.machine == machine and o.results != self._services.spending.scope.results
        )
        return next((one.owner_id for one in others if one.owner in ("run", "wake")), None)

    def _idle_before_the_end(self, minutes: float) -> float:
        """Of the ``minutes`` that an unused machine stays on, those that are over when its idle GPU ends a run."""
        rule = self._saved.plan.idle
        status = next((e.data.get("status") for e in reversed(self._lease.entries()) if e.kind == "ended"), None)
        if rule is None or status != "idle":
            return 0.0
        return min(rule.seconds / 60, max(0.0, minutes - wire.LEAST_IDLE_STOP_S / 60))

    def _session_there(self) -> SavedSession | None:
        """The open session whose machine this is: the same machine, since the same start."""
        acquired, found = self._lease.acquired(), None
        if not acquired or acquired.get("turned_on"):
            return None
        with self._services.unread.noted():
            if self._services.sessions.open() or self._services.sessions.abroad():
                from orchestrator.leases.session_rules import open_on

                found = open_on(self._services.sessions, str(acquired["instance_id"]), acquired.get("started"))
        return found.saved if found is not None else None

    def _did_nothing_there(self) -> bool:
        """Whether somebody else started the machine and this run did nothing on it: they may be about to use it. Not if
        their run is known to be over."""
        acquired = self._lease.acquired()
        submitted = any(entry.kind == "submit" for entry in self._lease.entries())
        if submitted or not acquired or acquired.get("turned_on") or self.left_behind():
            return False
        pending = [
            hold for release in self._services.store.pending_releases().values() for hold in release.get("holds") or ()
        ]
        return not any(hold.get("instance_id") == acquired["instance_id"] for hold in pending)

    def _give_timer_back(self, before: float | None, minutes: float) -> None:
        """Moves the timer back that this run moved later: to its earlier deadline, ``before``, or ``minutes`` from now
        if that is later. Else the machine would be on unused for as long as this run could have taken. Not if another
        run may need it."""
        if before is None or self._user_of_it() is not None or self._known_there is None:
            return
        host = self._lease.host
        with suppress(FcctlError):
            seconds = max(minutes * 60, before - host.host_now())
            keep_on(host, seconds, self._lease.token, "a run did not begin", longer=False)

    def _user_of_it(self) -> str | None:
        """Another run that is on the machine, or about to be."""
        own = self._run_id
        for neighbour in neighbours(self._services, self._target, own):
            if neighbour.uses_it:
                return neighbour.run_id
        if not self._lease.acquired():
            return None
        found = self._runs_there()
        if found is None:
            return None
        self._known_there = {own, *(r.run_id for r in found)}
        return next((r.run_id for r in found if r.run_id != own and r.status not in wire.RUN_ENDINGS), None)

    def _runs_there(self) -> list[wire.RunSummary] | None:
        """The runs that the machine lists; None if it does not answer. Asked again over a new connection if this one
        has broken: another computer's run must not be stopped for that."""
        host = self._lease.host
        try:
            try:
                return host.session().status(None)
            except LinkLost:
                host.close()
                return host.session().status(None)
        except HostError:
            return None

    def _in_use_by(self, machine: Machine) -> str | None:
        run_id, entries = self._run_id, self._lease.entries()
        is_a_persons, self._off = off_before_a_person(self._services, self._target, machine, run_id, entries)
        return PERSON if is_a_persons else self._waiting_run(machine)

    def _waiting_run(self, machine: Machine) -> str | None:
        """A run that has labelled the machine and is about to use it; only a machine that was started for this run is
        checked."""
        if self._known_there is None or not self._lease.acquired().get("turned_on"):
            return None
        return releasing.waiting_runs(machine, self._known_there, self._services.store.is_complete)

    def _note_user(self, user: str) -> None:
        self._services.observer.note(f"{self._target.instance} stays on: {user} uses it")

    def _leave_it_to(self, user: str) -> None:
        self._note_user(user)
        # That run may yet be refused or die before it has the machine, and would not know that it is to stop it.
        self._add_pending(left=self._services.clock.now())
        self._log("released", how="used", by=user)

    def _keep(self, minutes: float) -> bool:
        """Leave it on for the next run, with a timer that turns it off if there is none."""
        try:
            until = keep_on(self._lease.host, minutes * 60, self._lease.token, f"kept for {minutes:g} minutes")
        except FcctlError:
            until = None
        if until is None:
            self._services.observer.note(
                f"fcctl stops {self._target.instance}: it cannot stay on, because its shutdown timer cannot be set"
            )
            return False
        self._log("released", how="kept", until=until)
        self._services.observer.note(f"{self._target.instance} stays on for {minutes:g} minutes; then it stops itself")
        return True

    def _goes_back(self) -> bool:
        """Leave a machine on that was on before, because a person woke it for longer (``fcctl hosts up``)."""
        acquired = self._lease.acquired()
        if not acquired or acquired.get("turned_on"):
            return False
        now = self._services.clock.now()
        try:
            cloud = self._services.clouds.open(self._target)
            machine = cloud.machine(str(acquired["zone"]), self._target.instance)
            if machine is None or machine.id != acquired["instance_id"] or not started_by_hosts_up(machine, now):
                return False
            # The run's timer would end it too early.
            keep_on(self._lease.host, (machine.deadline or now) - now, self._lease.token, "fcctl hosts up")
        except FcctlError:
            return False
        self._services.observer.note(
            f"{machine.name} stays on, because fcctl hosts up started it; to stop it: fcctl hosts down"
        )
        self._log("released", how="used", by="fcctl hosts up")
        return True

    def _stop(self, policy: releasing.Policy) -> None:
        try:
            done = self._lease.release(policy, self._in_use_by)
        except releasing.InUse as wanted:
            if wanted.by == PERSON:
                self._note_user(PERSON)
                self._log("released", how="used", by=PERSON, stopped=self._off)
            else:
                self._leave_it_to(wanted.by)
            return
        except FcctlError as error:
            self._unreleased(error)
            return
        finally:
            self._lease.host.close()
        off = next((r for r in done if r.how in ("stopped", "deleted") or r.started is not None), done[0])
        self._log("released", **asdict(off))
        self._services.store.remove_pending_release(self._run_id)

    def _unreleased(self, error: FcctlError) -> None:
        """Sets the machine's own timer and records a pending release: the cloud does not stop it."""
        until = self._lease.stop_itself()
        self._record_pending(error, "; the machine turns itself off in two minutes" if until is not None else "")
        self._log("unreleased", reason=error.message, cause=error.cause, until=until)

    def _record_pending(self, error: FcctlError, itself: str = "") -> None:
        what = f"{self._target.instance} could not be stopped: {error.one_line}{itself}"
        self._services.observer.note(f"{what}. Check it: fcctl hosts audit")
        self._add_pending(tried=self._services.clock.now(), why=error.message)

    def _add_pending(self, **facts: object) -> None:
        """Records a pending release. Raises DiskError if it cannot; the run's journal then says that the machine is not
        released."""
        holds = [asdict(hold) for hold in self._lease.release_requests()]
        pending = {"target": self._saved.target.model_dump(mode="json"), "holds": holds, **facts}
        self._services.store.add_pending_release(self._run_id, pending)


def on_its_disk(full: DiskError, saved: SavedPlan, record: RunRecord, *, off: bool) -> DiskError:
    """Returns ``full`` with the run's status and cost, where its results are, and what fetching them costs. ``off``:
    whether the machine is off."""
    machine = saved.target.cloud
    name = machine.instance if machine is not None else saved.target.name
    cost = f"{'would have' if record.cost.emulated else 'has'} cost {dollars(record.cost.usd)} so far"
    came_to = f"the run ended as {record.status.replace('_', ' ')} and {cost}"
    if not off:
        cause = f"{full.cause}; {came_to}; its results are on {name}, which may still be on"
        return DiskError(full.message, cause=cause, hint=f"free disk space, then: fcctl pull-results {record.run_id}")
    price = "" if record.cost.emulated else f" for {dollars(saved.wake_usd)} at most"
    return DiskError(
        full.message,
        cause=f"{full.cause}; {came_to}; its results are on the disk of {name}, which is off",
        hint=f"free disk space, then fetch them{price}: fcctl pull-results --wake {record.run_id}",
    )
