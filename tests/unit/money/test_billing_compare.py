"""The ledger beside Google's lines, by machine and day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.base.errors import UsageError
from orchestrator.money.billing import compare as billing_compare
from orchestrator.money.billing.compare import Comparison, Ours, compare
from orchestrator.money.billing.export import BillingLine
from orchestrator.money.ledger import Line

HOUR = 3600.0


def at(day: int, hour: float = 0) -> float:
    return datetime(2026, 11, day, tzinfo=UTC).timestamp() + hour * HOUR


def ours(day: int, hour: float, hours: float, usd: float, machine: str | None = "vm (42)", **more: Any) -> Line:
    return Line(at(day, hour), hours * HOUR, usd, "bench", "l4", machine=machine, **more)


def google(day: int, hour: float, usd: float, name: str = "vm", number: str = "42", **more: Any) -> BillingLine:
    values = {"kind": "machine", "credits_usd": 0.0, "hours": 1.0, "labels": {}, **more}
    hours = values.pop("hours")
    return BillingLine(
        at(day, hour), at(day, hour) + hours * HOUR, usd, name=name, resource_id=number, **{"project": "p", **values}
    )


def compared(
    export: Sequence[BillingLine], ledger: Sequence[Line], machines: Sequence[str] = (), tolerance: float = 5.0
) -> Comparison:
    return compare(export, ledger, Ours(frozenset(machines), frozenset({"p"}), "flashcore"), tolerance)


#: A line of something else, by which the file covers the days from the 20th to the 22nd.
COVER = (google(20, 0, 1.0, "other", "1"), google(22, 23, 1.0, "other", "1"))


def test_both_sides_of_each_machine_and_day() -> None:
    """23:00 to 02:00 of UTC is two days here; in California it is one. Google's lines are of an hour and a part."""
    lines = [google(20, 23, 0.40), google(20, 23, 0.31), google(21, 0, 0.71), google(21, 1, 0.71), *COVER]
    found = compared(lines, [ours(20, 23, 3, 2.1)])
    assert [(row.day, row.ours_usd, row.google_usd) for row in found.rows] == [
        ("2026-11-20", pytest.approx(0.7), pytest.approx(0.71)),
        ("2026-11-21", pytest.approx(1.4), pytest.approx(1.42)),
    ]
    (thing,) = found.things
    assert thing.thing == ("machine", "vm", "42")
    assert thing.difference_usd == pytest.approx(-0.03)
    assert not found.differing
    assert (found.other_lines, found.other_usd) == (2, 2.0)


def test_a_line_across_midnight_is_cut_there() -> None:
    found = compared([google(20, 22, 1.0, hours=8), *COVER], [ours(20, 22, 8, 1.0)])
    assert [(row.day, row.google_usd) for row in found.rows] == [("2026-11-20", 0.25), ("2026-11-21", 0.75)]
    assert not found.differing


def test_what_only_one_side_has() -> None:
    lines = [google(20, 1, 0.9, "forgotten", "7"), *COVER]
    found = compared(lines, [ours(21, 1, 1, 0.8)], machines=["forgotten"])
    assert [(row.thing[1], row.ours_usd, row.google_usd) for row in found.things] == [
        ("forgotten", None, 0.9), ("vm", 0.8, None),
    ]  # fmt: skip
    assert [row.thing[1] for row in found.differing] == ["forgotten", "vm"]


@pytest.mark.parametrize(
    ("ledger_usd", "google_usd", "tolerance", "differs"),
    [(10.0, 10.5, 5.0, False), (10.0, 10.6, 5.0, True), (10.6, 10.0, 5.0, True), (0.01, 0.06, 5.0, False),
     (0.01, 0.07, 5.0, True), (10.0, 10.06, 0.0, True), (10.0, 10.04, 0.0, False), (10.0, 10.9, 10.0, False)],
)  # fmt: skip
def test_the_tolerance_is_of_one_thing_over_all_days(
    ledger_usd: float, google_usd: float, tolerance: float, differs: bool
) -> None:
    found = compared([google(20, 1, google_usd), *COVER], [ours(21, 1, 1, ledger_usd)], tolerance=tolerance)
    assert bool(found.differing) is differs


def test_two_differences_do_not_make_up_for_each_other() -> None:
    lines = [google(20, 1, 2.0), google(20, 1, 1.0, "b", "43"), *COVER]
    found = compared(lines, [ours(20, 1, 1, 1.0), ours(20, 1, 1, 2.0, "b (43)")])
    assert found.ours_usd == found.google_usd == 3.0
    assert len(found.differing) == 2


def test_the_ledger_counts_as_far_as_the_file_goes() -> None:
    lines = [google(20, 10, 0.7), google(20, 11, 0.7)]
    ledger = [ours(20, 8, 4, 2.8), ours(19, 0, 1, 9.0), ours(21, 0, 1, 9.0)]
    found = compared(lines, ledger)
    assert (found.since, found.until) == (at(20, 10), at(20, 12))
    assert found.ours_usd == pytest.approx(1.4)


def test_a_fee_of_a_month_does_not_tell_which_days_the_file_covers() -> None:
    found = compared([google(20, 10, 0.7), google(1, 0, 9.0, "other", hours=29 * 24)], [ours(20, 10, 1, 0.7)])
    assert (found.since, found.until) == (at(20, 10), at(20, 11))
    with pytest.raises(UsageError, match="covers no time"):
        compared([google(1, 0, 9.0, "other", hours=29 * 24)], [])
    with pytest.raises(UsageError, match="none of its 0 lines"):
        compared([], [])


def test_credits_stand_beside_and_are_not_taken_off() -> None:
    found = compared([google(20, 1, 0.7, credits_usd=-0.7), *COVER], [ours(20, 1, 1, 0.7)])
    assert (found.credits_usd, found.google_usd, found.differing) == (-0.7, 0.7, [])


@pytest.mark.parametrize(
    ("labels", "ours_too"),
    [({"fcctl": "yes", "fcctl-workspace": "flashcore"}, True), ({"fcctl": "yes", "fcctl-workspace": "x"}, False),
     ({"fcctl": "yes"}, False), ({}, False)],
)  # fmt: skip
def test_a_machine_that_only_its_labels_name(labels: dict[str, str], ours_too: bool) -> None:
    found = compared([google(20, 1, 0.7, "renamed", "9", labels=labels), *COVER], [])
    assert ([row.thing[1] for row in found.things] == ["renamed"]) is ours_too
    assert found.other_lines == 2 + (not ours_too)


@pytest.mark.parametrize(("project", "ours_too"), [("p", True), ("", True), ("another-team", False)])
def test_a_machine_of_our_name_in_another_project_is_not_ours(project: str, ours_too: bool) -> None:
    found = compared([google(20, 1, 0.7, project=project), *COVER], [ours(20, 1, 1, 0.7)])
    assert [row.google_usd for row in found.things] == [0.7 if ours_too else None]


def test_two_machines_of_one_name_are_apart_by_number_and_one_without() -> None:
    ledger = [ours(20, 1, 1, 1.0), ours(20, 3, 1, 2.0, "vm (43)")]
    apart = compared([google(20, 1, 1.0), google(20, 3, 2.0, number="43"), *COVER], ledger)
    assert [(row.thing[2], row.ours_usd) for row in apart.things] == [("42", 1.0), ("43", 2.0)]
    as_one = compared([google(20, 1, 1.0, number=""), google(20, 3, 2.0, number=""), *COVER], ledger)
    assert [(row.thing[2], row.ours_usd, row.google_usd) for row in as_one.things] == [("", 3.0, 3.0)]
    only = compared([google(20, 1, 1.0, number=""), *COVER], ledger[:1])
    assert [row.thing for row in only.things] == [("machine", "vm", "42")]


def test_disks_snapshots_and_what_a_machine_sends() -> None:
    ledger = [
        ours(20, 0, 24, 0.33, None, what="disk vm (100 GiB pd-balanced) in us-west1-c"),
        ours(20, 0, 24, 0.10, None, what="snapshot vm-1 (8 GiB) in us"),
        ours(20, 0, 1, 0.7),
    ]
    lines = [
        google(20, 0, 0.33, number="5", kind="disk", hours=24), google(20, 0, 0.10, "vm-1", kind="snapshot", hours=24),
        google(20, 0, 0.7), google(20, 0, 1.2, kind="network"), *COVER,
    ]  # fmt: skip
    found = compared(lines, ledger)
    assert [(row.thing[0], row.ours_usd, row.google_usd) for row in found.things] == [
        ("disk", pytest.approx(0.33), 0.33), ("machine", 0.7, 0.7), ("network", None, 1.2),
        ("snapshot", pytest.approx(0.10), 0.10),
    ]  # fmt: skip
    assert [row.thing[0] for row in found.differing] == ["network"]


def test_what_is_emulated_or_in_no_cloud_is_not_compared() -> None:
    ledger = [ours(20, 1, 1, 5.0, emulated=True), ours(20, 1, 1, 3.0, None), ours(20, 1, 1, 0.7)]
    found = compared([google(20, 1, 0.7), *COVER], ledger)
    assert (found.ours_usd, found.elsewhere_usd) == (0.7, 3.0)


def test_a_file_of_endless_days_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing_compare, "_MOST_CELLS", 10)
    with pytest.raises(UsageError, match="more than 10 pairs of"):
        compared([google(day, 0, 0.1) for day in range(1, 28)], [ours(20, 1, 1, 1.0)])
