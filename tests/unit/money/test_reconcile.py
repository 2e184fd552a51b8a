"""The ledger against the cloud's list of what was done to its machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.machines.cloud import Machine, Operation, Refusal, Remedy
from orchestrator.machines.power_history import PowerInterval, deleted_at, disk_deleted_at, last_of, off_at, times_on
from orchestrator.money import ledger as books
from orchestrator.money.audit import account, bounds, closings, corrections
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.totals import remarks

T = 1_800_000_000.0


def op(kind: str, at: float, target_id: str = "7", **changes: Any) -> Operation:
    values: dict[str, Any] = {"started": T + at - 5, "finished": T + at, "target_id": target_id}
    return Operation(f"op-{at}", "us-west1-c", kind, "vm", "DONE", **{**values, **changes})


def word(started: float = 0.0, stopped: float | None = None, **changes: Any) -> UsageRecord:
    values = {
        "project": "p", "zone": "us-west1-c", "name": "vm", "instance_id": "7", "target": "l4", "usd_per_hour": 0.72,
        "started": T + started, "stopped": None if stopped is None else T + stopped, "seen": T + started + 1,
    }  # fmt: skip
    return UsageRecord.model_validate({**values, **changes})


HISTORY = [
    op("delete", 9000), op("stop", 4000), op("setLabels", 3500), op("compute.instances.guestTerminate", 3000),
    op("start", 2000, user="me@example.com"), op("stop", 600), op("insert", 10),
]  # fmt: skip


def test_times_on_as_the_list_has_them() -> None:
    assert times_on(HISTORY, "7") == [
        PowerInterval(T + 10, T + 600),
        PowerInterval(T + 2000, T + 3000, "me@example.com"),
    ]
    assert times_on(HISTORY, "8") == []
    assert off_at(HISTORY, "7", T + 2000) == T + 3000, "what was done to one that is off does not count"
    assert deleted_at(HISTORY, "7") == T + 9000
    assert deleted_at(HISTORY, "8") is None
    assert last_of(HISTORY, T + 1990) == "7"
    assert last_of(HISTORY, T + 2001) is None


def test_what_failed_or_was_done_to_a_disk_of_the_same_name_does_not_count() -> None:
    refused = op("delete", 50, refusal=Refusal("x", "no", Remedy.FATAL))
    of_disk = op("delete", 60, "99", collection="disks")
    assert times_on([of_disk, refused, op("insert", 10)], "7") == [PowerInterval(T + 10, None)]
    assert deleted_at([of_disk, refused], "7") is None
    assert disk_deleted_at([of_disk, refused], "vm", T) == T + 60


def test_the_machine_s_own_word_on_its_last_start_is_stronger() -> None:
    never_ran = Machine("p", "us-west1-c", "vm", "7", "TERMINATED", started=T + 8, stopped=T + 9000)
    assert times_on([op("stop", 600), op("insert", 10)], "7", never_ran) == [PowerInterval(T + 8, T + 600)]
    seen = Machine("p", "us-west1-c", "vm", "7", "TERMINATED", started=T + 8, stopped=T + 590)
    assert times_on([op("stop", 600), op("insert", 10)], "7", seen) == [PowerInterval(T + 8, T + 590)]
    on = Machine("p", "us-west1-c", "vm", "7", "RUNNING", started=T + 9500, stopped=T + 9000)
    assert times_on(HISTORY, "7", on)[-1] == PowerInterval(T + 9500, None)


def test_a_deletion_that_nobody_saw_ends_what_was_on() -> None:
    (end,) = closings([word(10)], HISTORY, T + 20_000)
    assert (end.stopped, end.bound) == (T + 600, False)
    assert closings([word(10), word(10, 590)], HISTORY, T + 20_000) == []


def test_what_nobody_saw_is_added_and_what_was_before_the_ledger_is_not() -> None:
    known = [word(10, 600)]
    (new,) = corrections(known, times_on(HISTORY, "7"), known[0], T + 20_000)
    assert (new.started, new.stopped, new.user) == (T + 2000, T + 3000, "me@example.com")
    assert corrections([*known, new], times_on(HISTORY, "7"), known[0], T + 20_000) == []
    assert corrections([new], times_on(HISTORY, "7"), new, T + 20_000) == []


@pytest.mark.parametrize(("apart", "news"), [(60, False), (-60, False), (61, True), (-61, True)])
def test_a_stop_that_was_seen_a_minute_off_is_the_same(apart: float, news: bool) -> None:
    found = corrections([word(10, 600 + apart)], [PowerInterval(T + 10, T + 600)], word(10), T + 20_000)
    assert [one.stopped for one in found] == ([T + 600] if news else [])
    bound = word(10, 600 + apart, bound=True)
    assert [one.bound for one in corrections([bound], [PowerInterval(T + 10, T + 600)], bound, T + 20_000)] == [False]
    assert corrections([word(10, 600 + apart)], [PowerInterval(T + 10, None)], word(10), T + 20_000) == []


def test_starts_that_are_close_to_each_other_are_not_taken_for_one() -> None:
    history = [op("stop", 1800), op("start", 62), op("stop", 50), op("insert", 10)]
    known = [word(9, 51)]
    (new,) = corrections(known, times_on(history, "7"), known[0], T + 9000)
    assert (new.started, new.stopped) == (T + 62, T + 1800)
    seen = Machine("p", "us-west1-c", "vm", "7", "TERMINATED", started=T + 61, stopped=T + 1799)
    assert times_on(history, "7", seen) == [PowerInterval(T + 10, T + 50), PowerInterval(T + 61, T + 1799)]


def test_without_any_word_the_limit_is_the_bound_and_a_word_is_stronger() -> None:
    (latest,) = bounds([word(10, fence=T + 3610)], T + 90_000)
    assert (latest.stopped, latest.bound) == (T + 3640, True)
    (unlimited,) = bounds([word(10)], T + 90_000)
    assert unlimited.stopped == T + 90_000
    told = closings([word(10), latest], HISTORY, T + 99_000)
    (span,) = books.spans([word(10), latest, *told])
    assert (span.until, span.bound) == (T + 600, False)
    lines = books.ledger([], [word(10), latest])
    assert [(line.sure, line.seconds) for line in lines] == [("upper_bound", 3630)]
    assert remarks(lines)[0].why == books.BOUND


def test_a_machine_without_a_price_is_said() -> None:
    (line,) = books.ledger([], [word(0, 600, usd_per_hour=None)])
    assert (line.sure, line.usd) == ("unpriced", 0.0)


def test_an_account_shows_what_differs_and_for_whom_it_was() -> None:
    before = books.ledger([], [word(10, 300)])
    after_words = [word(10, 300), word(10, 600, seen=T + 9000), word(2000, 3000, user="me")]
    after = books.ledger([], after_words)
    found = account(after_words[0], True, books.spans(after_words), before, after)
    assert (found.cloud_s, found.ledger_s, found.difference_s) == (1590, 290, -1300)
    assert found.difference_usd == pytest.approx(-1300 / 3600 * 0.72, abs=1e-5)
    assert [time.span.user for time in found.times if time.for_nobody] == ["", "me"]
    assert not found.agrees
    assert account(after_words[0], True, books.spans(after_words), after, after).agrees
    others = [replace(line, machine=name) for line in before for name in ("a vm (1)", "zz (1)")]
    others += [replace(line, what="external address") for line in before]
    assert account(after_words[0], True, books.spans(after_words), [*others, *before], [*others, *after]) == found


@pytest.mark.parametrize(("apart_s", "agrees"), [(0.9, True), (-0.9, True), (1.0, False), (-1.0, False)])
def test_less_than_a_second_is_no_difference(apart_s: float, agrees: bool) -> None:
    on = [word(0, 300)]
    lines = books.ledger([], [word(0, 300 + apart_s)])
    found = account(on[0], True, books.spans(on), lines, lines)
    assert found.agrees is agrees
    claims = [replace(line, beyond_s=apart_s) for line in books.ledger([], on)]
    assert account(on[0], True, books.spans(on), claims, claims).agrees is agrees
