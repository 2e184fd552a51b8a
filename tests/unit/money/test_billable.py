"""What stands and is billed by the month: its life, its price, and what of it is not known."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import CloudError
from orchestrator.machines.cloud import BillableResource, Disk, Machine, Operation
from orchestrator.machines.targets import SANDBOX_PROJECT, GcpTarget
from orchestrator.money import totals as sums
from orchestrator.money.billable import (
    ResourceRecord,
    ended,
    histories,
    is_ours,
    news,
    of_machine,
    of_resource,
    standing_lines,
    target_of,
)
from orchestrator.money.book import SpendingBook
from orchestrator.money.prices.machine import monthly_usd
from orchestrator.money.usage_recorder import ResourceRecorder, is_emulated
from orchestrator.providers.gcp.list_prices import LIST_PRICES
from tests.support.spending import book_in

DAY = 86400.0
MADE = datetime(2026, 11, 1, 6, 30, tzinfo=UTC).timestamp()
MONTH_S = 730 * 3600.0
TARGET = GcpTarget(name="l4", project="my-project", instance="vm", zones=["us-west1-c"])


def disk(seen: float, **changes: Any) -> ResourceRecord:
    values = {
        "project": "my-project", "kind": "disk", "place": "us-west1-c", "name": "vm", "target": "l4", "gb": 100,
        "type": "pd-balanced", "machine_id": "7", "auto_delete": True, "created": MADE, "seen": seen,
        "usd_per_month": 10.0,
    }  # fmt: skip
    return ResourceRecord.model_validate({**values, **changes})


def usd(words: list[ResourceRecord], now: float) -> float:
    return sum(line.usd for line in standing_lines(words, now, UTC))


def sure(words: list[ResourceRecord], now: float) -> set[str]:
    return {line.sure for line in standing_lines(words, now, UTC)}


def test_a_disk_costs_its_price_from_its_making_to_its_end() -> None:
    words = [disk(MADE + 60), disk(MADE + 9 * DAY + 400, gone=MADE + 9 * DAY + 300)]
    for now in (MADE + 9 * DAY + 400, MADE + 99 * DAY):
        assert usd(words, now) == pytest.approx(10.0 / MONTH_S * (9 * DAY + 300))
        assert sure(words, now) == {"known"}


def test_each_day_has_its_part() -> None:
    lines = standing_lines([disk(MADE), disk(MADE + 3 * DAY)], MADE + 3 * DAY, ZoneInfo("Europe/Berlin"))
    days = sums.totals(lines, "day", ZoneInfo("Europe/Berlin"))
    assert [day.group for day in days] == ["2026-11-01", "2026-11-02", "2026-11-03", "2026-11-04"]
    assert days[1].usd == days[2].usd == pytest.approx(10.0 / MONTH_S * DAY)
    assert all(day.seconds == 0 and day.standing_usd == day.usd for day in days), "no machine was on"
    assert [t.group for t in sums.totals(lines, "target", UTC)] == ["l4"]
    assert [t.group for t in sums.totals(lines, "job", UTC)] == ["(disk)"]


def test_one_that_was_not_seen_for_long_is_an_estimate_from_then_on() -> None:
    now = MADE + 10 * DAY
    lines = standing_lines([disk(MADE + 2 * DAY)], now, UTC)
    known = sum(line.seconds for line in lines if line.sure == "known")
    assert known == pytest.approx(2 * DAY)
    assert sum(line.seconds for line in lines) == pytest.approx(10 * DAY)
    (remark,) = sums.remarks(lines)
    assert (remark.sure, remark.what) == ("estimated", "disk vm (100 GiB pd-balanced) in us-west1-c")
    assert "last seen on 2026-11-03" in remark.why


def test_one_that_was_missed_is_an_upper_bound() -> None:
    words = [disk(MADE + DAY), ended(histories([disk(MADE + DAY)])[0], MADE + 5 * DAY, MADE + 5 * DAY, missed=True)]
    lines = standing_lines(words, MADE + 50 * DAY, UTC)
    assert sum(line.seconds for line in lines) == pytest.approx(5 * DAY)
    assert sum(line.seconds for line in lines if line.sure == "upper_bound") == pytest.approx(4 * DAY)


def test_a_disk_whose_price_nobody_knows_is_said_and_is_none_of_the_sum() -> None:
    lines = standing_lines([disk(MADE + DAY, type="hyperdisk-balanced", usd_per_month=None)], MADE + DAY, UTC)
    (remark,) = sums.remarks(lines)
    assert (remark.sure, remark.usd) == ("unpriced", 0.0)
    assert "disk_usd_per_gib_month in [targets.l4]" in remark.why


def test_a_price_that_is_said_later_counts_from_the_beginning() -> None:
    unknown = {"type": "hyperdisk-balanced"}
    words = [disk(MADE, usd_per_month=None, **unknown), disk(MADE + DAY, usd_per_month=8.0, **unknown)]
    assert usd(words, MADE + DAY) == pytest.approx(8.0 / MONTH_S * DAY)
    assert sure(words, MADE + DAY) == {"known"}


def test_a_disk_that_grew_costs_more_from_when_it_was_seen_to_have() -> None:
    words = [disk(MADE), disk(MADE + 2 * DAY, gb=200, usd_per_month=20.0)]
    assert usd(words, MADE + 3 * DAY) == pytest.approx((2 * 10.0 + 20.0) / MONTH_S * DAY)


def test_a_clock_that_was_ahead_for_a_while_makes_nothing_dearer() -> None:
    now = MADE + 3 * DAY
    words = [disk(MADE + 60), disk(MADE + 900 * DAY), disk(MADE + 2 * DAY)]
    assert usd(words, now) == pytest.approx(10.0 / MONTH_S * 3 * DAY)


@pytest.mark.parametrize("seen", [[-2], [-2, -1], [-3, -2, 1]], ids=str)
def test_one_that_was_seen_by_a_clock_that_was_behind_costs_nothing_before_it_was_made(seen: list[float]) -> None:
    words = [disk(MADE + days * DAY) for days in seen]
    assert usd(words, MADE + 3 * DAY) == pytest.approx(10.0 / MONTH_S * 3 * DAY)
    assert min(line.start for line in standing_lines(words, MADE + 3 * DAY, UTC)) == MADE


def test_made_again_under_its_name_it_is_another() -> None:
    again = MADE + 20 * DAY
    words = [disk(MADE), disk(MADE + 5 * DAY, gone=MADE + 4 * DAY), disk(again, created=again)]
    assert [life.created for life in histories(words)] == [MADE, again]
    assert usd(words, again + DAY) == pytest.approx(10.0 / MONTH_S * 5 * DAY)


@pytest.mark.parametrize("missed", [True, False])
def test_one_that_a_list_once_lacked_costs_each_day_once(missed: bool) -> None:
    """The cloud's list was behind: the disk is there again, as old as before."""
    words = [disk(MADE), disk(MADE + 29 * DAY, gone=MADE + 29 * DAY, missed=missed), disk(MADE + 30 * DAY)]
    assert usd(words, MADE + 30 * DAY) == pytest.approx(10.0 / MONTH_S * 30 * DAY)


def test_one_whose_making_nobody_knows_is_an_estimate_until_it_was_seen_twice() -> None:
    words = [disk(MADE, created=None), disk(MADE + DAY, created=None)]
    lines = standing_lines(words, MADE + DAY + 60, UTC)
    assert [line.sure for line in lines if line.start < MADE + DAY] == ["estimated", "estimated"]
    assert {line.sure for line in lines if line.start >= MADE + DAY} == {"known"}
    assert lines[0].why == "its creation time is unknown: counted from when it was first seen"


@pytest.mark.parametrize(
    ("changes", "is_another"),
    [
        ({}, True),  # it is there again
        ({"seen": MADE + 4 * DAY}, False),  # as it was before its end
        ({"gone": MADE + 3.5 * DAY}, False),  # a better record of its end
        ({"created": MADE + 5 * DAY + 1, "gone": MADE + 6 * DAY}, True),
    ],
)
def test_what_is_seen_after_its_end_is_another(changes: dict[str, Any], is_another: bool) -> None:
    ended = disk(MADE + 5 * DAY, gone=MADE + 4 * DAY)
    later = disk(**{"seen": MADE + 6 * DAY, **changes})
    assert len(histories([disk(MADE), ended, later])) == 1 + is_another


def test_one_that_was_made_again_unseen_ended_before_that() -> None:
    again = MADE + 20 * DAY
    first, second = histories([disk(MADE + DAY), disk(again + 60, created=again)])
    assert (first.gone, first.last.missed, second.gone) == (again, True, None)


# ---------------------------------------------------------------------------------------------- what the cloud shows
def machine(**changes: Any) -> Machine:
    values: dict[str, Any] = {
        "project": "my-project", "zone": "us-west1-c", "name": "vm", "id": "7", "status": "TERMINATED",
        "disks": (Disk("vm", "boot", True, 100, True), Disk("", "scratch", False, 375, True)), "created": MADE,
    }  # fmt: skip
    return Machine(**{**values, **changes})


def thing(kind: str = "disk", **changes: Any) -> BillableResource:
    values: dict[str, Any] = {
        "project": "my-project", "place": "us-west1-c", "name": "vm", "gb": 100, "type": "pd-ssd", "users": ("vm",),
        "created": MADE - 5.0,
    }  # fmt: skip
    return BillableResource(kind, **{**values, **changes})  # type: ignore[arg-type]


def test_a_machine_tells_of_its_disks_and_their_own_entry_is_stronger() -> None:
    (guess,) = of_machine(machine(), TARGET, LIST_PRICES, MADE + 60, emulated=False)
    assert (guess.type, guess.usd_per_month, guess.by_machine) == ("pd-balanced", pytest.approx(10.0), True)
    assert sure([guess], MADE + 60) == {"estimated"}
    told = of_resource(thing(), TARGET, [machine()], LIST_PRICES, MADE + DAY, emulated=False)
    assert (told.type, told.machine_id, told.auto_delete) == ("pd-ssd", "7", True)
    (life,) = histories([guess, told])
    assert life.created == MADE - 5.0
    assert usd([guess, told], MADE + DAY) == pytest.approx(17.0 / MONTH_S * (DAY + 5.0))
    assert sure([guess, told], MADE + DAY) == {"known"}
    (later,) = of_machine(machine(), TARGET, LIST_PRICES, MADE + 2 * DAY, emulated=False)
    word = news(life, later)
    assert (word.type, word.by_machine, word.usd_per_month) == ("pd-ssd", False, pytest.approx(17.0))


def test_what_is_known_and_fresh_is_not_written_down_again() -> None:
    (life,) = histories([disk(MADE)])
    assert news(life, disk(MADE + 60)) is None
    assert news(life, disk(MADE + 7200)) is not None
    assert news(life, disk(MADE + 60, gb=200, usd_per_month=20.0)) is not None


# ---------------------------------------------------------------------------------------------- what is written down
class Cloud:
    """Tells what was done to one name; and of another that it may not be asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def operations(self, zone: str, name: str) -> list[Operation]:
        self.asked.append(name)
        if name == "hidden":
            raise CloudError("forbidden")
        done = {"started": MADE + DAY - 5, "finished": MADE + DAY, "target_id": "9", "collection": "disks"}
        return [Operation("op", zone, "delete", name, "DONE", **done)] if name == "told" else []  # type: ignore[arg-type]


@pytest.fixture
def recorder(tmp_path: Path) -> tuple[ResourceRecorder, SpendingBook]:
    file = book_in(tmp_path)
    clock: Any = SimpleNamespace(now=lambda: MADE + 2 * DAY)
    return ResourceRecorder(file, clock), file


def gone(file: SpendingBook) -> dict[str, tuple[float | None, bool]]:
    return {
        life.last.name: (life.last.gone, life.last.missed) for life in histories(file.resources()) if life.last.gone
    }


@pytest.mark.parametrize(
    ("change", "at", "ends"),
    [
        ({}, MADE + DAY, True),
        ({}, MADE, True),
        ({}, MADE - 1, False),  # an older machine's end
        ({"auto_delete": False}, MADE + DAY, False),
        ({"machine_id": ""}, MADE + DAY, False),
        ({"machine_id": "8"}, MADE + DAY, False),
    ],
)
def test_with_a_deleted_machine_went_the_disks_that_were_to_go_with_it(
    recorder: tuple[ResourceRecorder, SpendingBook], change: dict[str, Any], at: float, ends: bool
) -> None:
    known, file = recorder
    known.record([disk(MADE + 60, **change)])
    deleted = Operation("op", "us-west1-c", "delete", "vm", "DONE", started=at - 5, finished=at, target_id="7")
    known.record_operations([deleted])
    assert gone(file) == ({"vm": (at, False)} if ends else {})
    known.record_operations([deleted])
    assert len(file.resources()) == 1 + ends, "and it is written down once"


def test_what_a_whole_list_does_not_have_is_gone(recorder: tuple[ResourceRecorder, SpendingBook]) -> None:
    known, file = recorder
    names = ("there", "told", "missed", "hidden")
    known.record([disk(MADE + 60, name=name) for name in names])
    known.record(
        [disk(MADE + 60, name="elsewhere", project="other-project"), disk(MADE + 60, name="ip", kind="address")]
    )
    cloud: Any = Cloud()
    known.record_missing("my-project", [("my-project", "disk", "us-west1-c", "there")], cloud)
    now = MADE + 2 * DAY
    expected = {"told": (MADE + DAY, False), "missed": (now, True), "hidden": (now, True), "ip": (now, True)}
    assert gone(file) == expected
    assert cloud.asked == ["told", "missed", "hidden"]
    assert {life.last.name for life in known.standing()} == {"there", "elsewhere"}


def test_what_fcctl_deleted_is_gone_once(recorder: tuple[ResourceRecorder, SpendingBook]) -> None:
    known, file = recorder
    known.record_deleted(thing(), MADE + DAY)
    assert file.resources() == [], "nobody knows it"
    known.record([disk(MADE + 60)])
    known.record_deleted(thing(), MADE + DAY)
    known.record_deleted(thing(), MADE + 2 * DAY)
    assert gone(file) == {"vm": (MADE + DAY, False)}


@pytest.mark.parametrize(
    ("project", "endpoint", "emulated"),
    [
        (SANDBOX_PROJECT, "http://127.0.0.1:8080", True),
        (SANDBOX_PROJECT, None, False),
        ("my-project", "http://127.0.0.1:8080", False),
    ],
)
def test_only_the_sandbox_s_things_cost_nobody_anything(project: str, endpoint: str | None, emulated: bool) -> None:
    assert is_emulated(TARGET.model_copy(update={"project": project, "api_endpoint": endpoint})) == emulated


@pytest.mark.parametrize(
    ("leftover", "expected"),
    [
        (thing(type="pd-balanced"), 10.0),
        (thing("snapshot", place="us-west1", gb=10), 0.5),
        (thing("snapshot", place="us", gb=10), 0.56),  # where the service stores one by itself
        (thing("snapshot", place="eu", gb=10), 0.7),
        (thing("address", place="us-west1", gb=0, users=()), 7.3),
        (thing("address", place="us-west1", gb=0), 3.65),
        (thing(type="hyperdisk-throughput"), None),
    ],
)
def test_list_prices_of_a_month(leftover: BillableResource, expected: float | None) -> None:
    assert monthly_usd(leftover, LIST_PRICES) == (None if expected is None else pytest.approx(expected))


def test_a_target_s_own_prices_are_stronger() -> None:
    own = TARGET.model_copy(update={"disk_usd_per_gib_month": 0.2, "snapshot_usd_per_gib_month": 0.01,
                                    "address_usd_per_hour": 0.0})  # fmt: skip
    assert monthly_usd(thing(type="hyperdisk-balanced"), LIST_PRICES, own) == pytest.approx(20.0)
    assert monthly_usd(thing("snapshot", gb=10), LIST_PRICES, own) == pytest.approx(0.1)
    assert monthly_usd(thing("address"), LIST_PRICES, own) == 0.0


def test_whose_things_are_in_the_ledger() -> None:
    names = frozenset({"vm"})
    assert is_ours(thing(name="vm-data", users=()), names)
    assert is_ours(thing(name="data", users=("vm",)), names)
    assert is_ours(thing("snapshot", name="before", source="vm", users=()), names)
    ours = thing(name="spare", users=(), labels={"fcctl": "yes", "fcctl-workspace": "mine"})
    assert is_ours(ours, names, "mine")
    assert not is_ours(ours, names, "theirs")
    for name in ("vmware", "data", "vm.data", "v"):
        assert not is_ours(thing(name=name, users=("other",)), names)
    assert is_ours(thing(name="vm", users=()), names)
    assert target_of(ours, [TARGET]) is None
    assert target_of(thing(name="data", users=("vm",)), [TARGET]) is TARGET


@given(
    sizes=st.lists(st.tuples(st.floats(0, 30 * DAY), st.integers(10, 500)), min_size=1, max_size=6),
    rest=st.floats(0, 30 * DAY),
    gone=st.booleans(),
)
def test_every_second_of_a_disk_is_in_the_books_once(sizes: list[tuple[float, int]], rest: float, gone: bool) -> None:
    words, at = [], MADE
    for gap, gb in sizes:
        at += gap
        words.append(disk(at, gb=gb, usd_per_month=gb * 0.1))
    end = at + rest
    if gone:
        words.append(ended(histories(words)[0], end, end))
    for now in (end, end + DAY) if gone else (end,):
        lines = standing_lines(words, now, ZoneInfo("America/Los_Angeles"))
        assert sum(line.seconds for line in lines) == pytest.approx(end - MADE, abs=0.1)
        assert all(line.seconds > 0 for line in lines)
