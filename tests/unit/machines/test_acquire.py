"""How a machine is had: each decision by itself, that no cloud makes it go on for ever, and what it may cost."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.machines.cloud import Hardware, Machine, Power, Refusal, Remedy
from orchestrator.machines.provision import actions as m
from orchestrator.machines.provision import decide as a
from orchestrator.machines.provision.actions import MachineRequest, PlannedPrice, too_dear
from orchestrator.machines.provision.decide import BACKOFF_S
from orchestrator.machines.targets import CloudTarget, Provisioning

NOW = 1_000_000.0
WISH = m.MachineRequest(max_run_s=3600, need_s=1800.0)
ZONES = ("us-west1-c", "us-west1-a", "us-central1-a")
NO_STOCK = Refusal("ZONE_RESOURCE_POOL_EXHAUSTED", "none left", Remedy.NEXT_ZONE)
NO_QUOTA = Refusal("QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded", Remedy.NEXT_REGION)
FATAL = Refusal("forbidden", "no permission", Remedy.FATAL, 403, hint="ask for the role", problem="denied")
LATER = Refusal("resourceNotReady", "still stopping", Remedy.NOT_READY, 400)
BROKEN = Refusal("INTERNAL_ERROR", "try again", Remedy.RETRY)
TAKEN = Refusal("alreadyExists", "exists", Remedy.LOOK_AGAIN, 409)


def policy(**changes: Any) -> m.Policy:
    """Args: changes: of the request, the target or the label."""
    request = replace(WISH, **{k: changes.pop(k) for k in list(changes) if hasattr(WISH, k)})
    label = changes.pop("label", "")
    values = {
        "project": "proj", "instance": "vm", "zones": ZONES, "ways": ("on_demand",), "on_stockout": "wait",
        "stockout_wait_minutes": 10.0, "wake_timeout_s": 300.0,
        "create": True, "by_hand": lambda what, name, zone: f"{what} {name}", **changes,
    }  # fmt: skip
    return m.Policy(cast("CloudTarget", SimpleNamespace(**values)), request, label)


def machine(status: str = "TERMINATED", zone: str = ZONES[0], **changes: Any) -> Machine:
    values: dict[str, Any] = {"max_run_s": 3600, "termination_action": "STOP", "stopped": NOW - 500}
    return Machine("proj", zone, "vm", "1", status, **{**values, **changes})


def history(*attempts: m.Attempt, began: float = NOW) -> m.History:
    return m.History(began, attempts)


def tried(action: m.ActionName, refusal: Refusal | None = None, zone: str = ZONES[0], **more: Any) -> m.Attempt:
    return m.Attempt(action, zone, **{"at": NOW, "refusal": refusal, **more})


def move(seen: list[Machine], past: m.History | None = None, now: float = NOW, **changes: Any) -> m.Action:
    return a.next_action(seen, policy(**changes), past or history(), now)


# ----------------------------------------------------------------------------------------------- one decision at a time
OFF, ON = machine(), machine("RUNNING", deadline=NOW + 3600)
ENOUGH, SHORT = machine("RUNNING", deadline=NOW + 1800), machine("RUNNING", deadline=NOW + 1700)
LONGER = machine("RUNNING", max_run_s=36_000, deadline=NOW + 36_000)
UNLIMITED = machine("RUNNING", max_run_s=None, termination_action=None)
DELETED_AT_ITS_END = machine("RUNNING", termination_action="DELETE", deadline=NOW * 2)
#: Two of one name, which an earlier rebuild left: the disk of the newer one counts.
OLD, NEW = machine(started=NOW - 900), machine(zone=ZONES[1], started=NOW - 100)
NOWHERE = tuple(tried("create", NO_STOCK, zone) for zone in ZONES)
HINTED = replace(NO_STOCK, zones_available=("us-central1-a", "mars-1"))
SNAPSHOT = a.snapshot_name(OFF)
REBUILD: dict[str, Any] = {"on_stockout": "rebuild"}
RESTART: dict[str, Any] = {"restart": True}
SPOT_FIRST: dict[str, Any] = {"ways": ("spot", "on_demand")}
SPOT_NOWHERE = tuple(tried("create", NO_STOCK, zone, way="spot") for zone in ZONES)


def fails(problem: str, words: str = "") -> tuple[str, str]:
    """Args: words: of the message, the cause or the hint."""
    return problem, words


def create(zone: str, way: Provisioning = "on_demand", snapshot: str | None = None) -> m.Create:
    return m.Create(zone, way, snapshot)


#: What it shows; the machines there are, what was tried, seconds since then, the request and the target; what is done.
DECISIONS: list[tuple[str, list[Machine], tuple[m.Attempt, ...], float, dict[str, Any], Any]] = [
    ("a stopped one gets its limit", [machine(max_run_s=60)], (), 0, {}, m.SetDeadline(machine(max_run_s=60), 3600)),
    ("and keeps its disk at its end", [machine(termination_action="DELETE")], (), 0, {}, m.SetDeadline),
    ("then it starts", [OFF], (tried("fence"),), 0, {}, m.Start(OFF)),
    ("not with a limit that does not stay", [machine(max_run_s=7)], (tried("fence"),) * 2, 0, {}, fails("conflict")),
    ("one that was started with a longer limit than was set is not used", [LONGER], (tried("fence"), tried("start")), 0,
     {}, fails("conflict", "limit of 36000 s instead of 3600 s")),
    ("unless its start was refused: it is another's", [LONGER], (tried("start", LATER),), 0, {}, m.UseMachine(LONGER)),
    ("one that runs is used", [ENOUGH], (), 0, {}, m.UseMachine(ENOUGH)),
    ("not if its limit is near", [SHORT], (), 0, {}, fails("budget", "--restart")),
    ("unless it may be restarted", [SHORT], (), 0, RESTART, m.Stop),
    ("no limit", [UNLIMITED], (), 0, {}, fails("budget", "--allow-unfenced")),
    ("no limit, allowed", [UNLIMITED], (), 0, {"allow_unfenced": True}, m.UseMachine(UNLIMITED)),
    ("no limit, restarted", [UNLIMITED], (), 0, RESTART, m.Stop),
    ("no limit, and started here", [UNLIMITED], (tried("start"),), 0, {"allow_unfenced": True}, fails("conflict")),
    ("deleted at its limit", [DELETED_AT_ITS_END], (), 0, {}, fails("budget", "--allow-unfenced")),
    ("deleted at its limit, restarted", [DELETED_AT_ITS_END], (), 0, RESTART, m.Stop),
    ("deleted, allowed", [DELETED_AT_ITS_END], (), 0, {"allow_unfenced": True}, m.UseMachine(DELETED_AT_ITS_END)),
    ("a restart: off", [OFF], (tried("stop"),), 0, RESTART, m.Start),
    ("a restart: on", [ON], (tried("stop"), tried("start")), 5, RESTART, m.UseMachine),
    ("a restart stops once", [machine("RUNNING")], (tried("stop"),) * 2, 0, RESTART, fails("conflict")),
    ("a suspended one keeps its memory", [machine("SUSPENDED")], (), 0, {}, fails("conflict")),
    ("also if it may be restarted", [machine("SUSPENDED")], (), 0, RESTART, fails("conflict")),
    ("none: it is made", [], (), 0, {}, create(ZONES[0])),
    ("none, and none may be made", [], (), 0, {"create": False}, fails("not_found")),
    ("no stock: the next zone", [], (tried("create", NO_STOCK),), 0, {}, create(ZONES[1])),
    ("no quota: another region", [], (tried("create", NO_QUOTA),), 0, {}, create(ZONES[2])),
    ("zones that the cloud names go first", [], (tried("create", HINTED),), 0, {}, create("us-central1-a")),
    ("spot first, on demand after it", [], SPOT_NOWHERE, 0, SPOT_FIRST, create(ZONES[0])),
    ("no stock anywhere", [], NOWHERE, 0, {}, m.Wait),
    ("another round", [], NOWHERE, 6, {}, create(ZONES[0])),
    ("no waiting", [], NOWHERE, 0, {"on_stockout": "fail"}, fails("capacity")),
    ("no more waiting", [], NOWHERE, 601, {}, fails("capacity")),
    ("a creation with no known end", [], (tried("create", done=False),), 0, {}, m.Wait),
    ("and none for long", [], (tried("create", done=False),), 301, {}, fails("timeout")),
    ("a name that is taken", [], (tried("create", TAKEN),), 0, {}, m.Wait),
    ("and stays so", [], (tried("create", TAKEN),) * 4, 200, {}, fails("conflict", "disk")),
    ("off, no stock", [OFF], (tried("start", NO_STOCK),), 0, {}, m.Wait),
    ("off, no stock, again", [OFF], (tried("start", NO_STOCK),), 6, {}, m.Start),
    ("off, no stock for long", [OFF], (tried("start", NO_STOCK),), 601, {}, fails("capacity")),
    ("off, no waiting", [OFF], (tried("start", NO_STOCK),), 0, {"on_stockout": "fail"}, fails("capacity")),
    ("a rebuild: a copy", [OFF], (tried("start", NO_STOCK),), 0, REBUILD, m.Snapshot(OFF, SNAPSHOT)),
    ("no copy where none may be created, as for results on its disk: no snapshot", [OFF],
     (tried("start", NO_STOCK),), 0, {**REBUILD, "create": False}, m.Wait),
    ("nor after a long time", [OFF], (tried("start", NO_STOCK),), 601, {**REBUILD, "create": False},
     fails("capacity", "run the command again later")),
    ("elsewhere", [OFF], (tried("start", NO_STOCK), tried("snapshot")), 0, REBUILD,
     create(ZONES[1], snapshot=SNAPSHOT)),
    ("the original stays", [OFF, machine("RUNNING", ZONES[1], deadline=NOW + 3600)],
     (tried("start", NO_STOCK), tried("snapshot"), tried("create", zone=ZONES[1])), 0, REBUILD,
     m.UseMachine(machine("RUNNING", ZONES[1], deadline=NOW + 3600))),
    ("not where there is one", [OLD, NEW],
     (tried("start", NO_STOCK), tried("start", NO_STOCK, ZONES[1]), tried("snapshot", zone=ZONES[1])), 0, REBUILD,
     create(ZONES[2], snapshot=a.snapshot_name(NEW))),
    ("the newest disk counts", [OLD, NEW], (), 0, {}, m.Start(NEW)),
    ("the older one where the newer has no stock", [OLD, NEW], (tried("start", NO_STOCK, ZONES[1]),), 0, {},
     m.Start(OLD)),
    ("taken back, and the other is gone", [], (tried("create"), tried("delete")), 0, {"label": "ours"}, m.Create),
    ("no right to set the limit", [machine(max_run_s=1)], (tried("fence", FATAL),), 0, {},
     fails("denied", "ask for the role")),
    ("no right to start", [OFF], (tried("start", FATAL),), 0, {}, fails("denied", "no permission")),
    ("not ready", [OFF], (tried("start", LATER),), 0, {}, m.Wait),
    ("not ready, again", [OFF], (tried("start", LATER),), 6, {}, m.Start),
    ("never ready", [OFF], (tried("start", LATER),) * 6, 200, {}, fails("timeout")),
    ("one that woke and stopped is not woken again", [OFF], (tried("start"),), 0, {}, fails("preempted")),
    ("one that was made and is gone", [], (tried("create"),), 0, {}, fails("preempted")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "past", "later", "changes", "expected"), [row[1:] for row in DECISIONS], ids=[row[0] for row in DECISIONS]
)
def test_decisions(
    seen: list[Machine], past: tuple[m.Attempt, ...], later: float, changes: dict[str, Any], expected: Any
) -> None:
    decided = move(seen, history(*past), NOW + later, **changes)
    if isinstance(expected, tuple):
        assert isinstance(decided, m.Fail)
        assert decided.problem == expected[0]
        assert expected[1] in f"{decided.message} {decided.cause} {decided.hint}"
    elif isinstance(expected, type):
        assert isinstance(decided, expected)
    else:
        assert decided == expected


@pytest.mark.parametrize("status", ["PROVISIONING", "STAGING", "STOPPING", "SUSPENDING", "REPAIRING", "NEW_STATUS"])
def test_a_machine_in_between_is_waited_for_and_not_for_ever(status: str) -> None:
    assert isinstance(move([machine(status)]), m.Wait)
    given_up = move([machine(status)], now=NOW + 301)
    assert isinstance(given_up, m.Fail)
    assert status in given_up.message


# ------------------------------------------------------------------------------------- made by two computers at once
def made(zone: str, created: float | None, label: str = "ours", status: str = "RUNNING", **changes: Any) -> Machine:
    labels = {"fcctl": "yes", "fcctl-run": label}
    return machine(status, zone, created=created, labels=labels, deadline=NOW + 3600, **changes)


def both(ours: Machine, theirs: Machine, *more: m.Attempt) -> m.Action:
    return move([ours, theirs], history(tried("create", zone=ours.zone), *more), label="ours")


def test_of_two_made_at_once_the_younger_is_taken_back() -> None:
    ours, theirs = made(ZONES[0], NOW + 2), made(ZONES[1], NOW + 1, "theirs")
    assert both(ours, theirs) == m.DeleteCreated(ours, theirs)
    assert both(ours, replace(theirs, status="STAGING")) == m.DeleteCreated(ours, replace(theirs, status="STAGING"))
    assert move([theirs], history(tried("create"), tried("delete")), label="ours") == m.UseMachine(theirs)
    assert both(replace(ours, status="STOPPING"), theirs, tried("delete")) == m.UseMachine(theirs)


def test_the_older_one_is_kept_and_all_agree_which_that_is() -> None:
    ours, theirs = made(ZONES[1], NOW + 1), made(ZONES[0], NOW + 2, "theirs")
    assert both(ours, theirs) == m.UseMachine(ours)
    for one, other in ((NOW, NOW), (None, None), (NOW, None)):
        a_sees = move([made(ZONES[0], one, "a"), made(ZONES[1], other, "b")], history(tried("create")), label="a")
        b_has = history(tried("create", zone=ZONES[1]))
        b_sees = move([made(ZONES[1], other, "b"), made(ZONES[0], one, "a")], b_has, label="b")
        assert {type(a_sees), type(b_sees)} == {m.UseMachine, m.DeleteCreated}


@pytest.mark.parametrize(
    ("ours", "past"),
    [
        (made(ZONES[0], NOW + 2, "somebody who found it"), tried("create")),
        (made(ZONES[0], NOW + 2), tried("start")),
        (replace(made(ZONES[0], NOW + 2), labels={"fcctl-run": "ours"}), tried("create")),
    ],
    ids=["it is used by another run", "it was not made here", "it is not fcctl's"],
)
def test_nothing_is_taken_back_that_is_not_ours(ours: Machine, past: m.Attempt) -> None:
    theirs = made(ZONES[1], NOW + 1, "theirs")
    assert move([ours, theirs], history(past), label="ours") == m.UseMachine(theirs)


@pytest.mark.parametrize("refusal", [BROKEN, NO_STOCK], ids=lambda refusal: refusal.code)
def test_a_creation_that_was_refused_and_happened_is_taken_back(refusal: Refusal) -> None:
    ours, theirs = made(ZONES[0], NOW + 2), made(ZONES[1], NOW + 1, "theirs")
    past = history(tried("create", refusal))
    assert move([ours, theirs], past, label="ours") == m.DeleteCreated(ours, theirs)
    assert move([ours], past, label="ours") == m.UseMachine(ours)
    again = made(ZONES[1], NOW + 1)
    assert both(again, ours, tried("create", refusal)) == m.DeleteCreated(ours, again)


def test_a_machine_that_is_off_is_no_reason_to_take_one_back() -> None:
    copy, original = made(ZONES[1], NOW), machine(created=NOW - 9000)
    past = history(tried("start", NO_STOCK), tried("snapshot"), tried("create", zone=ZONES[1]))
    assert move([original, copy], past, label="ours", on_stockout="rebuild") == m.UseMachine(copy)


def test_what_cannot_be_taken_back_ends_it() -> None:
    """Then what was turned on is let go as after any failure."""
    end = both(made(ZONES[0], NOW + 2), made(ZONES[1], NOW + 1, "theirs"), tried("delete", FATAL))
    assert isinstance(end, m.Fail)
    assert (end.problem, "second machine vm" in end.message) == ("denied", True)


def test_snapshot_names_are_names() -> None:
    long = replace(machine(), name="a" * 63)
    assert len(a.snapshot_name(long)) <= 63
    assert a.snapshot_name(machine()) == a.snapshot_name(machine())
    assert a.snapshot_name(machine()) != a.snapshot_name(machine(stopped=NOW))


# ---------------------------------------------------------------------------------------------------- any cloud at all
REFUSALS = st.sampled_from([None, None, None, NO_STOCK, NO_QUOTA, FATAL, LATER, TAKEN])
STATUSES = ("PROVISIONING", "STAGING", "RUNNING", "STOPPING", "TERMINATED", "SUSPENDED", "REPAIRING", "STRANGE")


class World:
    """A cloud that does what ``data`` says, and an executor that does what it is told."""

    def __init__(self, data: st.DataObject, policy: m.Policy) -> None:
        self.data, self.policy = data, policy
        self.now = NOW
        self.history = m.History(NOW)
        statuses = st.sampled_from((*STATUSES, "TERMINATED", "TERMINATED"))
        zones = data.draw(st.lists(st.sampled_from(ZONES), unique=True))
        self.machines = {
            zone: machine(data.draw(statuses), zone, max_run_s=data.draw(st.sampled_from([None, 60, 3600])))
            for zone in zones
        }
        self.in_flight = 0

    def act(self, move: m.Action) -> None:
        if isinstance(move, m.Wait):
            assert 0 < move.seconds <= max(BACKOFF_S)
            self.now += move.seconds
            self._drift()
            return
        self.now += self.data.draw(st.floats(0, 60))
        refusal = self.data.draw(REFUSALS)
        action, zone, way = self._facts(move)
        done = self.data.draw(st.integers(0, 9)) > 0
        self.history = self.history.with_(m.Attempt(action, zone, self.now, way, refusal, done))
        applied = refusal is None or self.data.draw(st.integers(0, 9)) == 0
        if applied:
            self._apply(move)

    def _facts(self, move: m.Action) -> tuple[m.ActionName, str, Provisioning]:
        if isinstance(move, m.Create):
            assert not any(m.power is not Power.STOPPED for m in self.machines.values()), "one is there already"
            assert move.snapshot or not self.machines
            last = self.history.of("create")
            assert not last or last[-1].done, "one is on its way"
            assert zone_free(move.zone, self.machines)
            return "create", move.zone, move.way
        names: dict[type, m.ActionName] = {
            m.SetDeadline: "fence", m.Start: "start", m.Stop: "stop", m.Snapshot: "snapshot",
        }  # fmt: skip
        assert not isinstance(move, m.UseMachine | m.Fail | m.Wait)
        if isinstance(move, m.Start):
            assert (move.machine.max_run_s, move.machine.termination_action) == (3600, "STOP"), "no limit"
        return names[type(move)], move.machine.zone, "on_demand"

    def _apply(self, move: m.Action) -> None:
        if isinstance(move, m.Create):
            self.machines[move.zone] = machine("STAGING", move.zone, started=self.now)
        elif isinstance(move, m.SetDeadline):
            kept = self.data.draw(st.integers(0, 4)) > 0
            self._change(move.machine, max_run_s=move.seconds if kept else 60)
        elif isinstance(move, m.Start):
            self._change(move.machine, status="RUNNING", started=self.now, deadline=self.now + 3600)
        elif isinstance(move, m.Stop):
            self._change(move.machine, status="TERMINATED", deadline=None)

    def _change(self, one: Machine, **values: Any) -> None:
        if one.zone in self.machines:
            self.machines[one.zone] = replace(self.machines[one.zone], **values)

    def _drift(self) -> None:
        """While nobody does anything, states change, and machines vanish."""
        which = self.data.draw(st.integers(0, 7))
        for zone, one in list(self.machines.items())[which : which + 1]:
            status = self.data.draw(st.sampled_from((*STATUSES, "gone")))
            if status == "gone":
                del self.machines[zone]
            else:
                self._change(one, status=status, deadline=self.now + 3600 if status == "RUNNING" else None)


def zone_free(zone: str, machines: dict[str, Machine]) -> bool:
    return zone not in machines


@settings(max_examples=120)
@given(
    data=st.data(),
    stockout=st.sampled_from(["wait", "rebuild", "fail"]),
    ways=st.sampled_from([("on_demand",), ("spot", "on_demand")]),
    restart=st.booleans(),
)
def test_whatever_the_cloud_does_it_ends_in_time(
    data: st.DataObject, stockout: Any, ways: tuple[Provisioning, ...], restart: bool
) -> None:
    world = World(data, policy(on_stockout=stockout, ways=ways, restart=restart))
    for _ in range(2000):
        move = a.next_action(list(world.machines.values()), world.policy, world.history, world.now)
        if isinstance(move, m.Fail):
            assert move.message
            return
        if isinstance(move, m.UseMachine):
            deadline = a.deadline_of(move.machine)
            assert move.machine.power is Power.RUNNING
            assert deadline is not None
            assert deadline - world.now + a.SLACK_S >= WISH.need_s
            return
        world.act(move)
        assert world.now - NOW <= world.policy.limit_s + 2 * 60
    raise AssertionError("it goes on for ever")


BIG = Hardware("us-west1-c", "g2-standard-96", False, (("nvidia-l4", 8),), (("pd-ssd", 200),), address=True)


@pytest.mark.parametrize(
    ("usd", "rest_usd", "planned", "dear"),
    [
        (0.7, 0.02, PlannedPrice(0.7, 0.02), False),
        (0.7 + 1e-9, 0.02, PlannedPrice(0.7, 0.02), False),
        (0.71, 0.01, PlannedPrice(0.7, 0.02), False),  # all together it is what was planned
        (0.6, 0.2, PlannedPrice(0.7, 0.02), True),
        (8.0, 0.02, PlannedPrice(0.7, 0.02), True),
        (0.7, 0.5, PlannedPrice(0.7), False),  # a plan of before
        (0.8, 0.0, PlannedPrice(0.7), True),
        (8.0, 0.5, None, False),  # nobody pays
    ],
)
def test_all_of_an_hour_is_held_to_the_plan(
    usd: float, rest_usd: float, planned: PlannedPrice | None, dear: bool
) -> None:
    price = SimpleNamespace(usd=usd, rest_usd=rest_usd)
    assert (too_dear("vm", BIG, price, MachineRequest(60, 0.0, planned=planned)) is not None) == dear


def test_both_prices_and_the_option_that_accepts_are_named() -> None:
    price = SimpleNamespace(usd=8.003, rest_usd=0.05)
    refusal = too_dear("vm", BIG, price, MachineRequest(60, 0.0, planned=PlannedPrice(0.707, 0.019)))
    assert refusal is not None
    assert (refusal.problem, "--accept-price" in (refusal.hint or "")) == ("budget", True)
    assert "vm in us-west1-c costs $8.053 an hour, but the plan allows $0.726" in refusal.message
    assert "g2-standard-96 (on demand): $8.003, and $0.050 for its disks (200 GiB) and its address" in (
        refusal.cause or ""
    )
