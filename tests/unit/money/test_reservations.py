"""What of reservations may still be spent beyond what the ledger has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.money.ledger import IDLE, Line
from orchestrator.money.reservations import Reservation, Scope, remaining
from tests.support.spending import reservation

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


def test_of_several_runs_of_one_machine_the_first_has_what_no_run_has() -> None:
    first, second = of_vm("a", 1.0), of_vm("b", 2.0, at=T + 10)
    assert left([second, first], line(0.4)) == {"a": 0.6, "b": 2.0}
    assert left([second, first], line(1.4)) == {"a": 0.0, "b": pytest.approx(1.6)}
    assert left([second, first], line(9.0)) == {"a": 0.0, "b": 0.0}


def test_of_two_machines_of_one_name_nobody_can_tell_whose_a_line_is() -> None:
    one, other = of_vm("a", 1.0), of_vm("b", 2.0, cloud_project="q")
    assert left([one, other], line(0.5)) == {"a": 1.0, "b": 2.0}
    assert left([one, reservation("c", 2.0, target="vm", at=T)], line(0.5)) == {"a": 0.5, "c": 2.0}


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
