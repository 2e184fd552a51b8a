"""A cap holds whatever happens: the arithmetic of ``--stop-at-budget``, as properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fcctl_remote import wire
from orchestrator.base.errors import BudgetError
from orchestrator.base.journal import JournalEntry
from orchestrator.machines.targets import GcpTarget, SshTarget, Target
from orchestrator.money import caps as guard
from orchestrator.money.caps import (
    FENCE_LATENESS_S,
    MINIMUM_BILLED_S,
    Cap,
    fence_within,
    fenced_worst_case_usd,
    judge,
    last_change,
    reserve_s,
    stop_by,
)
from orchestrator.results.records import SourceRecord
from orchestrator.runs.cost.budget_guard import refuse_useless
from orchestrator.runs.job.saved_plan import SavedPlan

T = 1_800_000_000.0
usds = st.floats(0.01, 500)
rates = st.floats(0.01, 40)


def planned(target: Target, minutes: float, rate: float, stop_at: float | None) -> SavedPlan:
    steps = [wire.StepSpec("work", "x", timeout_s=minutes * 60)]
    plan = wire.RunPlan("20261121t081530z-j-t-3fa9c1", "j", "t", "w", "0" * 64, steps)
    return SavedPlan(
        plan=plan, target=target, source=SourceRecord(tree_sha256="0" * 64), usd_per_hour=rate, stop_at_usd=stop_at
    )


GCP = GcpTarget(name="l4", project="test-project", instance="vm", zones=["us-west1-c"])


@given(usds, rates)
def test_a_start_within_a_cap_costs_no_more_than_it(usd: float, rate: float) -> None:
    fence = guard.fence_within(usd, rate)
    if fence > 0:
        assert fenced_worst_case_usd(fence, rate) <= usd
        assert fenced_worst_case_usd(fence + 1, rate) > usd * (1 - 1e-6), "and no second is given away"
    else:
        assert fenced_worst_case_usd(1, rate) > usd * (1 - 1e-6)


@given(usds, rates, st.floats(1, 10_000))
def test_a_run_that_stops_at_its_budget_is_held_to_it(usd: float, rate: float, minutes: float) -> None:
    saved = planned(GCP, minutes, rate, usd)
    assert saved.fence_s is not None
    if guard.fence_within(usd, rate) > 0:
        assert saved.worst_case_usd <= usd
    assert saved.fence_s <= GCP.max_run_minutes * 60
    assert saved.worst_case_minutes * 60 <= saved.fence_s
    there = planned(SshTarget(name="box", host="h"), minutes, rate, usd)
    assert there.worst_case_usd <= usd


@given(usds, rates, st.floats(0, 2e9), st.one_of(st.none(), st.floats(0, 1e5)))
def test_the_host_ends_it_so_early_that_the_ending_fits(
    usd: float, rate: float, began: float, lives_s: float | None
) -> None:
    until = guard.stop_by(usd, rate, began, None if lives_s is None else began + lives_s)
    seconds = until - began
    assert seconds <= guard.seconds_within(usd, rate)
    whole = guard.fence_within(usd, rate) if lives_s is None else min(guard.fence_within(usd, rate), lives_s)
    assert seconds + guard.reserve_s(whole) <= whole + 1e-3
    assert guard.reserve_s(whole) <= guard.RESERVE_S


@given(usds, rates, st.floats(0.1, 5), st.floats(0.01, 1))
def test_however_the_controller_looks_it_says_stop_before_the_cap(
    usd: float, rate: float, every_s: float, phase: float
) -> None:
    """At the first look at or after the threshold, the cap is not reached yet if looks are close enough."""
    cap = Cap(name="--budget", usd=usd)
    whole = guard.seconds_within(usd, rate)
    every = min(every_s, guard.reserve_s(whole) / 2)
    threshold = whole - guard.reserve_s(whole)
    first_look = (math.floor(threshold / every) + 1 + phase) * every
    spent = first_look / 3600 * rate
    assert judge(cap, spent, rate, strictly=True) == "stop"
    assert spent <= usd + 1e-9


def test_the_warning_comes_at_eighty_percent_and_a_cap_that_fits_is_not_cut_short() -> None:
    cap = Cap(name="--budget", usd=1.0)
    assert judge(cap, 0.79, 0.6, strictly=True) == "fine"
    assert judge(cap, 0.80, 0.6, strictly=True) == "warn"
    assert judge(cap, 0.98, 0.6, strictly=True) == "stop"
    assert judge(cap, 0.98, 0.6, strictly=False) == "warn"
    assert judge(cap, 1.0, 0.6, strictly=False) == "stop"


def test_without_a_budget_to_stop_at_nothing_changes() -> None:
    saved = planned(GCP, 30, 0.71, None)
    assert saved.fence_s == 600 + 30 * 60 + 900
    assert saved.worst_case_minutes == 30
    assert planned(GCP, 30, 0.71, 99.0).fence_s == saved.fence_s, "a cap that is far away takes nothing away"


def test_a_budget_that_buys_too_little_to_begin_with_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"\$0\.00 pays for 0 seconds of l4") as refused:
        refuse_useless(planned(GCP, 30, 0.72, 0.0), guard.LEAST_S)
    assert "$0.72 an hour" in (refused.value.cause or "")
    whole = fenced_worst_case_usd(guard.LEAST_S, 0.72)
    with pytest.raises(BudgetError, match="pays for 119 seconds"):
        refuse_useless(planned(GCP, 30, 0.72, whole - 0.0001), guard.LEAST_S)
    refuse_useless(planned(GCP, 30, 0.72, whole + 0.0001), guard.LEAST_S)
    there = SshTarget(name="box", host="h")
    with pytest.raises(BudgetError, match=r"\$0\.0001 pays for 0 seconds of box"):
        refuse_useless(planned(there, 30, 0.72, 0.0001), 1.0)
    refuse_useless(planned(there, 30, 0.72, 0.01), 1.0)
    with pytest.raises(BudgetError, match="pays for 45 seconds of box"):
        refuse_useless(planned(there, 30, 0.72, 0.01), 50.5)


@pytest.mark.parametrize(
    ("usd", "text"), [(0.01, "$0.01"), (0.0099, "$0.0099"), (0.0, "$0.00"), (-0.001, "$-0.00"), (2.5, "$2.50")]
)
def test_of_less_than_a_cent_it_is_said_how_much(usd: float, text: str) -> None:
    assert guard.dollars(usd) == text


@pytest.mark.parametrize(("usd", "allowed"), [(0.5, True), (1_000_000, True), (0, False), (1_000_001, False)])
def test_a_cap_is_some_dollars(usd: float, allowed: bool) -> None:
    caps = {name: usd for name in guard.Budget.model_fields if name.endswith("_usd")}
    assert len(caps) == 5
    for name, value in caps.items():
        if allowed:
            assert getattr(guard.Budget.model_validate({name: value}), name) == usd
        else:
            with pytest.raises(ValidationError):
                guard.Budget.model_validate({name: value})
    assert guard.Budget(usd_per_hour=0).usd_per_hour == 0
    with pytest.raises(ValidationError):
        guard.Budget(usd_per_hour=-0.5)


def test_debts_buy_nothing() -> None:
    assert guard.seconds_within(-5.0, 1.0) == guard.seconds_within(0.0, 1.0) == 0.0
    assert guard.seconds_within(2.0, 4.0) == 1800.0
    assert (guard.LEAST_S, guard.RESERVE_S, reserve_s(100.0), reserve_s(9000.0)) == (120.0, 180.0, 10.0, 180.0)


def test_a_free_machine_is_never_ended() -> None:
    assert guard.stop_by(1.0, 0.0, 5.0) is None
    assert math.isinf(guard.fence_within(1.0, 0.0))


def entry(kind: str, time: float, **data: object) -> JournalEntry:
    return JournalEntry(seq=1, time=time, kind=kind, data=data)


def test_since_when_it_costs() -> None:
    woken = [entry("acquire", 1), entry("cloud", 2, action="fence"), entry("cloud", 3, action="start"),
             entry("acquired", 9), entry("submitted", 12)]  # fmt: skip
    assert guard.began_to_cost(woken, machine=True) == woken[2]
    assert guard.began_to_cost([woken[0], woken[3]], machine=True) == woken[3]
    assert guard.began_to_cost([*woken, entry("acquire", 20)], machine=True) is None
    assert guard.began_to_cost(woken, machine=False) == woken[4]


@pytest.mark.parametrize("usd", [0.001, 0.0197])
def test_what_buys_no_start_buys_none(usd: float) -> None:
    assert guard.fence_within(usd, 0.72) <= max(0.0, usd / 0.72 * 3600 - FENCE_LATENESS_S - MINIMUM_BILLED_S)


@pytest.mark.parametrize(
    ("usd", "rate", "deadline", "until"),
    [
        (5.0, 0.0, None, None),  # nothing costs, and nothing ends it
        (5.0, 0.0, T + 1000, T + 1000),
        (0.72, 0.72, None, T + fence_within(0.72, 0.72)),
        (0.72, 0.72, T + 1000, T + 1000),
        (0.72, 0.72, T + 90_000, T + fence_within(0.72, 0.72)),
    ],
)
def test_when_a_run_must_end_to_stay_within_its_dollars(
    usd: float, rate: float, deadline: float | None, until: float | None
) -> None:
    found = stop_by(usd, rate, T, deadline)
    assert found == (None if until is None else pytest.approx(until - reserve_s(until - T)))


@pytest.mark.parametrize("usd", [0.5, 1.0, 20.0])
@pytest.mark.parametrize(("part", "verdict"), [(0.79, "fine"), (0.8, "warn"), (0.99, "warn"), (1.0, "stop")])
def test_of_a_cap_four_fifths_warn_and_all_stops(usd: float, part: float, verdict: str) -> None:
    assert judge(Cap(name="x", usd=usd), part * usd, 0.72, strictly=False) == verdict


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ([], None),
        (["acquire", "begun"], "acquire"),
        (["acquire", "cloud start"], "cloud start"),
        (["acquired", "cloud stop", "stepped"], "acquired"),
        (["acquired", "stopped", "ended"], "stopped"),
        (["acquired", "released", "collected"], "released"),
        (["acquired", "unreleased", "complete"], "unreleased"),
    ],
)
def test_which_line_says_whether_the_machine_is_on(lines: list[str], last: str | None) -> None:
    entries = []
    for number, (kind, _, action) in enumerate(text.partition(" ") for text in lines):
        entries.append(JournalEntry(seq=number, time=T, kind=kind, data={"action": action} if action else {}))
    found = last_change(entries)
    assert (None if found is None else lines[found.seq]) == last
