"""The lease of a cloud machine by one owner, a run, a session or a person: acquired, checked on and released.

The owner's journal is the only state. ``acquire`` announces that the machine will be found and started, ``cloud`` each
change that the cloud is asked for, ``acquired`` has the machine that answers, ``release`` and ``released`` its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from orchestrator.base.errors import ConfigError, ConflictError, FcctlError, HostError, MachineStopped
from orchestrator.base.journal import JournalEntry, newest
from orchestrator.machines.cloud import Endpoint, Machine, Power
from orchestrator.machines.connect.reconnect import Hurry, ReconnectingHost
from orchestrator.machines.interfaces import HourlyPrice, MachineParts
from orchestrator.machines.power_history import our_stop, why_stopped
from orchestrator.machines.provision.acquire import Acquired, acquire
from orchestrator.machines.provision.actions import MachineRequest, Purpose, too_dear
from orchestrator.machines.provision.decide import deadline_of
from orchestrator.machines.provision.endpoint import endpoint
from orchestrator.machines.provision.ready import Log, StoppedDuringStart, make_ready, query_in_thread
from orchestrator.machines.provision.release import Policy, Released, ReleaseRequest, release
from orchestrator.machines.shutdown_timer import keep_on, token_of
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.caps import is_start

#: How often a machine is started if others stop it before it answers.
START_ATTEMPTS = 3
#: A remembered machine that does not answer for so long is looked up in the cloud, seconds.
ASK_CLOUD_AFTER_S = 1.0
#: A machine that cannot be stopped through the cloud turns itself off after so long, seconds.
LAST_RESORT_S = 120.0
#: How much earlier or later than asked for a start may have been, with clocks that differ, seconds.
EARLIER_S, LATER_S = 900.0, 1800.0
#: The same of a start whose time the cloud has told.
SAME_S = 2.0


# ------------------------------------------------------------------------------------------- what a journal says
def started_between(entries: Sequence[JournalEntry]) -> tuple[float, float] | None:
    """The times between which the owner had the machine started, epoch seconds; None: it did not."""
    for entry in reversed(entries):
        if entry.kind == "acquired":
            started = entry.data.get("started") if entry.data.get("turned_on") else None
            return None if started is None else (started - SAME_S, started + SAME_S)
        if is_start(entry):
            return entry.time - EARLIER_S, entry.time + LATER_S
    return None


class MachineLease:
    """One owner's lease of the machine of ``target``; ``host`` is the connection to it."""

    def __init__(
        self, parts: MachineParts, target: CloudTarget, purpose: Purpose, host: ReconnectingHost,
        entries: Callable[[], list[JournalEntry]], log: Log,
    ) -> None:  # fmt: skip
        self.parts, self.target, self.purpose = parts, target, purpose
        self.host, self.entries, self.log = host, entries, log

    @property
    def token(self) -> str:
        """The secret that moves the shutdown timers which this computer set on the machine."""
        return token_of(self.parts.clouds.login(self.target), self.target)

    def last_known(self) -> dict[str, Any]:
        """The machine that the owner had last; empty: it never had one."""
        return newest(self.entries(), "acquired")

    def acquired(self) -> dict[str, Any]:
        """The machine of the last acquisition; empty: it has not answered yet."""
        return newest(self._since_acquire(), "acquired")

    def start_requests(self) -> dict[str, JournalEntry]:
        """The last request to start a machine since then, by zone, the last zone first."""
        requests: dict[str, JournalEntry] = {}
        for entry in reversed(self._since_acquire()):
            if is_start(entry):
                requests.setdefault(str(entry.data["zone"]), entry)
        return requests

    def release_requests(self) -> list[ReleaseRequest]:
        """What must be released."""
        if acquired := self.acquired():
            return [ReleaseRequest(str(acquired["zone"]), str(acquired["instance_id"]))]
        refused = {entry.data.get("request_id") for entry in self.entries() if entry.kind == "refused"}
        return [
            ReleaseRequest(
                zone, made_here=True, asked=entry.time, request_id=str(entry.data.get("request_id", "")),
                refused=entry.data.get("request_id") in refused,
            )
            for zone, entry in self.start_requests().items()
        ]  # fmt: skip

    def _since_acquire(self) -> list[JournalEntry]:
        entries = self.entries()
        last = max((at for at, entry in enumerate(entries) if entry.kind == "acquire"), default=0)
        return entries[last:]

    # ---------------------------------------------------------------------------------------------------- acquire
    def acquire(self, request: MachineRequest) -> None:
        """Acquires the machine: running, with its deadline, answering over SSH. Raises FcctlError; the journal has what
        was started."""
        self.log("acquire", max_run_s=request.max_run_s)
        self._wait_for_others()
        warm = None if request.restart else self.warm(request)
        if warm is not None:
            self.log("acquired", **facts(*warm), warm=True, turned_on=False)
        else:
            self.start(request)

    def _wait_for_others(self) -> None:
        """Waits until nobody is stopping the machine any more, as far as the owner knows others."""

    def start(self, request: MachineRequest, *, only_own: bool = False) -> tuple[Acquired, Endpoint]:
        """Starts the machine, or takes one that is on, and waits until it answers.

        ``only_own``: raises ConflictError if somebody else started it.
        """
        self.host.close()
        attempts = START_ATTEMPTS
        while True:
            machine = acquire(self.parts, self.target, request, self.purpose, self.log)
            if only_own and not machine.started:
                raise ConflictError(
                    f"another fcctl process or a person has just started {self.target.instance}",
                    hint="try again in a minute",
                )
            attempts -= 1
            began = self.parts.clock.monotonic()
            try:
                way = make_ready(self.parts, self.target, machine.machine, self.host, self.log)
                break
            except StoppedDuringStart as error:
                if machine.started or not attempts:
                    raise
                self.parts.observer.note(f"{error.message}; another owner stopped it")
                self.host.close()
        way = self._prepared(way, began)
        way = replace(way, deadline=deadline_of(machine.machine), hardware=machine.machine.hardware)
        self.parts.book.remember(way)
        self.log("acquired", **facts(way, machine.price), warm=False, turned_on=machine.started)
        return machine, way

    def _prepared(self, way: Endpoint, began: float) -> Endpoint:
        """Makes the machine fit at its first wake, in what is left of the time to wake since ``began``."""
        if self.parts.prepare is None or not self.target.owned or self.host.session().hello.prepared:
            return way
        left_s = self.target.wake_timeout_s - (self.parts.clock.monotonic() - began)
        self.parts.prepare(self.target, left_s)
        self.host.close()  # the machine may have restarted
        return replace(way, boot_id=self.host.call(lambda session: session.hello.boot_id))

    def warm(self, request: MachineRequest) -> tuple[Endpoint, HourlyPrice] | None:
        """The remembered machine and its price if it answers at once; no cloud is asked.

        Its host key identifies it; its boot id proves that its deadline and its hardware are unchanged.
        """
        known = self.parts.book.known(self.target.project, self.target.instance)
        price = self._remembered_price(known, request)
        if known is None or price is None or not self._answers(known, request.need_s):
            self.host.close()
            return None
        self.parts.observer.phase("wake", f"{known.name} is up")
        return known, price

    def _answers(self, known: Endpoint, need_s: float) -> bool:
        clock = self.parts.clock
        if known.deadline is None or known.deadline - clock.now() < need_s:
            return False
        self.host.open_soon()
        began, answer = clock.monotonic(), None
        while (opened := self.host.opened()) is None:
            if answer is None and clock.monotonic() - began > ASK_CLOUD_AFTER_S:
                answer = query_in_thread(self.parts, self.target, known.zone)
            if answer is not None and answer.done() and not _may_be_on(answer, known):
                return False
            clock.sleep(0.005)
        if not opened or known.deadline - self.host.host_now() < need_s:
            return False
        return known.boot_id in ("", self.host.session().hello.boot_id)  # else somebody has restarted it

    def _remembered_price(self, known: Endpoint | None, request: MachineRequest) -> HourlyPrice | None:
        """None if it is unknown, or higher than planned: the cloud is asked then."""
        if known is None or known.hardware is None:
            return None
        try:
            price = self.parts.price(self.target, known.hardware)
        except ConfigError:
            return None
        return price if too_dear(known.name, known.hardware, price, request) is None else None

    # ------------------------------------------------------------------------------------------------------ check
    def why_stopped(self) -> MachineStopped | None:
        """Why the machine is off; None while it runs. Raises CloudError, AuthError."""
        known = self.last_known()
        if not known:
            return None
        seen = self.parts.clouds.open(self.target).machine(str(known["zone"]), self.target.instance)
        is_same = seen is not None and seen.id == known["instance_id"]
        if seen is not None and is_same and (seen.started or 0.0) < (known.get("started") or 0.0) - SAME_S:
            return None  # as it was before it was started
        if seen is not None and is_same and seen.power is Power.RUNNING:
            self.remember(seen)
            return None
        return self.stop_reason(seen)

    def stop_reason(self, seen: Machine | None) -> MachineStopped | None:
        """Why the machine that the owner had, of whose name the cloud shows ``seen``, went off."""
        known, entries, name = self.last_known(), self.entries(), self.target.instance
        timer = newest(entries, "armed").get("deadline")
        budget_ends = newest(entries, "submit").get("stop_by")
        history = self.parts.clouds.open(self.target).operations(str(known["zone"]), name)
        ours = our_stop(self.parts.book, self.target.project, name)
        return why_stopped(
            name, str(known["instance_id"]), seen, history, timer, known.get("started"), budget_ends, ours
        )

    def remember(self, machine: Machine) -> None:
        """Remembers the machine's present address: a restart changes it."""
        known = self.parts.book.known(machine.project, machine.name)
        if known is None or known.instance_id != machine.id:
            return
        try:
            way = endpoint(
                machine, known.host_keys, user=known.user, identity_file=known.identity_file, target=self.target,
                now=self.parts.clock.now(),
            )  # fmt: skip
        except HostError:
            return
        same = known.started is not None and known.started == machine.started
        way = replace(way, boot_id=known.boot_id if same else "", hardware=known.hardware)
        with suppress(FcctlError):  # what is not remembered costs a question to the cloud
            self.parts.book.remember(way, instead_of=known)

    # ---------------------------------------------------------------------------------------------------- release
    def release(self, policy: Policy, in_use: Callable[[Machine], str | None] = lambda _: None) -> list[Released]:
        """Stops or deletes what was started, and waits until it is off.

        Raises CloudError, AuthError if it may be on; InUse if ``in_use`` names somebody.
        """
        return release(self.parts, self.target, self.release_requests(), policy, self.log, in_use)

    def stop_itself(self) -> float | None:
        """Has a machine that the cloud does not stop turn itself off soon; returns when, by its own clock, epoch
        seconds; None if it does not let us."""
        try:
            return keep_on(self.host, LAST_RESORT_S, self.token, "the cloud did not stop it", longer=False)
        except FcctlError:
            return None

    @contextmanager
    def stopped_by_itself(self) -> Iterator[None]:
        """The block stops the machine; if it cannot, the machine does so itself, if it can be reached."""
        try:
            yield
        except FcctlError:
            self.host.hurry = self.host.hurry or Hurry()
            if self.stop_itself() is not None:
                self.parts.observer.note(f"{self.target.instance} turns itself off in {LAST_RESORT_S / 60:.0f} minutes")
            raise


def facts(way: Endpoint, price: HourlyPrice) -> dict[str, object]:
    names = ("project", "zone", "name", "instance_id", "deadline", "started")
    hardware = {} if way.hardware is None else {"machine_type": way.hardware.machine_type, "spot": way.hardware.spot}
    return {**{name: getattr(way, name) for name in names}, **hardware, "usd_per_hour": price.usd}


def _may_be_on(answer: Future[Machine | None], known: Endpoint) -> bool:
    if answer.exception() is not None:
        return True
    machine = answer.result()
    return machine is not None and machine.id == known.instance_id and machine.power is Power.RUNNING
