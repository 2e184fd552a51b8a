"""What a schedule's firings count in its month: what they may cost, until what they did cost is known."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from orchestrator.money import firings
from orchestrator.money.book import FiringCost, SpendingBook
from orchestrator.money.firings import FIRING, cost_of, count_left_on, end, firing_id, import_record, spent_in_month
from orchestrator.money.ledger import RunUsage, UsageRecord
from orchestrator.results.records import CostLine, CostRecord, MachineRecord, SittingRecord
from tests.support.spending import book_in, reservation

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0


@pytest.fixture
def book(tmp_path: Path) -> SpendingBook:
    return book_in(tmp_path)


def start(book: SpendingBook, due: float = NOON, usd: float = 1.0, cap: float | None = 3.0) -> str | None:
    return firings.start(book, "nightly", due, usd, cap=cap, zone=UTC)


def spent(book: SpendingBook, moment: float = NOON) -> float:
    """As whoever comes next finds it."""
    fresh = SpendingBook(book._folder, book._clock, book.scope)
    return spent_in_month(fresh.state(), fresh.scope, "nightly", moment, UTC)


def name_of(book: SpendingBook, due: float = NOON) -> str:
    return firing_id(book.scope, "nightly", due)


def reserved(book: SpendingBook, name: str = "run", usd: float = 1.0, due: float = NOON) -> None:
    """As the firing's run does when it begins."""
    with book.changing() as change:
        change.reserve(reservation(name, usd, firing=name_of(book, due)))


def usage(name: str, usd: float, firing: str | None, machine: MachineRecord | None = None) -> RunUsage:
    breakdown = [CostLine(activity="bench", seconds=600.0, usd=usd)]
    return RunUsage(
        run_id=name, job="j", target="l4", created="2026-11-20T12:00:00Z", started="2026-11-20T12:00:00Z",
        cost=CostRecord(usd=usd, billed_s=600.0, breakdown=breakdown), machine=machine, firing=firing,
    )  # fmt: skip


def complete(book: SpendingBook, usd: float, name: str = "run", due: float = NOON) -> None:
    with book.changing() as change:
        change.add("run", usage(name, usd, name_of(book, due)))
        change.release(change.state.open()[name])


# ------------------------------------------------------------------------------------------------------- one firing
def test_the_commands_of_a_firing_know_it_by_their_environment(book: SpendingBook) -> None:
    assert FIRING == "FCCTL_FIRING"
    assert name_of(book) == f"ws/nightly@{NOON!r} {book.scope.results}"


def test_it_counts_its_budget_until_it_says_what_it_cost(book: SpendingBook) -> None:
    assert start(book) is None
    assert spent(book) == 1.0
    end(book, "nightly", NOON, 0.25)
    assert spent(book) == 0.25


def test_one_that_reserved_nothing_cost_nothing(book: SpendingBook) -> None:
    start(book)
    end(book, "nightly", NOON, None)
    assert spent(book) == 0.0


@pytest.mark.parametrize("says", [None, 0.0, 0.4], ids=["killed", "an error", "a result"])
def test_one_whose_run_is_not_over_counts_what_that_may_cost(book: SpendingBook, says: float | None) -> None:
    start(book, usd=1.0)
    reserved(book, usd=1.5)
    end(book, "nightly", NOON, says)
    assert spent(book) == 1.5
    complete(book, 0.5)
    assert spent(book) == 0.5


def test_its_budget_counts_while_its_run_reserved_less(book: SpendingBook) -> None:
    start(book, usd=1.0)
    reserved(book, usd=0.25)
    assert spent(book) == 1.0
    complete(book, 0.125)
    assert spent(book) == 0.125


def test_attempts_are_added_up(book: SpendingBook) -> None:
    start(book)
    for name in ("run", "run.2"):
        reserved(book, name)
    complete(book, 0.25)
    assert spent(book) == 1.25
    complete(book, 0.5, "run.2")
    end(book, "nightly", NOON, 0.5)
    assert spent(book) == 0.75, "whatever the last of them told"


def test_what_is_not_a_firing_s_is_not_counted(book: SpendingBook) -> None:
    start(book)
    with book.changing() as change:
        change.reserve(reservation("by hand", 7.0))
        change.add("run", usage("by hand before", 7.0, None))
    end(book, "nightly", NOON, 0.25)
    assert spent(book) == 0.25


def test_the_end_of_one_that_nobody_counted_is_none(book: SpendingBook) -> None:
    end(book, "nightly", NOON, 5.0)
    assert spent(book) == 0.0


# ------------------------------------------------------------------------------------------------------------ the cap
def test_what_would_break_the_cap_is_refused_and_what_fits_exactly_is_not(book: SpendingBook) -> None:
    assert [start(book, NOON + n * HOUR) for n in range(3)] == [None] * 3
    assert start(book, NOON + 3 * HOUR) == "$3.00 of this month's $3.00 is spent, and one firing may cost $1.00"
    assert spent(book) == 3.0, "what is refused counts nothing"
    end(book, "nightly", NOON, 0.5)
    assert start(book, NOON + 4 * HOUR, usd=0.51) is not None
    assert start(book, NOON + 4 * HOUR, usd=0.5) is None


def test_what_fetching_its_results_cost_counts_too(book: SpendingBook) -> None:
    start(book, usd=2.0)
    record = usage("run", 0.1, name_of(book))
    cost = record.cost.model_copy(update={"egress_usd": 1.2})  # 10 GiB
    with book.changing() as change:
        change.add("run", record.model_copy(update={"cost": cost}))
    end(book, "nightly", NOON, 0.1)
    assert spent(book) == pytest.approx(1.3)
    assert start(book, NOON + HOUR, usd=2.0) is not None


def test_without_a_cap_it_is_counted_all_the_same(book: SpendingBook) -> None:
    assert start(book, usd=100.0, cap=None) is None
    assert spent(book) == 100.0


def test_one_that_is_decided_again_is_counted_once(book: SpendingBook) -> None:
    """A tick was killed after it counted the firing, and before it recorded that."""
    assert [start(book, usd=3.0), start(book, usd=3.0)] == [None, None]
    assert spent(book) == 3.0


@pytest.mark.parametrize(
    ("zone", "expected"), [("UTC", 1.0), ("Europe/Berlin", 3.0), ("America/New_York", 1.0)], ids=str
)
def test_months_are_those_of_the_budget_s_zone(book: SpendingBook, zone: str, expected: float) -> None:
    late = datetime(2026, 10, 31, 23, 30, tzinfo=UTC).timestamp()  # November in Berlin
    start(book, late, 2.0)
    start(book, NOON, 1.0)
    assert spent_in_month(book.state(), book.scope, "nightly", NOON, ZoneInfo(zone)) == expected


def test_two_checkouts_of_a_project_share_the_month_and_fire_for_themselves(tmp_path: Path) -> None:
    one, two, other = (
        book_in(tmp_path, project=project, results=tmp_path / place)
        for project, place in (("ws", "one"), ("ws", "two"), ("other", "three"))
    )
    assert [start(one, usd=2.0), start(two, usd=1.0), start(other, usd=3.0)] == [None, None, None]
    assert start(two, NOON + HOUR) == "$3.00 of this month's $3.00 is spent, and one firing may cost $1.00"
    assert (spent(one), spent(two), spent(other)) == (3.0, 3.0, 3.0)


# ---------------------------------------------------------------------------------------------------------- left on
MACHINE = MachineRecord(
    project="p", zone="z", name="vm", instance_id="7", began="2026-11-20T12:00:00Z", ended=None, released="kept",
    sittings=[SittingRecord(began="2026-11-20T12:00:00Z", seconds=600.0, started="2026-11-20T12:00:00Z")],
)  # fmt: skip
ON = UsageRecord(
    project="p", zone="z", name="vm", instance_id="7", target="l4", usd_per_hour=0.6, started=NOON, seen=NOON + 700
)


@pytest.mark.parametrize(
    ("said", "usd"),
    [
        ([ON.model_copy(update={"stopped": NOON + 1800, "seen": NOON + 1800})], 0.3),
        ([ON], 2.0),  # when it went off is not known
        ([], 2.1),  # nor when it was on
        ([ON.model_copy(update={"stopped": NOON + 1800, "usd_per_hour": None})], 2.0),
        ([ON.model_copy(update={"started": NOON - 9000, "stopped": NOON - 8000}), ON], 2.0),  # another start's end
    ],
)
def test_a_machine_that_it_left_on_counts_in_full_and_then_what_it_did_cost(
    book: SpendingBook, said: list[UsageRecord], usd: float
) -> None:
    start(book)
    name = name_of(book)
    kept = reservation("kept:7:1", 2.0, "kept", firing=name, instance_id="7", started=NOON)
    with book.changing() as change:
        change.add("run", usage("run", 0.1, name, MACHINE))
        change.reserve(kept)
    end(book, "nightly", NOON, 0.1)
    assert spent(book) == pytest.approx(2.1)
    with book.changing() as change:
        for one in said:
            change.add("power", one)
    with book.changing() as change:
        count_left_on(change, kept)
        change.release(kept)
    assert spent(book) == pytest.approx(usd)


def test_what_others_ran_on_a_machine_that_it_left_on_is_theirs(book: SpendingBook) -> None:
    start(book)
    name = name_of(book)
    kept = reservation("kept:7:1", 2.0, "kept", firing=name, instance_id="7", started=NOON)
    began = "2026-11-20T12:10:00Z"
    theirs = MACHINE.model_copy(
        update={"sittings": [SittingRecord(began=began, seconds=600.0, started=MACHINE.sittings[0].began)]}
    )
    with book.changing() as change:
        change.add("run", usage("run", 0.1, name, MACHINE))
        change.add("run", usage("theirs", 0.1, None, theirs).model_copy(update={"started": began}))
        change.add("run", usage("on no machine", 0.1, None))
        change.reserve(kept)
        change.add("power", ON.model_copy(update={"stopped": NOON + 1800}))
    with book.changing() as change:
        count_left_on(change, kept)
        change.release(kept)
    assert spent(book) == pytest.approx(0.2)


# ------------------------------------------------------------------------------------------------ of earlier versions
def test_a_record_is_counted_once(book: SpendingBook) -> None:
    read: list[int] = []

    def record() -> list[FiringCost]:
        read.append(1)
        return [
            cost_of(book.scope, "nightly", NOON, 2.0, ended=True),
            cost_of(book.scope, "nightly", NOON + HOUR, 0.5, ended=False),
        ]

    start(book, NOON + HOUR, usd=0.75)
    for _ in range(2):
        import_record(book, "nightly", record)
    assert (len(read), spent(book)) == (1, 2.75), "and what the book has itself is the better word"
    import_record(book, "other", list)
    assert len(book.state().lines("imported")) == 2
