"""The life of a run whose machine fcctl turns on and off: from any line of its journal, the machine is let go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.journal import JournalEntry
from orchestrator.runs.lifecycle import UNWRITTEN, Action, Stage, advance, decide, fold, may_wait
from orchestrator.runs.machine.other_runs import OtherRun

WHOLE = [
    "begun", "acquire", "cloud", "acquired", "arm", "armed", "sync", "submit", "submitted", "ended", "collected",
    "release", "cloud", "released", "complete",
]  # fmt: skip
DATA: dict[str, dict[str, Any]] = {"begun": {"machine": True}, "stopped": {"how": "preempted"}}


def journal(*kinds: str) -> list[JournalEntry]:
    return [JournalEntry(seq=i, time=float(i), kind=kind, data=DATA.get(kind, {})) for i, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("lines", "launch", "resume"),
    [
        (1, Action.ACQUIRE, Action.ABANDON),
        (2, Action.SYNC, Action.ABANDON),
        (4, Action.SYNC, Action.ABANDON),
        (7, Action.SUBMIT, Action.ABANDON),
        (8, Action.SUBMIT, Action.ASK),
        (9, Action.FOLLOW, Action.FOLLOW),
        (10, Action.COLLECT, Action.COLLECT),
        (11, Action.RELEASE, Action.RELEASE),
        (12, Action.RELEASE, Action.RELEASE),
        (13, Action.RELEASE, Action.RELEASE),
        (14, Action.COMPLETE, Action.COMPLETE),
        (15, Action.COMPLETE, Action.COMPLETE),
    ],
)
def test_what_comes_after_each_line(lines: int, launch: Action, resume: Action) -> None:
    state = fold(journal(*WHOLE[:lines]))
    assert decide(state, "launch") is launch
    assert decide(state, "resume") is resume


@pytest.mark.parametrize("lines", range(2, 9))
def test_an_abandoned_run_lets_go_of_what_it_turned_on(lines: int) -> None:
    state = fold(journal(*WHOLE[:lines], "abandoned"))
    assert decide(state, "resume") is Action.RELEASE
    assert decide(fold(journal(*WHOLE[:lines], "abandoned", "release", "unreleased")), "resume") is Action.COMPLETE


def test_one_that_never_looked_for_a_machine_has_none_to_let_go() -> None:
    assert decide(fold(journal("begun", "abandoned")), "resume") is Action.COMPLETE


@pytest.mark.parametrize("lines", [8, 9, 10])
def test_a_run_whose_machine_is_off_waits_until_it_is_woken_or_given_up(lines: int) -> None:
    stopped = journal(*WHOLE[:lines], "stopped")
    assert decide(fold(stopped), "launch") is Action.WAIT
    assert decide(fold(stopped), "resume") is Action.WAIT
    woken = fold(journal(*WHOLE[:lines], "stopped", "acquire"))
    assert decide(woken, "resume") in (Action.ASK, Action.FOLLOW, Action.COLLECT)
    given_up = fold(journal(*WHOLE[:lines], "stopped", "lost", "collected"))
    assert decide(given_up, "resume") is Action.COMPLETE
    gone = fold(journal(*WHOLE[:lines], "stopped", "lost"))
    assert decide(gone, "resume") is Action.COLLECT, "which asks nobody: there is no disk any more"


@given(st.lists(st.sampled_from([*WHOLE, "stopped", "unreleased", "abandoned", "lost", "cancel", "detached"])))
def test_no_run_completes_while_it_holds_a_machine(kinds: list[str]) -> None:
    state = fold(journal("begun", *kinds))
    moved = {
        Action.SYNC: ["sync"],
        Action.SUBMIT: ["submit", "submitted"],
        Action.ASK: ["submitted"],
        Action.FOLLOW: ["ended"],
        Action.COLLECT: ["collected"],
        Action.RELEASE: ["release", "released"],
        Action.ABANDON: ["abandoned"],
        Action.ACQUIRE: ["acquire", "acquired"],
        Action.WAIT: ["lost"],
    }
    for _ in range(12):
        move = decide(state, "resume")
        if move is Action.COMPLETE:
            assert state.machine not in ("held", "leaving")
            assert state.stage is Stage.COLLECTED or state.without_outcome == "abandoned"
            return
        for entry in journal(*moved[move]):
            state = advance(state, entry)
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("first", "kinds"),
    [
        (True, ["begun", "prewake", "stepped", "acquire", "arm", "sync", "submit"]),
        (False, ["acquired", "armed", "submitted", "detached", "cancel", "over_budget", "stopped", "ended", "lost",
                 "abandoned", "collected", "went_down", "release", "released", "unreleased", "complete"]),
    ],
)  # fmt: skip
def test_on_a_full_disk_nothing_begins_and_everything_ends(first: bool, kinds: list[str]) -> None:
    assert [kind for kind in kinds if may_wait(kind, {}) is first] == []


@pytest.mark.parametrize(
    ("action", "waits"), [("stop", True), ("delete", True), ("start", False), ("create", False), ("fence", False)]
)
def test_a_full_disk_keeps_no_machine_on_and_lets_none_be_started(action: str, waits: bool) -> None:
    assert may_wait("cloud", {"action": action}) is waits


def test_results_that_found_no_room_wait_on_the_machine_s_disk() -> None:
    left = fold(journal(*WHOLE[:10], "release", "cloud", "released"))
    assert decide(left, "resume") is Action.COLLECT, "it may be on yet, for somebody else"
    assert OtherRun("r", left, live=False).left_behind, "whoever is on it does not delete it"
    waits = advance(left, JournalEntry(seq=99, time=99.0, kind="stopped", data={"how": UNWRITTEN}))
    assert decide(waits, "resume") is Action.WAIT
    assert OtherRun("r", waits, live=False).left_behind
    assert not OtherRun("r", fold(journal(*WHOLE)), live=False).left_behind
