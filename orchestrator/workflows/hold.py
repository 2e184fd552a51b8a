"""A run's machine in a cloud: had before anything is sent, watched while the run is on it, let go when it is home.

For a machine that is simply there (``local``, ``ssh``) none of this is loaded.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from fcctl_remote import wire
from orchestrator.domain.acquire import deadline_of
from orchestrator.domain.acquire_moves import Wish
from orchestrator.domain.cloud import Endpoint, Machine, Power
from orchestrator.domain.ending import stopped_under
from orchestrator.domain.endpoint import endpoint
from orchestrator.domain.guard import on_since, reserve_s, stop_by
from orchestrator.domain.machine_cost import machine_cost, machine_record, rate_of
from orchestrator.domain.machine_spec import Purpose, woken_by_hand
from orchestrator.domain.records import JournalEntry, RunRecord
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.domain.stopped import Stopped, why_stopped
from orchestrator.domain.target import GcpTarget, SandboxTarget
from orchestrator.errors import BudgetError, FcctlError, HostError, MachineStopped
from orchestrator.ports import ActiveRun, Services
from orchestrator.workflows import release as releasing
from orchestrator.workflows.acquire import acquire
from orchestrator.workflows.lease import Armed, Fence, arm_within, keep_on, shorten, token_of
from orchestrator.workflows.link import Link
from orchestrator.workflows.machines import STOP_LIMIT_S, Log
from orchestrator.workflows.neighbours import neighbours
from orchestrator.workflows.ready import make_ready

if TYPE_CHECKING:
    from orchestrator.domain.session import SavedSession

#: Past the steps' worst case, what a machine that runs already must have left: for sending and fetching, seconds.
NEED_MARGIN_S = 5 * 60.0
#: A machine that does not answer on its last known address for so long is asked after, seconds.
ASK_CLOUD_AFTER_S = 1.0
#: How often the cloud is asked about a machine whose link is lost, seconds.
DOUBT_EVERY_S = 5.0
#: How long a machine that runs, and was reached before, is given to answer again, seconds.
REVIVE_S = 30.0
#: If a machine cannot be stopped through the cloud, it turns itself off after so long, seconds.
LAST_RESORT_S = 120.0


def is_in_cloud(saved: SavedPlan) -> bool:
    """Whether the run's machine is one that fcctl wakes and stops."""
    return isinstance(saved.target, GcpTarget | SandboxTarget)


class MachineHold:
    """Moves the machine of one active run along. The journal is its only memory."""

    def __init__(self, services: Services, link: Link, active: ActiveRun, saved: SavedPlan, log: Log) -> None:
        target = saved.target
        if not isinstance(target, GcpTarget | SandboxTarget):
            raise TypeError(f"target {target.name} is in no cloud")
        self._services = services
        self._clock = services.clock
        self._link = link
        self._active = active
        self._saved = saved
        self._log = log
        self._target = services.clouds.resolve(target)
        self._doubted = float("-inf")
        link.doubt = self.check

    @property
    def target(self) -> GcpTarget:
        """The machine that is meant, as a target of its cloud."""
        return self._target

    @property
    def run_id(self) -> str:
        return self._active.run_id

    # ----------------------------------------------------------------------------------------------------- acquire
    def acquire(self, *, restart: bool = False, allow_unfenced: bool = False) -> None:
        """Have the machine: awake, within its fence, answering over the link.

        Raises:
            FcctlError: it cannot be had; what was turned on is in the journal.
        """
        worst_s = self._saved.worst_case_minutes * 60
        wish = Wish(
            max_run_s=self._saved.fence_s or int(self._target.max_run_minutes * 60),
            need_s=worst_s + (NEED_MARGIN_S if self._saved.stop_at_usd is None else self._reserve_s()),
            start=self._saved.session is None,
            restart=restart,
            allow_unfenced=allow_unfenced,
        )
        self._acquire(wish)

    def wake(self, seconds: int) -> None:
        """Have the machine once more, only to fetch what is on its disk; it is never made anew for that."""
        self._acquire(Wish(max_run_s=seconds, need_s=60.0, create=False))

    def join(self) -> bool:
        """Whether the machine of a run that waits for it is on again, by somebody else's doing, and answers."""
        known = self._services.book.known(self._target.project, self._target.instance)
        if known is None or known.instance_id != self._last_known().get("instance_id"):
            return False
        warm = self._warm(Wish(max_run_s=0, need_s=60.0))
        if warm is None:
            return False
        self._log("acquire", joins=True)
        self._log("acquired", **_facts(warm), warm=True, turned_on=False, joins=True, spot=self._was_spot())
        return True

    def _acquire(self, wish: Wish) -> None:
        self._log("acquire", max_run_s=wish.max_run_s)
        self._let_others_stop_it()
        warm = None if wish.restart else self._warm(wish)
        if warm is not None:
            self._log("acquired", **_facts(warm), warm=True, turned_on=False, spot=self._was_spot())
            return
        self._link.close()
        purpose = Purpose(self.run_id, self._saved.plan.workspace)
        got = acquire(self._services, self._target, wish, purpose, self._log)
        way = make_ready(self._services, self._target, got.machine, self._link, self._log)
        way = replace(way, deadline=deadline_of(got.machine))
        self._services.book.remember(way)
        self._log("acquired", **_facts(way), warm=False, turned_on=got.started, spot=got.machine.spot)

    def _warm(self, wish: Wish) -> Endpoint | None:
        """The machine by what is remembered of it, if it answers at once; then no cloud is asked.

        Its host key proves which machine it is, and its deadline cannot have moved while it ran.
        """
        known = self._services.book.known(self._target.project, self._target.instance)
        if known is None or known.deadline is None or known.deadline - self._clock.now() < wish.need_s:
            self._link.close()
            return None
        self._link.open_soon()
        began, asked = self._clock.monotonic(), None
        while (opened := self._link.opened()) is None:
            if asked is None and self._clock.monotonic() - began > ASK_CLOUD_AFTER_S:
                asked = self._ask_cloud(known.zone)
            if asked is not None and asked.done() and not _is_up(asked, known):
                self._link.close()
                return None
            self._clock.sleep(0.005)
        if not opened or known.deadline - self._link.host_now() < wish.need_s:
            self._link.close()
            return None
        self._services.observer.phase("wake", f"{known.name} is up")
        return known

    def _was_spot(self) -> bool:
        """What a machine that was not asked for was bought as: nobody knows without the cloud, so the first choice."""
        return self._target.provisioning in ("spot", "spot_then_on_demand")

    def _ask_cloud(self, zone: str) -> Future[Machine | None]:
        """In the background, because loading the cloud's library takes seconds."""
        answer: Future[Machine | None] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._services.clouds.open(self._target).machine(zone, self._target.instance))
            except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the answer
                answer.set_exception(error)

        threading.Thread(target=ask, name="fcctl-cloud", daemon=True).start()
        return answer

    # --------------------------------------------------------------------------------------------------- the timer
    def arm(self) -> Armed:
        """Fence 2, before anything else runs there.

        Raises:
            BudgetError: the machine goes off before the steps could be done.
        """
        acquired = self._acquired()
        deadline = acquired.get("deadline")
        fence = Fence(deadline, self._token(), fresh=bool(acquired.get("turned_on")))
        return arm_within(self._link, fence, self._bounded(), self._services.observer)

    def within_budget(self, plan: wire.RunPlan) -> wire.RunPlan:
        """``plan`` with the host program told when the money for it ends, if it is to stop at its budget."""
        until = self._stop_by()
        if until is None or plan.idle_stop_s is None or self._acquired().get("turned_on"):
            return replace(plan, stop_by=until)
        # Fence 1 of a machine that was on already is not this run's: idling counts against the budget there.
        return replace(plan, stop_by=until, idle_stop_s=min(plan.idle_stop_s, self._reserve_s() / 2))

    def _bounded(self) -> wire.RunPlan:
        """The plan, no longer than its budget lasts.

        Raises:
            BudgetError: waking the machine took all of it.
        """
        plan, until = self._saved.plan, self._stop_by()
        if until is None:
            return plan
        left = (until - self._link.host_now()) / 60
        if left <= 0:
            raise BudgetError(
                f"waking {self._target.instance} took all that ${self._saved.stop_at_usd:.2f} buys",
                hint="raise the cap, or try again: another boot may be faster",
            )
        return replace(plan, max_minutes=left if plan.max_minutes is None else min(left, plan.max_minutes))

    def _stop_by(self) -> float | None:
        """When the run has to be over for its budget to hold, epoch seconds of the machine's clock; None: no matter."""
        usd, acquired, entries = self._saved.stop_at_usd, self._acquired(), self._entries()
        if usd is None:
            return None
        now = self._link.host_now()
        if acquired.get("turned_on") and acquired.get("started") is not None:
            began = float(acquired["started"])
        else:
            began = now - max(0.0, self._clock.now() - (on_since(entries, machine=True) or self._clock.now()))
        return stop_by(usd, rate_of(entries, self._saved), began, acquired.get("deadline"))

    def _reserve_s(self) -> float:
        return reserve_s(float(self._saved.fence_s or 0))

    def _token(self) -> str:
        return token_of(self._services.clouds.login(self._target), self._target)

    # -------------------------------------------------------------------------------------------------- is it there
    def check(self) -> None:
        """Raise MachineStopped if the cloud says that the machine does not run any more.

        If it does run, its address may be another one by now, and is remembered. A cloud that does not answer proves
        nothing.
        """
        now = self._clock.monotonic()
        if now - self._doubted < DOUBT_EVERY_S:
            return
        self._doubted = now
        try:
            stopped = self.why_stopped()
        except FcctlError:
            return
        if stopped is not None:
            raise _error(stopped)

    def why_stopped(self) -> Stopped | None:
        """What became of the machine; None while it runs.

        Raises:
            CloudError, AuthError: the cloud does not say.
        """
        acquired = self._last_known()
        if not acquired:
            return None
        cloud = self._services.clouds.open(self._target)
        zone, name = str(acquired["zone"]), self._target.instance
        seen = cloud.machine(zone, name)
        if seen is not None and seen.id == acquired["instance_id"] and seen.power is Power.RUNNING:
            self._remember(seen)
            return None
        timer = next((e.data.get("deadline") for e in reversed(self._entries()) if e.kind == "armed"), None)
        return why_stopped(name, str(acquired["instance_id"]), seen, cloud.operations(zone, name), timer)

    def _remember(self, machine: Machine) -> None:
        """Its address as it is now: a machine that was restarted has another one."""
        known = self._services.book.known(machine.project, machine.name)
        if known is None or known.instance_id != machine.id:
            return
        try:
            way = endpoint(
                machine, known.host_keys, user=known.user, identity_file=known.identity_file, target=self._target,
                now=self._clock.now(),
            )  # fmt: skip
        except HostError:
            return
        self._services.book.remember(way)

    def revive(self) -> None:
        """After the link could not be opened: whatever it takes to open it, if the machine runs.

        Raises:
            MachineStopped: it does not run.
            FcctlError: it runs, and cannot be reached; or the cloud does not say.
        """
        stopped = self.why_stopped()
        if stopped is not None:
            raise _error(stopped)
        zones = [str(self._last_known()["zone"])] if self._last_known() else list(self._zones())
        if not zones:
            raise MachineStopped(f"{self._target.instance} was not woken yet", how="unknown", status="lost")
        zone = zones[0]
        machine = self._services.clouds.open(self._target).machine(zone, self._target.instance)
        if machine is not None and machine.power is Power.RUNNING:
            patient = self._target.model_copy(update={"wake_timeout_s": REVIVE_S})
            make_ready(self._services, patient, machine, self._link, self._log)

    # ------------------------------------------------------------------------------------------------------ release
    def release(self, *, ran: bool) -> None:
        """Let the machine go as its target says. What cannot be done now is left to later commands, and to the fences.

        Args:
            ran: whether a run came to its end there; a machine that never worked is not kept on.
        """
        session = self._session_there()
        if session is not None and session.session_id != self._saved.session:
            self._log("released", how="used", by=session.session_id)
            return
        policy = self._target.release if ran or self._target.release != "keep" else "stop"
        minutes = self._target.keep_minutes
        if session is not None:
            policy, minutes = "keep", session.idle_minutes
        self._log("release", policy=policy)
        if not (self._acquired() or self._zones()):
            self._log("released", how="untouched")
            return
        if self._acquired().get("joins"):
            self._log("released", how="used", by="whoever turned it on")
            return
        user = self._user_of_it()
        if user is not None:
            self._services.observer.note(f"{self._target.instance} stays on: {user} is on it")
            # That run may yet be refused or die before it has the machine, and would not know that it is to stop it.
            self._leave_a_note()
            self._log("released", how="used", by=user)
            return
        if policy == "keep" and self._keep(minutes):
            return
        if policy != "keep" and self._goes_back():
            return
        self._stop("stop" if policy == "keep" else policy)

    def _session_there(self) -> SavedSession | None:
        """The open session whose machine this is: the same machine, since the same start."""
        acquired = self._acquired()
        if not acquired or acquired.get("turned_on") or not self._services.sessions.open():
            return None
        from orchestrator.workflows.session import open_on

        found = open_on(self._services, str(acquired["instance_id"]), acquired.get("started"))
        return found.saved if found is not None else None

    def turn_off_again(self) -> float | None:
        """After a wake that failed: off with whatever it turned on; when that was, by the cloud's clock.

        What cannot be stopped is written down, and has its fences.
        """
        if not (self._acquired() or self._zones()):
            return None
        try:
            done = releasing.release(self._services, self._target, self._holds(), "stop", self._log)
        except FcctlError as error:
            self._owe(error)
            return None
        return next((r.stopped for r in done if r.stopped is not None), None)

    def _keep(self, minutes: float) -> bool:
        """Leave it on for the next run, with a timer that turns it off if there is none."""
        try:
            until = keep_on(self._link, minutes * 60, self._token(), f"kept for {minutes:g} minutes")
        except FcctlError:
            until = None
        if until is None:
            self._services.observer.note(f"{self._target.instance} takes no timer, and is stopped instead of kept")
            return False
        self._log("released", how="kept", until=until)
        self._services.observer.note(f"{self._target.instance} stays on for {minutes:g} minutes; then it stops itself")
        return True

    def _goes_back(self) -> bool:
        """Leave a machine on that was on before, because a person woke it for longer (``fcctl hosts up``)."""
        acquired = self._acquired()
        if not acquired or acquired.get("turned_on"):
            return False
        now = self._clock.now()
        try:
            cloud = self._services.clouds.open(self._target)
            machine = cloud.machine(str(acquired["zone"]), self._target.instance)
            if machine is None or machine.id != acquired["instance_id"] or not woken_by_hand(machine, now):
                return False
            # The run's timer would end it too early.
            keep_on(self._link, (machine.deadline or now) - now, self._token(), "fcctl hosts up")
        except FcctlError:
            return False
        self._services.observer.note(f"{machine.name} stays on, as fcctl hosts up has it; fcctl hosts down stops it")
        self._log("released", how="used", by="fcctl hosts up")
        return True

    def _stop(self, policy: releasing.Policy) -> None:
        try:
            done = releasing.release(self._services, self._target, self._holds(), policy, self._log)
        except FcctlError as error:
            self._unreleased(error)
            return
        finally:
            self._link.close()
        off = next((r for r in done if r.how in ("stopped", "deleted")), done[0])
        self._log("released", **asdict(off))
        self._services.store.paid(self.run_id)

    def _unreleased(self, error: FcctlError) -> None:
        """The cloud does not stop it: have it stop itself, and leave a note for whoever comes next."""
        try:
            until = shorten(self._link, LAST_RESORT_S, self._token(), "the cloud did not stop it")
        except FcctlError:
            until = None
        self._owe(error, "; it turns itself off in two minutes" if until is not None else "")
        self._log("unreleased", reason=error.message, cause=error.cause, until=until)

    def _owe(self, error: FcctlError, itself: str = "") -> None:
        cause = f" ({error.cause})" if error.cause else ""
        what = f"{self._target.instance} could not be stopped: {error.message}{cause}{itself}"
        self._services.observer.note(f"{what}. See to it: fcctl hosts audit")
        self._leave_a_note()

    def _leave_a_note(self) -> None:
        """For whoever comes next: this machine was turned on for us, and is not known to be off."""
        holds = [asdict(hold) for hold in self._holds()]
        self._services.store.owe(self.run_id, {"target": self._saved.target.model_dump(mode="json"), "holds": holds})

    # -------------------------------------------------------------------------------------------------- the account
    def account(self, record: RunRecord) -> RunRecord:
        """``record`` with what the machine cost, and with what became of it if it was stopped under the run."""
        entries = self._entries()
        cost = machine_cost(entries, self._saved, record.steps)
        record = record.model_copy(update={"cost": cost, "machine": machine_record(entries)})
        stopped = next((e.data for e in reversed(entries) if e.kind == "stopped"), None)
        if stopped is None or record.status == "cancelled":
            return record
        hint = f"go on at the first unfinished step: fcctl run --resume {self.run_id}"
        return stopped_under(record, stopped["status"], str(stopped["reason"]), hint)

    # ------------------------------------------------------------------------------------------------- other people
    def left_behind(self) -> list[str]:
        """Runs that nobody follows, whose machine this is: what they have is to be fetched before it goes off."""
        return [n.run_id for n in neighbours(self._services, self._target, self.run_id) if n.left_behind]

    def _user_of_it(self) -> str | None:
        """Another run that is on the machine, or about to be."""
        for neighbour in neighbours(self._services, self._target, self.run_id):
            if neighbour.uses_it:
                return neighbour.run_id
        if not self._acquired():
            return None
        try:
            found = self._link.session().status(None)
        except HostError:
            return None
        return next((r.run_id for r in found if r.run_id != self.run_id and r.status not in wire.RUN_ENDINGS), None)

    def _let_others_stop_it(self) -> None:
        """A run that is just stopping the machine is waited for: to log in now would be to work on a dying one."""
        deadline = self._clock.monotonic() + STOP_LIMIT_S
        while self._clock.monotonic() < deadline:
            if not any(n.lets_go for n in neighbours(self._services, self._target, self.run_id)):
                return
            self._services.observer.phase("wake", f"another run is letting {self._target.instance} go")
            self._clock.sleep(0.2)

    # --------------------------------------------------------------------------------------------------- the journal
    def _entries(self) -> list[JournalEntry]:
        return self._active.journal.entries()

    def _acquired(self) -> dict[str, Any]:
        """What is known of the machine since it was last acquired; empty: it never answered."""
        for entry in reversed(self._entries()):
            if entry.kind == "acquired":
                return entry.data
            if entry.kind == "acquire":
                break
        return {}

    def _last_known(self) -> dict[str, Any]:
        """The machine that the run was on; empty: it never was on one."""
        return next((e.data for e in reversed(self._entries()) if e.kind == "acquired"), {})

    def _zones(self) -> dict[str, float]:
        """Where the cloud was asked to turn a machine on since then, and when; the last place first."""
        zones: dict[str, float] = {}
        for entry in reversed(self._entries()):
            if entry.kind == "acquire":
                break
            if entry.kind == "cloud" and entry.data.get("action") in ("start", "create", "resume"):
                zones.setdefault(str(entry.data["zone"]), entry.time)
        return zones

    def _holds(self) -> list[releasing.Hold]:
        acquired = self._acquired()
        if acquired:
            return [releasing.Hold(str(acquired["zone"]), str(acquired["instance_id"]))]
        return [releasing.Hold(zone, None, made_here=True, asked=at) for zone, at in self._zones().items()]


def _error(stopped: Stopped) -> MachineStopped:
    return MachineStopped(stopped.reason, how=stopped.how, status=stopped.status, at=stopped.at, disk=stopped.disk)


def _facts(way: Endpoint) -> dict[str, object]:
    names = ("project", "zone", "name", "instance_id", "deadline", "started")
    return {name: getattr(way, name) for name in names}


def _is_up(asked: Future[Machine | None], known: Endpoint) -> bool:
    """Whether the cloud, as far as it answers, agrees that the machine is there and on."""
    if asked.exception() is not None:
        return True
    machine = asked.result()
    return machine is not None and machine.id == known.instance_id and machine.power is Power.RUNNING
