"""A machine that more than one run has to do with: its timer, and who turns it off."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import HostFault, HostUnreachable, HostUnusable, LinkLost
from orchestrator.hosts import hosts
from orchestrator.machines.cloud import Machine
from orchestrator.machines.provision.release import InUse
from orchestrator.machines.shutdown_timer import TimerLimits, arm_within
from orchestrator.runs.actions import RunActions
from orchestrator.runs.machine.release import Releaser
from orchestrator.runs.machine.run_lease import RunLease
from tests.support.money_world import L4
from tests.support.spending import reservation

OWN, OTHER = "20261121t081530z-j-vm-3fa9c1", "20261121t081531z-j-vm-3fa9c2"
WORST_S = 60.0
NOW = 1e6


# ------------------------------------------------------------------------------------------------------------ its timer
class Host:
    """A machine whose timer another run sets between our look and our request."""

    def __init__(self, theirs: float | None, fault: str = "conflict", token: str = "ours") -> None:
        self.theirs, self.fault, self.token = theirs, fault, token
        self.lease_now = wire.Lease(armed=False)
        self.asked: list[str] = []
        self.target = SimpleNamespace(name="vm")

    def host_now(self) -> float:
        return NOW

    def call(self, action: Any) -> Any:
        return action(self)

    def lease(self, request: wire.LeaseRequest) -> wire.Lease:
        self.asked.append(request.op)
        if request.op == "arm":
            self.lease_now = wire.Lease(self.theirs is not None, False, self.theirs)
            raise HostFault("no", fault=self.fault)
        if request.op == "renew":
            if request.token != self.token:
                raise HostFault("not your lease", fault="denied")
            self.lease_now = replace(self.lease_now, deadline=request.deadline)
        return self.lease_now


def armed(host: Host) -> float:
    notes = SimpleNamespace(note=lambda _: None)
    return arm_within(host, TimerLimits(NOW + 9000, "ours"), OWN, WORST_S, notes).deadline  # type: ignore[arg-type]


def test_a_timer_that_another_run_has_just_set_is_renewed() -> None:
    host = Host(theirs=NOW + 100)
    assert armed(host) >= NOW + 900
    assert host.asked == ["show", "arm", "show", "renew"]


def test_one_that_another_computer_has_just_set_is_kept_if_it_lasts() -> None:
    assert armed(Host(theirs=NOW + 800, token="theirs")) == NOW + 800


def test_a_machine_that_takes_no_timer_is_of_no_use() -> None:
    with pytest.raises(HostUnusable, match="shutdown timer"):
        armed(Host(theirs=None, fault="denied"))


# -------------------------------------------------------------------------------------------------- who turns it off
class Lease:
    """A run whose machine is as ``facts`` say."""

    def __init__(
        self, *, turned_on: bool, submitted: bool = False, label: str = OWN, there: tuple[str, ...] = (),
        complete: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.facts = {"turned_on": turned_on, "instance_id": "7", "zone": "us-west1-c"}
        self.kinds = ["acquire", "acquired", *(["submit"] if submitted else [])]
        self.machine = Machine("p", "us-west1-c", "vm", "7", "RUNNING", labels={"fcctl-run": label})
        self.pending: dict[str, Any] = {}
        self.complete = complete
        self.target, self.log = SimpleNamespace(instance="vm"), None
        runs = [wire.RunSummary(run, "j", "passed", NOW) for run in there]
        self.host = SimpleNamespace(session=lambda: SimpleNamespace(status=lambda _: runs))

    def acquired(self) -> dict[str, Any]:
        return self.facts

    def entries(self) -> list[Any]:
        return [SimpleNamespace(kind=kind) for kind in self.kinds]

    @property
    def releaser(self) -> Any:
        store = SimpleNamespace(
            pending_releases=lambda: self.pending, active=list, is_complete=self.complete.__contains__
        )
        services: Any = SimpleNamespace(store=store)
        saved: Any = SimpleNamespace(plan=SimpleNamespace(run_id=OWN))
        return Releaser(services, self, saved)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lease", "pending_on", "left_on"),
    [
        (Lease(turned_on=False), None, True),
        (Lease(turned_on=True), None, False),
        (Lease(turned_on=False, submitted=True), None, False),
        (Lease(turned_on=False), "7", False),  # it was left to this run
        (Lease(turned_on=False), "8", True),
    ],
)
def test_who_did_nothing_on_somebody_elses_machine_leaves_it_on(
    lease: Lease, pending_on: str | None, left_on: bool
) -> None:
    lease.pending = {OTHER: {"holds": [{"zone": "us-west1-c", "instance_id": pending_on}] if pending_on else []}}
    assert lease.releaser._did_nothing_there() == left_on


class Timer(Host):
    """A machine that others started, with a timer."""

    def __init__(self, ends_in_s: float, *runs: wire.RunSummary) -> None:
        super().__init__(None)
        self.lease_now, self.runs = wire.Lease(True, False, NOW + ends_in_s), list(runs)

    def session(self) -> Any:
        return SimpleNamespace(status=lambda _: self.runs)

    def lease(self, request: wire.LeaseRequest) -> wire.Lease:
        if request.op in ("arm", "renew"):
            self.lease_now = replace(self.lease_now, deadline=request.deadline)
        return self.lease_now


@pytest.mark.parametrize(
    ("before_s", "status", "later", "label", "ends_in_s"),
    [
        (300, "passed", [], OWN, 900),
        (930, "passed", [], OWN, 930),  # maybe of a run that is not there yet
        (300, "running", [], OWN, 960),
        (300, "passed", ["acquire"], OWN, 960),  # another start has another timer
        (300, "passed", [], "up-1", 7200),  # which hosts up ends by the cloud's deadline
    ],
)
def test_who_did_nothing_there_moves_the_timer_back_that_it_has_moved(
    before_s: float, status: str, later: list[str], label: str, ends_in_s: float
) -> None:
    """Ctrl-C while it sends the source, for instance: a kept machine stayed on for as long as the run could take."""
    lease: Any = Lease(turned_on=False, label=label)
    lease.host = Timer(before_s, wire.RunSummary(OTHER, "j", status, NOW))
    made = arm_within(lease.host, TimerLimits(NOW + 9000, "ours"), OWN, WORST_S, Mock())
    assert made.deadline == NOW + 960
    entries = [SimpleNamespace(kind="armed", data=vars(made)), *(SimpleNamespace(kind=one, data={}) for one in later)]
    lease.entries, lease.token, lease.log = lambda: entries, "ours", Mock()
    releaser, machine = lease.releaser, replace(lease.machine, deadline=NOW + 7200)
    services = releaser._services
    services.left_on, services.observer, services.clock = Mock(), Mock(), SimpleNamespace(now=lambda: NOW)
    services.clouds = SimpleNamespace(open=lambda _: SimpleNamespace(machine=lambda *_: machine))
    releaser._session_there = lambda: None
    releaser._target.release, releaser._target.keep_minutes, releaser._saved.plan.idle = "keep", 15.0, None
    releaser.release(ran=False)
    by = "its earlier owner" if label == OWN else "fcctl hosts up"
    assert lease.log.call_args.kwargs == {"how": "used", "by": by}
    assert lease.host.lease_now.deadline == NOW + ends_in_s


@pytest.mark.parametrize(("moved_to_s", "ends_in_s"), [(400, 960), (5000, 5000)], ids=["earlier", "later"])
def test_a_run_that_has_begun_sets_the_timer_again_that_the_end_of_another_one_moved_earlier(
    moved_to_s: float, ends_in_s: float
) -> None:
    """It was sending its source just then, so that the machine counted as idle, and went off under it."""
    lease: Any = Lease(turned_on=False)
    lease.host = Timer(300)
    made = arm_within(lease.host, TimerLimits(NOW + 9000, "ours"), OWN, WORST_S, Mock())
    lease.entries, lease.token = lambda: [SimpleNamespace(kind="armed", data=vars(made))], "ours"
    lease.arm_again, lease.run_id = lambda: RunLease.arm_again(lease), OWN

    def submit(_action: object) -> Any:
        lease.host.lease_now = replace(lease.host.lease_now, deadline=NOW + moved_to_s)
        return SimpleNamespace(state="started")

    plan = wire.RunPlan(OWN, "j", "vm", "w", "0" * 64, [wire.StepSpec("a", "x")])
    run: Any = SimpleNamespace(
        stepped=list, active=Mock(), services=Mock(), saved=SimpleNamespace(plan=plan), log=Mock(), machine=lease,
        _within_budget=lambda plan: plan, link=SimpleNamespace(call=submit),
    )  # fmt: skip
    RunActions._submit(run)
    assert lease.host.lease_now.deadline == NOW + ends_in_s


@pytest.mark.parametrize(("before_s", "ends_in_s"), [(600, 3600), (7200, 7200)], ids=["kept", "runs longer"])
def test_a_machine_that_is_kept_for_the_next_run_is_on_for_as_long_as_hosts_up_says(
    before_s: float, ends_in_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went off at the end of the few minutes that it was kept for."""
    host = Timer(before_s)
    lease = SimpleNamespace(start=lambda _: (SimpleNamespace(started=False, machine=None), None), token="ours")
    monkeypatch.setattr(hosts, "ReconnectingHost", lambda *_: nullcontext(host))
    monkeypatch.setattr(hosts, "MachineLease", lambda *_: lease)
    monkeypatch.setattr(hosts, "reservation", lambda *_: reservation("up-1", owner="up"))
    for name in ("reserve", "_label_owner", "_left_on"):
        monkeypatch.setattr(hosts, name, Mock())
    services = MagicMock()
    services.clock.now.return_value = NOW
    hosts.up(services, L4, hosts.UpPlan("l4", 60, 0.72, 0.74, 0.0), workspace="w")
    assert host.lease_now.deadline == NOW + ends_in_s


@pytest.mark.parametrize(
    ("lease", "coming"),
    [
        (Lease(turned_on=True, label=OTHER), OTHER),
        (Lease(turned_on=True, label=OTHER, there=(OWN,)), OTHER),
        (Lease(turned_on=True), None),  # its own
        (Lease(turned_on=True, label=OTHER, there=(OTHER,)), None),  # that run is over
        (Lease(turned_on=True, label=OTHER, complete=(OTHER,)), None),  # its label is older than this start
        (Lease(turned_on=False, label=OTHER), None),  # it was on before, for whoever that is
        (Lease(turned_on=True, label="up-by-hand"), None),
    ],
)
def test_a_run_that_has_found_the_machine_on_and_is_not_there_yet_is_left_it(lease: Lease, coming: str | None) -> None:
    releaser = lease.releaser
    assert releaser._waiting_run(lease.machine) is None, "the machine has not said which runs it knows"
    assert releaser._user_of_it() is None
    assert releaser._waiting_run(lease.machine) == coming


@pytest.mark.parametrize(
    ("answers", "user"),
    [
        (["running"], OTHER),
        (["passed"], None),
        ([LinkLost("the connection broke"), "running"], OTHER),
        ([LinkLost("the connection broke"), LinkLost("it broke again")], None),
        ([HostUnreachable("vm is off", reason="port")], None),
    ],
    ids=["runs", "over", "broken link", "broken twice", "off"],
)
def test_a_run_of_another_computer_is_seen_over_a_new_connection_if_this_one_is_broken(
    answers: list[Any], user: str | None
) -> None:
    """A laptop that slept since, for instance."""
    lease, left = Lease(turned_on=True), [*answers]

    def status(_: object) -> list[wire.RunSummary]:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [wire.RunSummary(OTHER, "j", answer, NOW)]

    lease.host = SimpleNamespace(session=lambda: SimpleNamespace(status=status), close=lambda: None)
    assert lease.releaser._user_of_it() == user
    assert left == []


@pytest.mark.parametrize(
    ("lease", "status", "stops", "pending"),
    [
        (Lease(turned_on=True, there=(OTHER,)), "passed", True, False),
        (Lease(turned_on=False, there=(OWN,)), "passed", False, False),  # by hosts up, a session or another run
        (Lease(turned_on=True, there=(OTHER,)), "running", False, True),  # it has joined since
        (Lease(turned_on=True, label=OTHER, there=(OWN,)), "passed", False, True),  # and is about to
    ],
)
def test_whose_results_cannot_be_fetched_stops_the_machine_under_nobody(
    lease: Lease, status: str, stops: bool, pending: bool
) -> None:
    stopped: list[str] = []

    def release(policy: str, in_use: Any = lambda _: None) -> list[Any]:
        if (by := in_use(lease.machine)) is not None:
            raise InUse(by)
        stopped.append(policy)
        return [SimpleNamespace(stopped=NOW)]

    owner: Any = lease
    owner.release, owner.start_requests, owner.release_requests, owner.entries = release, dict, list, list
    runs = [replace(run, status=status) for run in lease.host.session().status(None)]
    lease.host.session = lambda: SimpleNamespace(status=lambda _: runs)
    releaser = lease.releaser
    releaser._services.clock, releaser._services.observer = SimpleNamespace(now=lambda: NOW), Mock()
    releaser._services.store.add_pending_release = lease.pending.__setitem__
    releaser._saved.target = Mock()
    assert releaser.turn_off_again() == (NOW if stops else None)
    assert releaser._services.observer.note.call_count == (not stops)
    assert (stopped, list(lease.pending)) == (["stop"] if stops else [], [OWN] if pending else [])
