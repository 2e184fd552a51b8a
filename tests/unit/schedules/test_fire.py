"""A tick decides and launches; a firing runs its job and records its end."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.base.errors import DiskError
from orchestrator.money.book import SpendingBook
from orchestrator.money.caps import Budget
from orchestrator.money.firings import FIRING, end, firing_id, spent_in_month, start
from orchestrator.schedules import fire
from orchestrator.schedules.due import Firing, Schedule
from orchestrator.schedules.fire import STARTING_S, FiringRecords, Scheduler
from tests.support.spending import book_in

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC).timestamp()


class Clock:
    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    monotonic = elapsed = now

    def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


def schedule(**values: Any) -> Schedule:
    return Schedule.model_validate({"job": "bench", "cron": "0 * * * *", "timezone": "UTC", **values})


PLAN = schedule()
#: What a tick so long after noon decides, which must be what is recorded, and what it launches.
Ticked = Callable[..., tuple[list[str], list[float]]]


def line(outcome: str, due: float = NOON, at: float = NOON, **values: Any) -> Firing:
    return Firing.model_validate({"outcome": outcome, "due": due, "at": at, "key": PLAN.key, **values})


@pytest.fixture
def records(tmp_path: Path) -> FiringRecords:
    return FiringRecords(tmp_path)


@pytest.fixture
def spending(tmp_path: Path) -> SpendingBook:
    return book_in(tmp_path / "state")


@pytest.fixture
def ticked(records: FiringRecords, spending: SpendingBook) -> Ticked:
    def ticked(after: float, plan: Schedule = PLAN, **caps: Any) -> tuple[list[str], list[float]]:
        launched: list[float] = []
        before = len(records.read("often"))
        clock, budget = Clock(NOON + after), Budget(**caps)
        schedules = Scheduler({"often": plan}, records, spending, budget, clock)
        decided = schedules.tick(lambda _, firing: launched.append(firing.due))
        assert [firing for _, firing in decided] == records.read("often")[before:]
        return [firing.outcome for _, firing in decided], launched

    return ticked


def test_only_what_starts_is_launched(ticked: Ticked, spending: SpendingBook) -> None:
    assert ticked(0) == (["watching"], [])
    assert ticked(3599) == ([], [])
    assert ticked(3600) == (["started"], [NOON + 3600])
    assert ticked(3600) == ([], [])
    assert spent_in_month(spending.state(), spending.scope, "often", NOON, UTC) == 0.0, "it has no budget to reserve"


def test_nothing_is_decided_for_one_that_is_disabled_or_while_another_tick_decides(
    records: FiringRecords, ticked: Ticked, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ticked(0, schedule(enabled=False)) == ([], [])
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits for the other"))
    with records.deciding() as alone:
        assert alone
        assert ticked(0) == ([], [])
    assert ticked(0) == (["watching"], [])


def test_one_that_nobody_follows_any_more_is_called_interrupted(records: FiringRecords, ticked: Ticked) -> None:
    records.append("often", (line("started"),))
    assert ticked(STARTING_S - 1) == ([], []), "it may not have taken its lock yet"
    with records.firing("often"):
        assert ticked(STARTING_S) == ([], []), "it is at work"
    assert ticked(STARTING_S) == (["interrupted"], [])
    assert records.read("often")[-1].due == NOON
    assert ticked(STARTING_S) == ([], [])


def test_one_that_a_killed_fcctl_started_by_a_clock_that_was_ahead_is_interrupted(
    records: FiringRecords, ticked: Ticked
) -> None:
    later = NOON + 7 * 86400
    records.append("often", (line("started", due=later, at=later),))
    assert ticked(0) == (["interrupted", "watching"], [])
    assert ticked(3600) == (["started"], [NOON + 3600])


def test_an_interrupted_one_does_not_keep_the_next_from_starting(records: FiringRecords, ticked: Ticked) -> None:
    records.append("often", (line("started"),))
    assert ticked(3600) == (["interrupted", "started"], [NOON + 3600])


def test_one_at_work_keeps_the_next_from_starting(records: FiringRecords, ticked: Ticked) -> None:
    records.append("often", (line("started"),))
    with records.firing("often"):
        assert ticked(3600) == (["overlap"], [])


@pytest.mark.parametrize(
    ("plan", "caps", "outcome"),
    [
        ({"budget_usd": 3, "per_month_usd": 5}, {}, "started"),
        ({"budget_usd": 3.01, "per_month_usd": 5}, {}, "refused"),
        ({"per_month_usd": 5}, {"per_run_usd": 3}, "started"),
        ({"per_month_usd": 5}, {"per_run_usd": 3.01}, "refused"),
        ({"budget_usd": 3, "per_month_usd": 5}, {"per_run_usd": 4}, "started"),
        ({"budget_usd": 4, "per_month_usd": 5}, {"per_run_usd": 3}, "started"),
        ({"per_month_usd": 5}, {}, "refused"),
        ({}, {}, "started"),
    ],
)
def test_a_month_s_cap_holds(
    records: FiringRecords, ticked: Ticked, plan: dict[str, float], caps: dict[str, float], outcome: str
) -> None:
    records.append("often", (line("started"), line("finished", usd=2.0)))
    assert ticked(3600, schedule(**plan), **caps)[0] == [outcome]


def test_what_a_killed_tick_had_counted_and_is_missed_by_now_costs_nothing(
    records: FiringRecords, spending: SpendingBook, ticked: Ticked, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = schedule(budget_usd=3, per_month_usd=5)
    records.append("often", (line("started"), line("finished", usd=0.0)))
    with monkeypatch.context() as killed:
        killed.setattr(FiringRecords, "append", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ticked(3600, plan)
    assert spent_in_month(spending.state(), spending.scope, "often", NOON, UTC) == 3
    assert ticked(7200, plan)[0] == ["missed", "started"]
    assert spent_in_month(spending.state(), spending.scope, "often", NOON, UTC) == 3


# ------------------------------------------------------------------------------------------------------ one firing
def fired(records: FiringRecords, spending: SpendingBook, answer: Mapping[str, Any]) -> Firing:
    asked: list[tuple[Schedule, str]] = []

    def run_job(schedule: Schedule, firing: str) -> Mapping[str, Any]:
        assert records.at_work("often")
        asked.append((schedule, firing))
        return answer

    firing = Scheduler({"often": PLAN}, records, spending, Budget(), Clock(NOON + 60)).fire("often", NOON, run_job)
    assert records.read("often")[-1] == firing
    assert not records.at_work("often")
    assert asked == [(PLAN, firing_id(spending.scope, "often", NOON))]
    return firing


@pytest.mark.parametrize(("slept_s", "runs"), [(3600.0, True), (3900.0, False)])
def test_a_computer_that_slept_after_the_decision_starts_nothing_hours_late(
    records: FiringRecords, spending: SpendingBook, slept_s: float, runs: bool
) -> None:
    """``catch_up_minutes`` is an hour."""
    started: list[str] = []

    def run_job(_: Schedule, firing: str) -> Mapping[str, Any]:
        started.append(firing)
        return {"status": "passed", "cost": {"usd": 0.5}}

    scheduler = Scheduler({"often": PLAN}, records, spending, Budget(), Clock(NOON + slept_s))
    firing = scheduler.fire("often", NOON, run_job)
    assert (len(started), firing.status, firing.usd) == ((1, "passed", 0.5) if runs else (0, "error", 0.0))
    assert runs or firing.reason == "noticed 63 minutes late: this computer slept or was off"


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (
            {"run_id": "r", "status": "passed", "exit_code": 0, "cost": {"usd": 1.25, "egress_usd": 0.25}},
            {"run_id": "r", "status": "passed", "exit_code": 0, "usd": 1.5},
        ),
        ({"status": "failed", "exit_code": 100, "cost": "odd"}, {"status": "failed", "exit_code": 100}),
        (
            {"error": {"message": "no stock", "cause": "all zones", "exit_code": 5}, "cost": {"usd": 0.5}},
            {"status": "error", "reason": "no stock: all zones", "exit_code": 5, "usd": 0.5},
        ),
        ({"error": {"message": "odd", "exit_code": "x"}}, {"status": "error", "reason": "odd", "exit_code": 1}),
    ],
)
def test_how_a_firing_ended_is_recorded(
    records: FiringRecords, spending: SpendingBook, answer: dict[str, Any], end: dict[str, Any]
) -> None:
    assert fired(records, spending, answer) == line("finished", at=NOON + 60, **end)


def test_a_firing_beside_another_runs_nothing_and_costs_nothing(
    records: FiringRecords, spending: SpendingBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.schedules.fire._ENDING_S", 0.0)

    def never(asked: Schedule, firing: str) -> Mapping[str, Any]:
        raise AssertionError(asked)

    with records.firing("often"):
        firing = Scheduler({"often": PLAN}, records, spending, Budget(), Clock(NOON + 60)).fire("often", NOON, never)
    assert (firing.outcome, firing.status, firing.usd) == ("finished", "overlap", 0.0)
    assert records.read("often") == [firing]


class Ends(FiringRecords):
    """Its firing writes down how it ended, and lets go, just before somebody asks whether it is at work."""

    def at_work(self, name: str) -> bool:
        self.append(name, (line("finished", at=NOON + 600, status="passed"),))
        return super().at_work(name)


def test_one_that_ends_while_its_schedule_is_looked_at_is_not_called_interrupted(
    tmp_path: Path, spending: SpendingBook
) -> None:
    records = Ends(tmp_path)
    records.append("often", (line("started"),))
    assert Scheduler({"often": PLAN}, records, spending, Budget(), Clock(NOON + 600)).tick(lambda *_: None) == []
    assert [firing.outcome for firing in records.read("often")] == ["started", "finished"]


def test_one_that_looks_takes_another_that_looks_for_no_firing(records: FiringRecords, tmp_path: Path) -> None:
    """``schedule ls`` beside a tick: else the tick records an overlap, and the firing is left out."""
    with records.firing("often"):
        assert records.at_work("often")
    (lock,) = (tmp_path / "schedules").glob("often.*.lock")
    with lock.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not records.at_work("often")


def test_looking_does_not_keep_a_firing_from_beginning(records: FiringRecords) -> None:
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            records.at_work("often")

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(100):
            with records.firing("often") as alone:
                assert alone
    finally:
        done.set()
        looker.join()


def nothing(code: int, cause: str | None) -> dict[str, Any]:
    message = f"fcctl run ended with exit code {code} and printed no result"
    return {"error": {"message": message, "cause": cause, "exit_code": code}}


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("exit 9", nothing(9, None)),
        ("printf %600s x >&2; exit 7", nothing(7, "x")),
        ("printf %0600d 1 >&2", nothing(0, f"{1:0500}")),
        (
            'echo no; echo "{\\"a\\": \\"$*\\"}"; echo [1]; exit 3',
            {"a": "--json --yes run bench --on local --set N=1 --budget 2.5"},
        ),
        ('echo "{\\"a\\": \\"$FCCTL_FIRING\\"}" >&2; echo noise', {"a": "f@1"}),
    ],
)
def test_what_a_run_says_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, answer: dict[str, Any]
) -> None:
    monkeypatch.setattr(fire, "_FCCTL", ("sh", "-c", f"test $1 = -C || exit; shift 2; {script}", "sh"))
    plan = schedule(budget_usd=2.5, settings={"N": "1"})
    assert fire.run_job(tmp_path)(plan, "f@1") == answer
    monkeypatch.setenv(FIRING, "")
    if "--budget" in str(answer):
        assert fire.run_job(tmp_path)(schedule(), "f@1") == {"a": "--json --yes run bench --on local"}


def test_a_firing_outlives_whoever_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the terminal of ``fcctl schedule serve``."""
    monkeypatch.setattr(fire, "_FCCTL", ("sh", "-c", "ps -o sid= -p $$; echo $0 $*"))
    log = tmp_path / "log"
    log.write_text("before\n")
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *argv, **how: begun.append(popen(*argv, **how)))
    fire.launch(tmp_path, ["schedule", "fire"], log)
    begun[0].wait()
    before, session, words = log.read_text().splitlines()
    assert (before, words) == ("before", f"-C {tmp_path} schedule fire")
    assert int(session) != os.getsid(0)


# ------------------------------------------------------------------------------------------------------ the record
def test_a_record_is_no_link(records: FiringRecords, tmp_path: Path) -> None:
    records.append("often", (line("missed"),))
    (tmp_path / "schedules" / "often.jsonl").rename(tmp_path / "elsewhere")
    (tmp_path / "schedules" / "often.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskError):
        records.append("often", (line("missed"),))


def test_whoever_may_read_the_workspace_may_read_a_record(records: FiringRecords, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        records.append("often", (line("missed"),))
    finally:
        os.umask(before)
    assert (tmp_path / "schedules" / "often.jsonl").stat().st_mode & 0o777 == 0o644


def test_a_record_has_a_line_for_each_firing_and_no_others(records: FiringRecords, tmp_path: Path) -> None:
    path = tmp_path / "schedules" / "often.jsonl"
    for number in range(4):  # of odd and even length
        records.append("often", (line("missed", reason="x" * number),))
    assert len(path.read_bytes().splitlines()) == 4
    for torn in (b'{"outco', b'{"outcom'):
        with path.open("ab") as file:
            file.write(torn)
        records.append("often", (line("missed"),))
    assert len(records.read("often")) == 6


def test_standings(records: FiringRecords, spending: SpendingBook) -> None:
    start(spending, "often", NOON, 3.0, cap=None, zone=UTC)
    end(spending, "often", NOON, 2.0)
    records.append("often", (line("started"), line("finished", usd=2.0, run_id="r"), line("watching", NOON + 1)))
    plans = {"often": PLAN, "off": schedule(enabled=False)}
    with records.firing("often"):
        often, off = Scheduler(plans, records, spending, Budget(), Clock(NOON + 60)).statuses()
    assert [time.hour for time in often.next] == [13, 14, 15]
    assert often.last is not None
    assert (often.last.run_id, often.spent_this_month_usd, often.running) == ("r", 2.0, True)
    assert (off.name, off.next, off.last, off.spent_this_month_usd, off.running) == ("off", [], None, 0.0, False)


def test_a_refusal_for_the_same_reason_is_counted_and_no_other(records: FiringRecords, tmp_path: Path) -> None:
    def refused(number: int, reason: str = "no money", **values: Any) -> Firing:
        return line("refused", NOON + number, NOON + number, reason=reason, **values)

    for number in range(3):
        records.append("often", (refused(number),))
    assert records.read("often") == [refused(2, count=3)]
    assert "null" not in (tmp_path / "schedules" / "often.jsonl").read_text(), "a record has what is known"
    for other in (refused(3, "no stock"), refused(4, "no stock", key="0 3 * * * UTC"), refused(5, "no stock")):
        records.append("often", (other,))
    records.append("often", (line("overlap", NOON + 6, reason="no stock"),))
    records.append("often", (refused(6, "no stock"),))
    records.append("often", (line("missed", NOON + 7), refused(7, "no stock")))
    assert [(f.outcome, f.count) for f in records.read("often")] == [
        ("refused", 3), ("refused", 1), ("refused", 1), ("refused", 1), ("overlap", 1), ("refused", 1), ("missed", 1),
        ("refused", 1),
    ]  # fmt: skip
    records.append("often", (refused(8, "no stock"),))
    assert [(f.due - NOON, f.count) for f in records.read("often")][-2:] == [(7, 1), (8, 2)]


def test_of_a_long_record_only_the_end_is_read_unless_all_is_asked_for(
    records: FiringRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    firings = [line("missed", NOON + number) for number in range(9)]
    records.append("often", tuple(firings))
    assert records.read("often") == firings
    size = len(f"{json.dumps(firings[0].model_dump(exclude_none=True))}\n")
    monkeypatch.setattr("orchestrator.schedules.fire._NEWEST_BYTES", 3 * size + 5)
    assert records.read("often") == firings[-3:], "what is left of the one before is no line"
    assert records.read("often", whole=True) == firings
    assert records.read("never") == []
