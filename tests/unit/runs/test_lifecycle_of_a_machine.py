"""The life of a run whose machine fcctl turns on and off: from any line of its journal, the machine is let go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.journal import JournalEntry
from orchestrator.runs.lifecycle import UNWRITTEN, Move, Stage, advance, decide, fold, may_wait
from orchestrator.runs.machine.other_runs import Neighbour

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
        (1, Move.ACQUIRE, Move.ABANDON),
        (2, Move.SYNC, Move.ABANDON),
        (4, Move.SYNC, Move.ABANDON),
        (7, Move.SUBMIT, Move.ABANDON),
        (8, Move.SUBMIT, Move.ASK),
        (9, Move.FOLLOW, Move.FOLLOW),
        (10, Move.COLLECT, Move.COLLECT),
        (11, Move.RELEASE, Move.RELEASE),
        (12, Move.RELEASE, Move.RELEASE),
        (13, Move.RELEASE, Move.RELEASE),
        (14, Move.COMPLETE, Move.COMPLETE),
        (15, Move.COMPLETE, Move.COMPLETE),
    ],
)
def test_what_comes_after_each_line(lines: int, launch: Move, resume: Move) -> None:
    state = fold(journal(*WHOLE[:lines]))
    assert decide(state, "launch") is launch
    assert decide(state, "resume") is resume


@pytest.mark.parametrize("lines", range(2, 9))
def test_an_abandoned_run_lets_go_of_what_it_turned_on(lines: int) -> None:
    state = fold(journal(*WHOLE[:lines], "abandoned"))
    assert decide(state, "resume") is Move.RELEASE
    assert decide(fold(journal(*WHOLE[:lines], "abandoned", "release", "unreleased")), "resume") is Move.COMPLETE


def test_one_that_never_looked_for_a_machine_has_none_to_let_go() -> None:
    assert decide(fold(journal("begun", "abandoned")), "resume") is Move.COMPLETE


@pytest.mark.parametrize("lines", [8, 9, 10])
def test_a_run_whose_machine_is_off_waits_until_it_is_woken_or_given_up(lines: int) -> None:
    stopped = journal(*WHOLE[:lines], "stopped")
    assert decide(fold(stopped), "launch") is Move.WAIT
    assert decide(fold(stopped), "resume") is Move.WAIT
    woken = fold(journal(*WHOLE[:lines], "stopped", "acquire"))
    assert decide(woken, "resume") in (Move.ASK, Move.FOLLOW, Move.COLLECT)
    given_up = fold(journal(*WHOLE[:lines], "stopped", "lost", "collected"))
    assert decide(given_up, "resume") is Move.COMPLETE
    gone = fold(journal(*WHOLE[:lines], "stopped", "lost"))
    assert decide(gone, "resume") is Move.COLLECT, "which asks nobody: there is no disk any more"


@given(st.lists(st.sampled_from([*WHOLE, "stopped", "unreleased", "abandoned", "lost", "cancel", "detached"])))
def test_no_run_completes_while_it_holds_a_machine(kinds: list[str]) -> None:
    state = fold(journal("begun", *kinds))
    moved = {
        Move.SYNC: ["sync"], Move.SUBMIT: ["submit", "submitted"], Move.ASK: ["submitted"], Move.FOLLOW: ["ended"],
        Move.COLLECT: ["collected"], Move.RELEASE: ["release", "released"], Move.ABANDON: ["abandoned"],
        Move.ACQUIRE: ["acquire", "acquired"], Move.WAIT: ["lost"],
    }  # fmt: skip
    for _ in range(12):
        move = decide(state, "resume")
        if move is Move.COMPLETE:
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
    assert decide(left, "resume") is Move.COLLECT, "it may be on yet, for somebody else"
    assert Neighbour("r", left, live=False).left_behind, "whoever is on it does not delete it"
    waits = advance(left, JournalEntry(seq=99, time=99.0, kind="stopped", data={"how": UNWRITTEN}))
    assert decide(waits, "resume") is Move.WAIT
    assert Neighbour("r", waits, live=False).left_behind
    assert not Neighbour("r", fold(journal(*WHOLE)), live=False).left_behind
