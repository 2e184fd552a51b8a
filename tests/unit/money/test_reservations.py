"""What is reserved of a machine and what may still be spent; the sums of day, month and project."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcctl_remote import wire
from orchestrator.base.errors import BudgetError
from orchestrator.machines.targets import SandboxTarget
from orchestrator.money import book as books
from orchestrator.money.caps import Cap, fenced_worst_case_usd
from orchestrator.money.ledger import IDLE, NEAR_S, Line, RunUsage, UsageRecord
from orchestrator.money.reservations import (
    Reservation,
    Reserved,
    Scope,
    is_off,
    is_past_deadline,
    is_start_of,
    remaining,
)
from orchestrator.money.totals import Spending
from orchestrator.results.records import CostRecord, SourceRecord
from orchestrator.results.store.store import FileStore
from orchestrator.runs.cost import outlook, rebuild, spending
from orchestrator.runs.cost.owners import book_runs, unbooked_runs, usage_of
from orchestrator.runs.job.saved_plan import SavedPlan
from tests.support.budgets import listed
from tests.support.measured_runs import measured
from tests.support.money_world import L4, World, seen
from tests.support.spending import reservation
from tests.support.stores import NOVEMBER, make_id

T = 1_800_000_000.0
VM = {"cloud_project": "p", "instance": "vm", "target": "l4", "at": T}


def of_vm(name: str, usd: float, owner: str = "run", **changes: object) -> Reservation:
    return reservation(name, usd, **{"owner": owner, **VM, **changes})  # type: ignore[arg-type]


def line(
    usd: float, activity: str = IDLE, start: float = T, seconds: float = 100.0, machine: str | None = "vm (7)"
) -> Line:
    return Line(start, seconds, usd, activity, "l4", machine=machine)


def left(reservations: list[Reservation], *lines: Line) -> dict[str, float]:
    return {one.reservation.reservation_id: one.usd for one in remaining(reservations, lines)}


# ------------------------------------------------------------------------------------------------------------- sums
def test_runs_of_several_machines_and_of_one_are_added_up() -> None:
    other = {"instance": "vm-2"}
    found = left([of_vm("a", 1.0), of_vm("b", 2.0), of_vm("c", 4.0, **other), reservation("d", 8.0, at=T)])
    assert found == {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0}


def test_what_the_sandbox_reserves_nobody_pays() -> None:
    assert left([of_vm("a", 1.0, emulated=True), of_vm("b", 2.0)]) == {"b": 2.0}


@pytest.mark.parametrize("keeping", ["up", "kept"])
def test_what_keeps_a_machine_on_and_what_runs_on_it_pay_for_the_same_hours(keeping: str) -> None:
    on = of_vm("on", 3.0, keeping)
    assert left([on, of_vm("a", 1.0), of_vm("b", 1.5)]) == {"on": 3.0, "a": 0.0, "b": 0.0}
    assert left([on, of_vm("a", 2.0), of_vm("b", 1.5)]) == {"on": 0.0, "a": 2.0, "b": 1.5}
    assert left([on, of_vm("s", 4.0, "session")]) == {"on": 0.0, "s": 4.0}
    assert left([on, of_vm("w", 4.0, "wake")]) == {"on": 0.0, "w": 4.0}
    assert left([on, of_vm("a", 2.0, instance="vm-2")]) == {"on": 3.0, "a": 2.0}, "another machine"
    assert left([on, of_vm("a", 2.0, cloud_project="q")]) == {"on": 3.0, "a": 2.0}, "of another project"


def test_two_that_keep_one_machine_on_are_two_starts_of_it() -> None:
    assert left([of_vm("on", 3.0, "up"), of_vm("again", 1.0, "kept")]) == {"on": 3.0, "again": 1.0}


# ------------------------------------------------------------------------------------------ what the ledger has of it
@pytest.mark.parametrize("owner", ["session", "up", "kept"])
def test_of_a_whole_start_all_is_spent_that_the_ledger_has_since_then(owner: str) -> None:
    one = of_vm("a", 3.0, owner)
    assert left([one], line(1.0, "bench"), line(0.5)) == {"a": 1.5}
    assert left([one], line(5.0)) == {"a": 0.0}
    assert left([one], line(1.0, start=T - 200)) == {"a": 3.0}, "before it was made"
    assert left([one], line(1.0, start=T - 75)) == {"a": 2.75}, "a quarter of it since then"
    assert left([one], line(1.0, machine="vm-2 (7)"), line(1.0, machine=None)) == {"a": 3.0}


def test_of_a_machine_that_was_started_before_it_was_kept_the_start_counts() -> None:
    one = of_vm("a", 3.0, "kept", started=T - 1000, instance_id="7")
    assert left([one], line(1.0, start=T - 900), line(1.0, start=T - 2000)) == {"a": 2.0}


@pytest.mark.parametrize("owner", ["run", "wake"])
def test_of_a_run_only_the_time_of_its_machine_is_spent_that_no_run_has(owner: str) -> None:
    """Its own lines come when it is complete, and those of others there are theirs."""
    one = of_vm("a", 3.0, owner)
    assert left([one], line(1.0, "bench"), line(0.5)) == {"a": 2.5}


def test_of_several_runs_of_one_machine_the_last_has_what_no_run_has_and_the_rest_is_of_those_before() -> None:
    first, second = of_vm("a", 1.0), of_vm("b", 2.0, at=T + 50)
    assert left([second, first], line(0.4)) == pytest.approx({"a": 0.8, "b": 1.8})
    assert left([second, first], line(1.4)) == pytest.approx({"a": 0.3, "b": 1.3})
    assert left([second, first], line(9.0)) == {"a": 0.0, "b": 0.0}


def test_none_has_what_its_machine_cost_before_it() -> None:
    """A run waits for its machine, which went off; another run turned that on and is booked; now the first has it."""
    waits, wake = of_vm("a", 0.4), of_vm("a.wake", 1.0, "wake", started=T + 1000)
    own, others, now = line(0.4), line(0.3, start=T + 500), line(0.1, start=T + 1000)
    assert left([waits, wake], own, others, now) == {"a": 0.0, "a.wake": 0.9}
    both = [of_vm("a", 0.4, started=T), of_vm("b", 0.4, started=T + 500)]
    assert left(both, line(0.3), line(0.5, start=T + 500)) == {"a": 0.0, "b": 0.0}
    assert left(both, line(0.3), line(0.3, start=T + 500)) == pytest.approx({"a": 0.1, "b": 0.1})


def test_of_two_machines_of_one_name_nobody_can_tell_whose_a_line_is() -> None:
    one, other = of_vm("a", 1.0), of_vm("b", 2.0, cloud_project="q")
    assert left([one, other], line(0.5)) == {"a": 1.0, "b": 2.0}
    assert left([one, reservation("c", 2.0, target="vm", at=T)], line(0.5)) == {"a": 0.5, "c": 2.0}


@pytest.mark.parametrize(
    ("started", "at", "newer_than", "apart", "instance", "is_of_it"),
    [
        (T, T, 0.0, 1.0, "7", True),  # a second is the cloud's rounding
        (T, T, 0.0, -1.0, "7", True),
        (T, T, 0.0, 1.5, "7", False),
        (T, T, 0.0, -1.5, "7", False),
        (T, T, 0.0, 0.0, "8", False),
        (None, T, 0.0, -NEAR_S, "8", True),
        (None, T, 0.0, -NEAR_S - 0.5, "8", False),
        (None, T, T, 1.0, "7", False),  # the start before it
        (None, T, T, 1.5, "7", True),
    ],
)
def test_which_start_a_reservation_is_for(
    started: float | None, at: float, newer_than: float, apart: float, instance: str, is_of_it: bool
) -> None:
    one = of_vm("a", 1.0, "up", started=started, at=at, newer_than=newer_than, instance_id="7" if started else "")
    assert is_start_of(one, seen(started=T + apart, instance_id=instance)) is is_of_it


@pytest.mark.parametrize(("later_s", "off"), [(0.0, False), (1.0, False), (1.5, True)])
def test_a_machine_that_was_started_again_was_off(later_s: float, off: bool) -> None:
    kept = of_vm("a", 1.0, "kept", started=T, instance_id="7")
    again = seen(project="p", started=T + later_s)
    assert is_off(kept, [again], T + 9) is off
    assert not is_off(kept.model_copy(update={"owner": "session"}), [again], T + 9)
    assert is_past_deadline(T, T + 90.5)
    assert not is_past_deadline(T, T + 90.0)
    assert not is_past_deadline(None, T + 9e9)


def test_a_line_without_time_spends_nothing() -> None:
    assert left([of_vm("a", 1.0, "up")], line(0.5, seconds=0.0)) == {"a": 1.0}


def test_the_oldest_comes_first() -> None:
    made = [of_vm("c", 1.0, at=T + 2), of_vm("b", 1.0, at=T + 1), of_vm("a", 1.0, at=T + 1), of_vm("d", 1.0, "up")]
    assert [one.reservation.reservation_id for one in remaining(made, [])] == ["d", "a", "b", "c"]


usds = st.floats(0, 50)
RESERVATIONS = st.lists(
    st.builds(
        lambda number, owner, usd, at, started, instance, project, emulated: of_vm(
            f"r{number}", usd, owner, at=T + at, started=started and T + started, instance=instance,
            cloud_project=project, emulated=emulated,
        ),
        number=st.integers(0, 10**9), owner=st.sampled_from(["run", "session", "wake", "up", "kept"]), usd=usds,
        at=st.floats(0, 900), started=st.one_of(st.none(), st.floats(-900, 900)),
        instance=st.sampled_from(["vm", "vm-2", ""]), project=st.sampled_from(["p", "q"]), emulated=st.booleans(),
    ),
    max_size=6, unique_by=lambda one: one.reservation_id,
)  # fmt: skip
LINES = st.lists(
    st.builds(
        line, usds, activity=st.sampled_from([IDLE, "bench"]), start=st.floats(T - 900, T + 900),
        seconds=st.floats(0, 900), machine=st.sampled_from(["vm (7)", "vm-2 (8)", None]),
    ),
    max_size=6,
)  # fmt: skip


@given(RESERVATIONS, LINES)
def test_never_less_than_nothing_and_never_more_than_was_reserved(made: list[Reservation], lines: list[Line]) -> None:
    found = remaining(made, lines)
    assert all(0.0 <= one.usd <= one.reservation.usd for one in found)
    assert [one.reservation for one in found] == sorted(
        (one for one in made if not one.emulated), key=lambda one: (one.at, one.reservation_id)
    ), "each once"
    more = {one.reservation.reservation_id: one.usd for one in remaining(made, [])}
    assert sum(one.usd for one in found) <= sum(more.values()) + 1e-9, "what is spent is not reserved"


@given(RESERVATIONS)
def test_without_a_ledger_each_machine_has_at_least_the_dearest_of_its_reservations(made: list[Reservation]) -> None:
    found = remaining(made, [])
    for one in made:
        if not one.emulated:
            of_it = [r.usd for r in found if r.reservation.machine == one.machine]
            assert sum(of_it) >= one.usd - 1e-9


# --------------------------------------------------------------------------------------------------------- whose money
@pytest.mark.parametrize(
    ("project", "results", "machine", "counts"),
    [
        ("ws", "/elsewhere", None, True),  # the same project, checked out twice
        ("renamed", "/ws/results", None, True),
        ("other", "/other", ("p", "vm"), True),  # on this workspace's machine
        ("other", "/other", ("p", "vm-2"), False),
        ("other", "/other", None, False),
    ],
)
def test_what_a_workspace_counts(project: str, results: str, machine: tuple[str, str] | None, counts: bool) -> None:
    scope = Scope("ws", "/ws/results", frozenset({("p", "vm")}))
    assert scope.has(project, results, machine) == counts


def test_a_damaged_run_does_not_hide_what_the_others_cost(world: World) -> None:
    damaged = world.spent(3.0)
    world.spent(2.0)
    (world.store.folder(damaged) / "run.json").write_text("{")
    assert sum(line.usd for line in spending.lines(world.services)) == 5.0, "the index knows what it cost"
    world.store.reindex()
    assert [line.usd for line in spending.lines(world.services)] == [2.0]


def test_each_cap_has_what_is_left_of_it(world: World) -> None:
    world.spent(2.0)
    assert world.left() == []
    assert world.left(per_day_usd=5) == [("day", 3.0)]
    assert world.left(per_day_usd=1, per_month_usd=6, project_usd=7) == [
        ("day", -1.0),
        ("month", 4.0),
        ("project", 5.0),
    ]


def test_a_run_counts_with_its_worst_case_until_it_is_complete(world: World) -> None:
    run = world.begun(2.0)
    world.begun(100.0, SandboxTarget(name="sandbox"))  # nobody pays
    world.store.begin(make_id(), {"plan": "of another version"})
    assert world.left(per_day_usd=5) == [("day", 3.0)]
    world.ended(run, 0.5)
    assert world.left(per_day_usd=5) == [("day", 4.5)]


def test_a_run_that_is_deleted_was_spent_all_the_same(world: World) -> None:
    run = world.begun(2.0)
    world.ended(run, 1.5)
    world.store.delete([run.run_id])
    assert world.store.rows() == []
    assert world.left(per_day_usd=5) == [("day", 3.5)]


def test_a_run_whose_machine_nobody_bills_for_reserves_nothing(world: World) -> None:
    world.begun(0.0)
    assert world.services.spending.state().open() == {}


def test_a_run_in_a_session_is_paid_by_it(world: World) -> None:
    session = {"cloud_project": "my-project", "instance": "vm", "owner_id": "there"}
    with world.services.spending.changing() as change:
        change.reserve(reservation("session", 1.25, "session", project="theirs", results="/theirs", **session))
    world.begun(1.0, session="here")
    world.begun(1.0, session="there", session_abroad=True)
    assert world.left(per_day_usd=5) == [("day", 3.75)], "on this workspace's machine, whoever began the session"


def test_a_run_that_was_planned_for_another_workspace_s_session_pays_for_itself_once_that_is_over(world: World) -> None:
    """It turns the machine on then."""
    run = world.begun(0.72, L4, session="there", session_abroad=True)
    worst = run.saved.model_copy(update={"session": None}).worst_case_usd
    assert world.reserved() == {run.run_id: worst}
    world.services.budget = listed(per_day_usd=worst + 0.01)
    with pytest.raises(BudgetError):
        world.begun(0.72, L4, session="there", session_abroad=True)


@given(st.floats(0.01, 5), st.floats(0.01, 5), st.floats(0, 0.5))
def test_a_run_that_starts_the_machine_of_another_workspace_s_session_costs_no_more_than_its_rest(
    left: float, rate: float, egress: float
) -> None:
    """The machine is off unnoticed; the cloud may stop it late again."""
    caps = [Cap(name="the rest of session there", usd=left + egress)]
    plan = wire.RunPlan("r", "j", "l4", "w", "0" * 64, [wire.StepSpec("work", "x", timeout_s=3600)])
    saved = SavedPlan(
        plan=plan, target=L4, source=SourceRecord(tree_sha256="0" * 64), usd_per_hour=rate, egress_usd=egress,
        caps=caps, session="there", session_abroad=True,
    )  # fmt: skip
    seconds = saved.fence_s
    assert seconds is not None
    assert seconds == 0 or fenced_worst_case_usd(seconds, rate) + egress <= left + egress + 1e-9
    if saved.worst_case_usd <= left + egress:  # else the run is refused
        assert seconds >= saved.worst_case_minutes * 60, "and its steps have their time"


def test_what_could_break_a_cap_is_refused_and_what_fits_exactly_is_not(world: World) -> None:
    world.spent(2.0)
    run = world.begun(1.0)
    spending.check_caps(world.services, listed(per_day_usd=5), 2.0)
    spending.check_caps(world.services, listed(per_day_usd=1), 0.0)  # it costs nothing
    spending.check_caps(world.services, listed(), 1000.0)
    with pytest.raises(
        BudgetError, match=r"may cost \$2\.01, but only \$2\.00 of the day's cap of \$5\.00 are left"
    ) as refused:
        spending.check_caps(world.services, listed(per_day_usd=5), 2.01)
    assert refused.value.cause == (f"$2.00 spent (fcctl cost ledger --by day), $1.00 reserved for {run.run_id}")
    assert refused.value.hint is not None
    assert refused.value.hint.endswith("raise [budget] per_day_usd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spending, "account_of", None)  # what costs nothing, or has no cap, reads no book
        spending.check_caps(world.services, listed(per_day_usd=1), 0.0)
        spending.check_caps(world.services, listed(), 1.0)
    with pytest.raises(BudgetError, match=r"\$0\.00 of the month's cap of \$2\.50"):
        spending.check_caps(world.services, listed(per_month_usd=2.5), 1.0)
    with pytest.raises(BudgetError, match="of the project's"):
        spending.check_caps(world.services, listed(per_month_usd=9, project_usd=3.5), 1.0)


@pytest.mark.parametrize(
    ("usd", "also"),
    [
        ([], ""),
        ([0.004], ""),
        ([0.005], ", $0.005 reserved for r0"),
        ([1, 1], ", $2.00 reserved for r0, r1"),
        ([1, 0, 1], ", $2.00 reserved for r0, r2"),
        ([1, 1, 1], ", $3.00 reserved for r0, r1 and 1 more"),
        ([1, 1, 1, 1], ", $4.00 reserved for r0, r1 and 2 more"),
    ],
)
def test_of_what_is_reserved_two_are_named_and_none_that_keeps_nothing(usd: list[float], also: str) -> None:
    reserved = [Reserved(reservation(f"r{number}"), one) for number, one in enumerate(usd)]
    balance = spending.CapBalance(Spending(1.0, 3.0, 3.0), reserved, listed(per_month_usd=9))
    free = 9 - 3 - sum(usd)
    assert balance.left() == [("month", free)]
    balance.refuse(free)
    with pytest.raises(BudgetError) as refused:
        balance.refuse(free + 0.01)
    assert refused.value.cause == f"$3.00 spent (fcctl cost ledger --by month){also}"


def test_a_start_that_the_caps_refuse_is_reserved_and_begun_nowhere(world: World) -> None:
    world.services.budget = listed(per_month_usd=1.5)
    world.begun(1.0)
    with pytest.raises(BudgetError, match=r"\$0\.50 of the month's"):
        world.begun(0.6)
    assert len(world.store.active()) == 1
    assert [one.usd for one in world.services.spending.state().open().values()] == [1.0]


def test_of_a_start_that_is_interrupted_nothing_stays_reserved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes when the reservation is in the book, and before that is known."""
    kept = world.begun(1.0)

    def interrupted(*_: object) -> NoReturn:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(books, "sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.begun(2.0)
    assert list(world.reserved()) == world.store.active() == [kept.run_id]


def test_what_a_run_itself_cost_is_none_of_what_the_others_did(world: World) -> None:
    mine = world.spent(3.0)
    world.spent(2.0)
    spent = spending.spent_without(world.services, mine)
    assert (spent.day, spent.month, spent.project) == (2.0, 2.0, 2.0)


def test_a_machine_that_was_on_when_it_was_seen_counts_until_now_where_that_is_asked(world: World) -> None:
    world.book.add_usage(seen(seen=NOVEMBER + 600))
    world.now = NOVEMBER + 3600
    assert sum(line.seconds for line in spending.lines(world.services)) == 600
    assert sum(line.seconds for line in spending.lines(world.services, until_now=True)) == 3600
    assert spending.spent_without(world.services, "r").project == pytest.approx(0.72)


def test_one_process_sends_a_notice_and_the_next_one_what_failed(world: World) -> None:
    keys = ["ws: 80 % of $5", "ws: 50 % of $5"]
    assert [outlook._claim(world.services, keys) for _ in range(2)] == [True, False]
    with world.book.changing() as change:
        change.add("notice", {"key": keys[0], "state": "failed", "at": 1.0})
    assert [outlook._claim(world.services, keys[:1]) for _ in range(2)] == [True, False]
    assert not outlook._claim(world.services, keys[1:]), "the smaller part was passed over"


def test_no_run_is_opened_to_sum_costs(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of costs took longer with each run: the index has what the ledger needs of those that cost something."""
    priced = CostRecord(usd=0.5, usd_per_hour=1.0, billed_s=1800)
    for i, cost in enumerate((CostRecord(), priced.model_copy(update={"emulated": True}), priced)):
        run_id = measured(store, [], at=60 * i, cost=cost)
    expected = usage_of(store.get(run_id))
    monkeypatch.setattr(store, "get", None)
    world = SimpleNamespace(store=store, spending=SimpleNamespace(state=lambda: SimpleNamespace(runs=dict)))
    assert list(unbooked_runs(world)) == [expected]  # type: ignore[arg-type]


def test_a_figure_of_a_host_that_is_no_number_does_not_end_the_sums(world: World) -> None:
    path = world.store.folder(world.spent(3.0)) / "run.json"
    record = json.loads(path.read_bytes())
    record["cost"]["breakdown"] = [{"activity": "run", "seconds": math.inf, "usd": math.nan}]
    path.write_text(json.dumps(record))
    world.store.reindex()
    assert len(list(unbooked_runs(world.services))) == 1


def test_a_record_of_the_book_is_validated_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums read the runs' costs twice, and a book may have a hundred thousand."""
    world.spent(1.0)
    book_runs(world.services)
    spending.lines(world.services)
    validated: list[object] = []
    check = RunUsage.model_validate
    monkeypatch.setattr(RunUsage, "model_validate", lambda data: validated.append(data) or check(data))
    world.spent(2.0)
    book_runs(world.services)
    assert sum(line.usd for line in spending.lines(world.services)) == 3.0
    assert len(validated) == 1, "only what is new"


def test_the_stop_of_an_earlier_start_neither_ends_a_reservation_nor_holds_it_for_ever() -> None:
    earlier = UsageRecord(
        project="p", zone="z", name="vm", instance_id="7", target="l4", usd_per_hour=0.7, started=T - 100,
        stopped=T - 50, seen=T - 50,
    )  # fmt: skip
    never_started = of_vm("up-1-l4", 1.0, "up", newer_than=T - 100)
    assert not is_off(never_started, [earlier], T + 1000)
    assert rebuild._is_lost(None, never_started, [earlier], T + 1000)  # type: ignore[arg-type]
