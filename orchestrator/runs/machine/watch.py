"""Whether a run's machine is still there while the run is on it, and what became of it if it is not."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from orchestrator.base.clock import iso
from orchestrator.base.errors import FcctlError, HostError, LinkLost, MachineStopped
from orchestrator.leases.stop_reason import StopReason, our_stop, why_stopped
from orchestrator.machines.cloud import Machine, Power
from orchestrator.machines.provision.endpoint import endpoint
from orchestrator.machines.provision.find import query_in_thread
from orchestrator.machines.provision.ready import StoppedDuringStart, make_ready
from orchestrator.runs.machine.state import LeaseState

#: How often the cloud is asked about a machine whose link is lost, seconds.
DOUBT_EVERY_S = 5.0
#: How long a machine that runs, and was reached before, is given to answer again, seconds.
REVIVE_S = 30.0
#: When the cloud is first asked whether a machine that was taken as it was remembered still has its limit, and how
#: often then, seconds since the run is followed. Most runs on a warm machine are over by then, and load no cloud.
GLANCE_AFTER_S = 60.0
GLANCE_EVERY_S = 1800.0
#: How much later than the machine itself the cloud may know that it goes down, and how often it is asked, seconds.
GOES_DOWN_S = 20.0
GOES_DOWN_EVERY_S = 1.0
#: The same moment, told twice, seconds.
_SAME_S = 2.0


class Watch:
    """Asks the cloud about the machine of one run."""

    def __init__(self, held: LeaseState) -> None:
        self._held = held
        self._services = held.services
        self._target = held.target
        self._doubted = float("-inf")
        self._next_glance: float | None = None
        self._asked: Future[Machine | None] | None = None

    def check(self) -> None:
        """Raises MachineStopped if the cloud says that the machine is off; remembers a new address. No answer proves
        nothing."""
        now = self._services.clock.monotonic()
        if now - self._doubted < DOUBT_EVERY_S:
            return
        self._doubted = now
        try:
            stopped = self.why_stopped()
        except FcctlError:
            return
        if stopped is not None:
            raise _error(stopped)

    def glance(self) -> None:
        """Now and then while the run is followed: whether the cloud still stops the machine when it was to.

        Only of a machine that was taken as it was remembered. In the background; no answer is no news.
        """
        now = self._services.clock.monotonic()
        if self._next_glance is None:
            self._next_glance = now + GLANCE_AFTER_S if self._held.acquired().get("warm") else float("inf")
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            if asked.exception() is None:
                self._compare(asked.result())
        if self._asked is None and now >= self._next_glance:
            self._next_glance = now + GLANCE_EVERY_S
            self._asked = query_in_thread(self._services, self._target, str(self._held.acquired()["zone"]))

    def _compare(self, seen: Machine | None) -> None:
        """Say it, and remember it for the next run, if its limit is another one than was thought."""
        acquired = self._held.acquired()
        if seen is None or seen.id != acquired.get("instance_id") or seen.power is not Power.RUNNING:
            return  # the link breaks, and then it is asked what became of it
        was = acquired.get("deadline")
        if seen.deadline is not None and was is not None and abs(seen.deadline - was) < _SAME_S:
            return
        self._remember(seen)
        self._next_glance = float("inf")
        what = (
            "the cloud does not stop it by itself any more; its own timer does"
            if seen.deadline is None
            else f"the cloud stops it at {iso(seen.deadline)}, and not at {iso(was)}"
        )
        self._services.observer.note(f"{seen.name}: {what}")

    def why_stopped(self) -> StopReason | None:
        """Returns why the machine is off; None while it runs. Raises CloudError, AuthError."""
        known = self._held.last_known()
        if not known:
            return None
        cloud = self._services.clouds.open(self._target)
        zone, name = str(known["zone"]), self._target.instance
        seen = cloud.machine(zone, name)
        if seen is not None and seen.id == known["instance_id"] and seen.power is Power.RUNNING:
            self._remember(seen)
            return None
        lines = self._held.entries()
        timer = next((e.data.get("deadline") for e in reversed(lines) if e.kind == "armed"), None)
        money_until = next((e.data.get("stop_by") for e in reversed(lines) if e.kind == "submit"), None)
        history, started = cloud.operations(zone, name), known.get("started")
        ours = our_stop(self._services.book, self._target.project, name)
        return why_stopped(name, str(known["instance_id"]), seen, history, timer, started, money_until, ours)

    def goes_down(self) -> StopReason | None:
        """Why the machine goes down, whose host program said that it does; None if it does not, or nobody can tell."""
        clock = self._services.clock
        deadline = clock.monotonic() + GOES_DOWN_S
        while True:
            try:
                stopped = self.why_stopped()
            except FcctlError:
                return None
            if stopped is not None and stopped.how != "unknown":
                return stopped
            if clock.monotonic() >= deadline:
                return None
            clock.sleep(GOES_DOWN_EVERY_S)

    def revive(self, *, wait: bool = True) -> None:
        """Connects again if the machine runs and ``wait`` is set. Raises MachineStopped if it does not run, FcctlError
        if it cannot be reached or the cloud does not say."""
        stopped = self.why_stopped()
        if stopped is not None:
            raise _error(stopped)
        held = self._held
        zones = [str(held.last_known()["zone"])] if held.last_known() else list(held.zones())
        if not zones:
            raise MachineStopped(f"{self._target.instance} was not woken yet", how="unknown", status="lost")
        if not wait:
            return
        machine = self._services.clouds.open(self._target).machine(zones[0], self._target.instance)
        if machine is not None and machine.power is Power.RUNNING:
            patient = self._target.model_copy(update={"wake_timeout_s": REVIVE_S})
            try:
                make_ready(self._services, patient, machine, held.link, held.log)
            except StoppedDuringStart:
                stopped = self.why_stopped()
                raise (
                    _error(stopped) if stopped is not None else LinkLost(f"{machine.name} does not answer")
                ) from None

    def _remember(self, machine: Machine) -> None:
        """Its address as it is now: a machine that was restarted has another one."""
        known = self._services.book.known(machine.project, machine.name)
        if known is None or known.instance_id != machine.id:
            return
        try:
            way = endpoint(
                machine, known.host_keys, user=known.user, identity_file=known.identity_file, target=self._target,
                now=self._services.clock.now(),
            )  # fmt: skip
        except HostError:
            return
        same = known.started is not None and known.started == machine.started
        way = replace(way, boot_id=known.boot_id if same else "", hardware=known.hardware)
        with suppress(FcctlError):  # what is not remembered costs a question to the cloud
            self._services.book.remember(way, instead_of=known)


def _error(stopped: StopReason) -> MachineStopped:
    return MachineStopped(stopped.reason, how=stopped.how, status=stopped.status, at=stopped.at, disk=stopped.disk)
