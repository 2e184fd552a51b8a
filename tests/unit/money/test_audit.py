"""What an audit thinks of a machine, and what it says it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.machines.cloud import BillableResource, Machine, Operation, Refusal, Remedy
from orchestrator.machines.provision.ready import new_request_id
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.audit import Claim, Evidence, judge, rate_of, start_of
from orchestrator.money.billable import delete_command, delete_machine_command, older_copies, orphans
from orchestrator.money.prices.machine import of_a_stopped_machine
from tests.support.budgets import listed

NOW = 1_800_000_000.0


def machine(status: str = "RUNNING", **changes: Any) -> Machine:
    values: dict[str, Any] = {
        "project": "my-project", "zone": "us-west1-c", "name": "vm", "id": "1", "status": status,
        "machine_type": "g2-standard-4", "labels": {"fcctl": "yes"}, "started": NOW - 1800, "deadline": NOW + 1800,
    }  # fmt: skip
    return Machine(**{**values, **changes})


@pytest.mark.parametrize(
    ("claims", "status", "labels", "verdict", "words"),
    [
        ([], "TERMINATED", {}, "off", "stopped"),
        ([], "SUSPENDED", {}, "off", "suspended"),
        ([], "STOPPING", {}, "off", "stopping (STOPPING)"),
        ([Claim("r1", "followed")], "RUNNING", {}, "run", "r1 runs on it"),
        ([Claim("r1", "followed")], "STAGING", {}, "run", "r1 runs on it"),
        ([Claim("r1", "alive")], "RUNNING", {}, "run", "fcctl attach r1"),
        ([Claim("r1", "left", "'cloud start' at noon")], "RUNNING", {}, "stray", "'cloud start' at noon"),
        ([Claim("r1", "left")], "PROVISIONING", {}, "stray", "followed r1 has ended"),
        ([Claim("r1", "over", "'released kept'", NOW + 60)], "RUNNING", {}, "kept", "kept"),
        ([Claim("r1", "over", "'released kept'", NOW - 60)], "RUNNING", {}, "stray", "r1 has ended"),
        ([Claim("r1", "over", "'released kept'", NOW)], "RUNNING", {}, "stray", "r1 has ended"),
        ([Claim("s1", "session")], "RUNNING", {}, "session", "session s1 keeps it on"),
        ([Claim("u1", "up")], "RUNNING", {}, "up", "hosts up"),
        ([Claim("u1", "up"), Claim("s1", "session")], "RUNNING", {}, "session", "s1"),
        ([], "SUSPENDING", {}, "off", "stopping (SUSPENDING)"),
        ([], "RUNNING", {"fcctl-run": "up-17"}, "up", "hosts up"),
        ([], "RUNNING", {"fcctl-run": "r9"}, "stray", "r9"),
        ([], "RUNNING", {"fcctl-run": "r9", "fcctl-workspace": "other"}, "foreign", "other"),
        ([], "RUNNING", {"fcctl-run": "r9", "fcctl-workspace": "mine"}, "stray", "r9"),
        ([], "RUNNING", {"fcctl": "yes"}, "stray", "created by fcctl"),
        ([], "RUNNING", {}, "person", "a person probably did"),
        ([], "SOMETHING-NEW", {}, "person", "a person probably did"),
        ([Claim("r1", "left"), Claim("r2", "busy")], "RUNNING", {}, "foreign", "r2 runs on it"),
        ([Claim("r1", "over")], "RUNNING", {"fcctl-run": "r9", "fcctl-workspace": "other"}, "foreign", "other"),
        ([Claim("r9", "over")], "RUNNING", {"fcctl-run": "r9", "fcctl-workspace": "other"}, "stray", "r9 has ended"),
    ],
)
def test_for_whom(claims: list[Claim], status: str, labels: dict[str, str], verdict: str, words: str) -> None:
    finding = judge(machine(status, labels=labels), claims, 0.72, NOW, "mine")
    assert finding.verdict == verdict
    assert words in finding.why
    assert finding.in_order == (verdict != "stray")


OURS = new_request_id()


def done(kind: str, request_id: str = "", at: float = NOW - 1800, **changes: Any) -> Operation:
    values: dict[str, Any] = {"started": at, "finished": at, "target_id": "1", "user": "me@example.com", **changes}
    return Operation("op", "us-west1-c", kind, "vm", "DONE", request_id=request_id, **values)


@pytest.mark.parametrize(
    ("operations", "claims", "labels", "who"),
    [
        ([], [], {}, "unknown"),
        ([done("start", OURS)], [], {}, "fcctl"),
        ([done("stop", OURS), done("start", OURS)], [], {}, "fcctl"),
        ([done("setLabels", OURS), done("start")], [], {"fcctl-run": "r1"}, "person"),
        ([done("setLabels", OURS, target_id="2"), done("start")], [], {"fcctl-run": "r1"}, "unknown"),
        ([done("start"), done("start", OURS, at=NOW - 9000)], [], {"fcctl": "yes"}, "person"),
        ([done("automaticRestart"), done("start", OURS, at=NOW - 9000)], [], {}, "fcctl"),
        (
            [done("start", refusal=Refusal("x", "no", Remedy.FATAL)), done("start", OURS, at=NOW - 9000)],
            [],
            {},
            "fcctl",
        ),
        # A cloud that keeps no request ids: the journals here decide, else the labels.
        ([done("start")], [], {}, "person"),
        ([done("insert")], [], {"fcctl": "yes"}, "unknown"),
        ([done("start")], [Claim("r1", "left", turned_on=(NOW - 1802, NOW - 1798))], {}, "fcctl"),
        ([done("start")], [Claim("r1", "over", turned_on=(NOW - 9002, NOW - 8998))], {"fcctl-run": "r1"}, "person"),
        ([done("start")], [Claim("r1", "over")], {"fcctl-run": "r1"}, "person"),
        ([done("start")], [Claim("r1", "over")], {"fcctl-run": "r2"}, "unknown"),
    ],
)
def test_who_turned_it_on(operations: list[Operation], claims: list[Claim], labels: dict[str, str], who: str) -> None:
    found = start_of(machine(labels=labels), operations, claims)
    assert found.started_by == who
    assert found.user == ("" if who == "unknown" else "me@example.com")


@pytest.mark.parametrize(
    ("claims", "labels", "started_by", "verdict"),
    [
        ([], {"fcctl-run": "r9"}, "person", "person"),
        ([Claim("r1", "left")], {"fcctl-run": "r1"}, "person", "person"),
        ([Claim("r1", "over", kept_until=NOW + 60)], {"fcctl-run": "r1"}, "person", "kept"),
        ([], {"fcctl-run": "up-17"}, "person", "up"),
        ([], {}, "fcctl", "foreign"),  # its labels are gone
        ([], {"fcctl-run": "r9"}, "fcctl", "stray"),
        ([Claim("r1", "left")], {"fcctl-run": "r1"}, "fcctl", "foreign"),  # another workspace's start, not labelled yet
        ([Claim("r1", "left", turned_on=(NOW - 1801, NOW - 1799))], {}, "fcctl", "stray"),
        ([Claim("r1", "over", turned_on=(NOW - 9001, NOW - 8999))], {"fcctl-run": "r1"}, "fcctl", "foreign"),
        ([Claim("r1", "alive")], {}, "person", "run"),
    ],
)
def test_for_whom_with_what_the_cloud_says_of_its_start(
    claims: list[Claim], labels: dict[str, str], started_by: Any, verdict: str
) -> None:
    found = judge(machine(labels=labels), claims, 0.72, NOW, "mine", Evidence(started_by, "me@example.com"))
    assert found.verdict == verdict


@pytest.mark.parametrize(("asked", "verdict"), [(NOW - 60, "stray"), (NOW - 9000, "foreign")])
def test_a_machine_that_waits_in_the_queue_is_of_the_run_that_made_it(asked: float, verdict: str) -> None:
    """It has no last start: else its request would stay, and its machine would come for nobody."""
    queued = machine("PENDING", labels={"fcctl": "yes", "fcctl-run": "r1"}, started=None, created=NOW - 60)
    claims = [Claim("r1", "left", turned_on=(asked - 5, asked + 5))]
    assert judge(queued, claims, 0.72, NOW, "mine", Evidence("fcctl")).verdict == verdict


@pytest.mark.parametrize(("since", "is_of"), [(NOW - 5, True), (NOW + 5, True), (NOW - 5.5, False), (NOW + 5.5, False)])
def test_a_machine_is_of_the_run_that_had_it_started_then(since: float, is_of: bool) -> None:
    claim = Claim("r1", "left", turned_on=(NOW - 5, NOW + 5))
    assert claim.is_of(machine(started=since)) is is_of
    assert claim.is_of(machine(started=None, created=since)) is is_of
    assert not claim.is_of(machine(started=None, created=None))
    assert not Claim("r1", "left").is_of(machine(started=since))


@pytest.mark.parametrize(("deadline", "verdict"), [(NOW + 1, "up"), (NOW, "stray"), (None, "stray")])
def test_what_hosts_up_turned_on_is_its_until_the_limit(deadline: float | None, verdict: str) -> None:
    assert judge(machine(deadline=deadline), [Claim("u1", "up")], 0.72, NOW).verdict == verdict


def test_the_older_of_two_machines_of_one_name() -> None:
    old, new = (machine("TERMINATED", zone=zone, started=at) for zone, at in (("us-west1-c", 5.0), ("us-west1-a", 9.0)))
    other = machine("TERMINATED", name="other")
    assert older_copies([old, new, other]) == {("us-west1-c", "vm"): "us-west1-a"}
    assert older_copies([old, replace(new, status="RUNNING")]) == {("us-west1-c", "vm"): "us-west1-a"}
    assert older_copies([replace(old, status="RUNNING"), new]) == {}
    assert delete_machine_command(old) == (
        "gcloud compute instances delete vm --zone us-west1-c --project my-project --delete-disks=all"
    )


def test_what_a_machine_costs_while_it_is_off() -> None:
    prices = listed().prices
    things = [
        leftover(name="vm", users=("vm",)),
        leftover(name="data", users=("vm",), type="pd-standard"),
        leftover("address", place="us-west1", name="ip", users=("vm",), gb=0),
        leftover(name="vm", users=("vm",), place="us-east1-b"),
        leftover(name="spare"),
    ]
    off = machine("TERMINATED")
    assert of_a_stopped_machine(off, things, prices, None) == pytest.approx(10.0 + 4.0 + 0.005 * 730)
    assert of_a_stopped_machine(off, [*things, leftover(name="x", users=("vm",), type="odd")], prices, None) is None
    assert of_a_stopped_machine(off, [], prices, None) is None, "its disks could not be read"


def test_a_machine_that_was_woken_by_hand_is_one_until_its_fence() -> None:
    labels = {"fcctl-run": "up-17"}
    assert judge(machine(labels=labels, deadline=None), [], 0.72, NOW, "mine").verdict == "stray"
    starting = {"labels": labels, "deadline": None, "started": None}
    limited = machine("STAGING", **starting, max_run_s=600, termination_action="STOP")
    assert judge(limited, [], 0.72, NOW, "mine").verdict == "up"
    assert judge(machine("STAGING", **starting), [], 0.72, NOW, "mine").verdict == "stray"


def test_dollars() -> None:
    finding = judge(machine(), [], 0.72, NOW)
    assert finding.usd_so_far == pytest.approx(0.36)
    assert finding.usd_by_then == pytest.approx(0.72 * 3630 / 3600)
    assert judge(machine(started=NOW - 1), [], 0.72, NOW).usd_so_far == pytest.approx(0.72 / 60)  # the least bill
    assert judge(machine(), [], None, NOW).usd_so_far is None
    assert judge(machine("STAGING", deadline=None), [], 0.72, NOW).usd_so_far is None, "its start before is over"
    assert judge(machine(deadline=None), [], 0.72, NOW).usd_by_then is None
    assert judge(machine("TERMINATED"), [], 0.72, NOW).usd_so_far is None


def test_rates() -> None:
    target = GcpTarget(name="l4", project="my-project", instance="vm", zones=["us-west1-c"], usd_per_hour=0.5)
    assert rate_of(machine(), target, listed()) == 0.5
    assert rate_of(machine(), None, listed(usd_per_hour=2.0)) == 2.0
    assert rate_of(machine(), None, listed()) == pytest.approx(0.706832)
    spot = rate_of(machine(spot=True), None, listed())
    assert spot < 0.706832
    assert rate_of(machine(machine_type="n9-mega"), None, listed()) is None
    nobody_sells_it = target.model_copy(update={"usd_per_hour": None, "machine_type": "n9-mega"})
    assert rate_of(machine(machine_type="n9-mega"), nobody_sells_it, listed()) is None
    assert rate_of(machine(machine_type="n1-standard-4", accelerators={"nvidia-tesla-t4": 1}), None, listed()) is None


def test_a_machine_costs_what_the_cloud_shows_and_not_what_its_target_names() -> None:
    """Otherwise eight GPUs are in the ledger as one."""
    target = GcpTarget(name="l4", project="my-project", instance="vm", zones=["us-west1-c"], provisioning="spot")
    big = machine(machine_type="g2-standard-96", accelerators={"nvidia-l4": 8})
    assert rate_of(big, target, listed()) == pytest.approx(96 * 0.036698004 + 8 * 0.560040239, abs=1e-5)
    assert rate_of(machine(), target, listed()) == pytest.approx(0.706832), "on demand, whatever the target wants"
    assert rate_of(machine(spot=True), target, listed()) == pytest.approx(0.423956)
    assert rate_of(machine(zone="europe-west6-b"), target, listed()) == pytest.approx(0.97575, abs=1e-5)
    nobody_sells_it = target.model_copy(update={"machine_type": "n9-mega"})
    assert rate_of(machine(), nobody_sells_it, listed()) == pytest.approx(0.706832)
    assert rate_of(machine(machine_type=""), target, listed()) is None, "the cloud does not say what it is"
    for gpus in ({"nvidia-l4": 2}, {"nvidia-l4-vws": 1}):
        assert rate_of(machine(accelerators=gpus), target, listed()) is None, "a price of another machine is no price"


def leftover(kind: Any = "disk", **changes: Any) -> BillableResource:
    values: dict[str, Any] = {"place": "us-west1-c", "name": "spare", "gb": 100, "type": "pd-balanced"}
    return BillableResource(kind, "my-project", **{**values, **changes})


def test_what_is_an_orphan() -> None:
    ours = leftover(labels={"fcctl": "yes"})
    rows = [
        ours,
        leftover(labels={"fcctl": "yes"}, users=("vm",)),
        leftover(name="somebody-elses"),
        leftover(name="vm"),
        leftover("snapshot", place="us-west1", name="vm-65a", source="vm"),
        leftover("address", place="us-west1", name="vmware"),
    ]
    assert [one.name for one in orphans(rows, ["vm"])] == ["spare", "vm", "vm-65a"]


def test_how_to_be_rid_of_it() -> None:
    assert delete_command(leftover()) == (
        "gcloud compute disks delete spare --zone us-west1-c --project my-project"
    )  # fmt: skip
    assert "--region us-west1" in delete_command(leftover("address", place="us-west1"))
    assert delete_command(leftover("snapshot", place="us")) == (
        "gcloud compute snapshots delete spare --project my-project"
    )  # fmt: skip
