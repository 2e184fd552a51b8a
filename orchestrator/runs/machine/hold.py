"""The lease of a run's cloud machine. Not loaded for machines that fcctl does not start (``local``, ``ssh``)."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

from orchestrator.base.errors import ConfigError
from orchestrator.machines.cloud import Endpoint, Machine, Power
from orchestrator.machines.cloud_api import HourlyPrice
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.provision.acquire import Acquired, acquire
from orchestrator.machines.provision.actions import MachineRequest, PlannedPrice
from orchestrator.machines.provision.decide import deadline_of
from orchestrator.machines.provision.decide_price import too_dear
from orchestrator.machines.provision.find import STOP_LIMIT_S, Log, query_in_thread
from orchestrator.machines.provision.ready import StoppedDuringStart, make_ready
from orchestrator.machines.provision.spec import Purpose
from orchestrator.machines.targets import GcpTarget, SandboxTarget
from orchestrator.money.deadline import LEAST_S
from orchestrator.results.records import RunRecord
from orchestrator.results.store_api import ActiveRun
from orchestrator.runs.cost.machine_cost import machine_cost, machine_record
from orchestrator.runs.ending import stopped_under
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import UNWRITTEN
from orchestrator.runs.machine.other_runs import neighbours
from orchestrator.runs.machine.release import Releaser
from orchestrator.runs.machine.state import LeaseState
from orchestrator.runs.machine.timer import Timer
from orchestrator.runs.machine.watch import Watch
from orchestrator.runs.services import Services

#: Past the steps' worst case, what a machine that runs already must have left: for sending and fetching, seconds.
NEED_MARGIN_S = 5 * 60.0
#: Times that a machine is asked for, if others turn it off before it answers.
TRIES = 3
#: A machine that does not answer on its last known address for so long is asked after, seconds.
ASK_CLOUD_AFTER_S = 1.0


class RunLease:
    """The machine of one active run: had here, then kept to its time, watched and let go by its parts."""

    def __init__(
        self, services: Services, link: ReconnectingHost, active: ActiveRun, saved: SavedPlan, log: Log
    ) -> None:
        target = saved.target
        if not isinstance(target, GcpTarget | SandboxTarget):
            raise TypeError(f"target {target.name} is in no cloud")
        self._services = services
        self._clock = services.clock
        self._link = link
        self._saved = saved
        self._log = log
        self._target = services.clouds.resolve(target)
        self._held = LeaseState(services, link, active, saved, log, self._target)
        self.timer = Timer(self._held)
        self.watch = Watch(self._held)
        self.letting_go = Releaser(self._held)
        link.doubts.append(self.watch.check)

    # ----------------------------------------------------------------------------------------------------- acquire
    def acquire(self, *, restart: bool = False, allow_unfenced: bool = False) -> None:
        """Acquires the machine: running, with its deadline, answering over SSH. Raises FcctlError; the journal has what
        was started."""
        worst_s, in_budget = self._saved.worst_case_minutes * 60, self._saved.stop_at_usd is not None
        need_s = worst_s + (self.timer.reserve_s() if in_budget else NEED_MARGIN_S)
        if in_budget and self._saved.plan.resume_from is not None:
            need_s = LEAST_S  # it was woken for this a moment ago, for as long as the budget lasts: it is ended in time
        wish = MachineRequest(
            max_run_s=self._saved.fence_s or int(self._target.max_run_minutes * 60),
            need_s=need_s,
            # A session of another workspace may be over without anybody there having looked yet.
            start=self._saved.session is None or self._saved.session_abroad,
            restart=restart,
            allow_unfenced=allow_unfenced,
            planned=_planned(self._saved),
        )
        self._acquire(wish)
        if self._saved.session is not None and self._saved.session_abroad:
            from orchestrator.runs.machine.session import visit

            visit(self._services, self._saved.session, self._held.run_id)

    def wake(self, seconds: int, planned: SavedPlan) -> None:
        """Starts the machine again for ``seconds`` to fetch what is on its disk; never creates it. ``planned`` has its
        price."""
        self._acquire(MachineRequest(max_run_s=seconds, need_s=60.0, create=False, planned=_planned(planned)))

    def join(self) -> bool:
        """Whether the machine of a run that waits for it is on again, by somebody else's doing, and answers."""
        known = self._services.book.known(self._target.project, self._target.instance)
        if known is None or known.instance_id != self._held.last_known().get("instance_id"):
            return False
        warm = self._warm(MachineRequest(max_run_s=0, need_s=60.0))
        if warm is None:
            return False
        way, price = warm
        self._log("acquire", joins=True)
        self._log("acquired", **_facts(way, price), warm=True, turned_on=False, joins=True)
        return True

    def _acquire(self, wish: MachineRequest) -> None:
        self._services.left_on.had_by(self._held.run_id)
        self._log("acquire", max_run_s=wish.max_run_s)
        self._let_others_stop_it()
        warm = None if wish.restart else self._warm(wish)
        if warm is not None:
            way, price = warm
            self._log("acquired", **_facts(way, price), warm=True, turned_on=False)
            return
        self._link.close()
        got, way = self._awake(wish)
        way = replace(way, deadline=deadline_of(got.machine), hardware=got.machine.hardware)
        self._services.book.remember(way)
        queued = {"queued_s": got.queued_s} if got.queued_s else {}
        self._log("acquired", **_facts(way, got.price), warm=False, turned_on=got.started, **queued)

    def _awake(self, wish: MachineRequest) -> tuple[Acquired, Endpoint]:
        """Starts the machine until it answers. One that was on for somebody else may stop before: then it is started
        here."""
        purpose = Purpose(self._held.run_id, self._saved.plan.workspace)
        tries = TRIES
        while True:
            got = acquire(self._services, self._target, wish, purpose, self._log)
            tries -= 1
            try:
                return got, make_ready(self._services, self._target, got.machine, self._link, self._log)
            except StoppedDuringStart as error:
                if got.started or not tries:
                    raise
                self._services.observer.note(f"{error.message}, by whoever had it on")
                self._link.close()

    def _warm(self, wish: MachineRequest) -> tuple[Endpoint, HourlyPrice] | None:
        """Returns the remembered machine and its price if it answers at once; asks no cloud. Its host key identifies
        it; its boot id proves that deadline and hardware are unchanged."""
        known = self._services.book.known(self._target.project, self._target.instance)
        price = self._price_of(known, wish)
        if known is None or price is None or known.deadline is None:
            self._link.close()
            return None
        if known.deadline - self._clock.now() < wish.need_s:
            self._link.close()
            return None
        self._link.open_soon()
        began, asked = self._clock.monotonic(), None
        while (opened := self._link.opened()) is None:
            if asked is None and self._clock.monotonic() - began > ASK_CLOUD_AFTER_S:
                asked = query_in_thread(self._services, self._target, known.zone)
            if asked is not None and asked.done() and not _is_up(asked, known):
                self._link.close()
                return None
            self._clock.sleep(0.005)
        if not opened or known.deadline - self._link.host_now() < wish.need_s or not self._same_boot(known):
            self._link.close()
            return None
        self._services.observer.phase("wake", f"{known.name} is up")
        return known, price

    def _price_of(self, known: Endpoint | None, wish: MachineRequest) -> HourlyPrice | None:
        """Returns the price of the remembered machine; None if it is unknown or higher than planned: the cloud is asked
        then."""
        if known is None or known.hardware is None:
            return None
        try:
            price = self._services.price(self._target, known.hardware)
        except ConfigError:
            return None
        return price if too_dear(known.name, known.hardware, price, wish) is None else None

    def _same_boot(self, known: Endpoint) -> bool:
        """Whether it was not started anew since, by somebody else and with a limit that nobody here knows."""
        return known.boot_id in ("", self._link.session().hello.boot_id)

    def _let_others_stop_it(self) -> None:
        """A run that is just stopping the machine is waited for: to log in now would be to work on a dying one."""
        deadline = self._clock.monotonic() + STOP_LIMIT_S
        while self._clock.monotonic() < deadline:
            if not any(n.lets_go for n in neighbours(self._services, self._target, self._held.run_id)):
                return
            self._services.observer.phase("wake", f"another run is letting {self._target.instance} go")
            self._clock.sleep(0.2)

    # -------------------------------------------------------------------------------------------------- the account
    def account(self, record: RunRecord) -> RunRecord:
        """``record`` with what the machine cost, and with what became of it if it was stopped under the run."""
        entries = self._held.entries()
        cost = machine_cost(entries, self._saved, record.steps)
        record = record.model_copy(update={"cost": cost, "machine": machine_record(entries)})
        ends = (e.data for e in reversed(entries) if e.kind in ("stopped", "went_down"))
        stopped = next((facts for facts in ends if facts.get("how") != UNWRITTEN), None)
        if stopped is None or record.status == "cancelled":
            return record
        hint = f"go on at the first unfinished step: fcctl run --resume {self._held.run_id}"
        if self._saved.fleet_of is not None:
            hint = f"it helped a search; with all of its machines again: {self._saved.again}"
        return stopped_under(record, stopped["status"], str(stopped["reason"]), hint)


def _planned(saved: SavedPlan) -> PlannedPrice | None:
    if saved.target.kind == "sandbox":
        return None
    return PlannedPrice(saved.worst_machine_rate, saved.rest_usd_per_hour)


def _facts(way: Endpoint, price: HourlyPrice) -> dict[str, object]:
    names = ("project", "zone", "name", "instance_id", "deadline", "started")
    made_of = way.hardware
    shown = {} if made_of is None else {"machine_type": made_of.machine_type, "spot": made_of.spot}
    return {**{name: getattr(way, name) for name in names}, **shown, "usd_per_hour": price.usd}


def _is_up(asked: Future[Machine | None], known: Endpoint) -> bool:
    """Whether the cloud, as far as it answers, agrees that the machine is there and on."""
    if asked.exception() is not None:
        return True
    machine = asked.result()
    return machine is not None and machine.id == known.instance_id and machine.power is Power.RUNNING
