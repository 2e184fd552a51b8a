"""The life of a run: what each journal leads to, that none leads to doing a thing twice, and that from any line a
machine is let go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.journal import JournalEntry
from orchestrator.runs.lifecycle import UNWRITTEN, Action, Mode, Stage, State, advance, decide, fold, may_wait
from orchestrator.runs.machine.pending_releases import OtherRun

WHOLE = ["begun", "sync", "submit", "submitted", "ended", "collected", "complete"]
#: The same on a machine that fcctl turns on and off.
CLOUD = [
    "begun", "acquire", "cloud", "acquired", "arm", "armed", "sync", "submit", "submitted", "ended", "collected",
    "release", "cloud", "released", "complete",
]  # fmt: skip
LINES = ["prewake", "stepped", "stopped", "unreleased", "abandoned", "lost", "cancel", "detached", "from-the-future"]
#: The lines that a move leads to.
MOVED: dict[Action, list[str]] = {
    Action.SETTLE_HERE: ["stepped"], Action.SYNC: ["sync"], Action.SUBMIT: ["submit", "submitted"],
    Action.ASK: ["submitted"], Action.FOLLOW: ["ended"], Action.COLLECT: ["collected"],
    Action.RELEASE: ["release", "released"], Action.ABANDON: ["abandoned"], Action.ACQUIRE: ["acquire", "acquired"],
    Action.WAIT: ["lost"],
}  # fmt: skip


def journal(*kinds: str, **data: dict[str, Any]) -> list[JournalEntry]:
    known: dict[str, dict[str, Any]] = {"stopped": {"how": "preempted"}, **data}
    return [JournalEntry(seq=i, time=float(i), kind=kind, data=known.get(kind, {})) for i, kind in enumerate(kinds)]


def cloud(*kinds: str) -> list[JournalEntry]:
    return journal(*kinds, begun={"machine": True})


def both(state: State) -> tuple[Action, Action]:
    return decide(state, "launch"), decide(state, "resume")


@pytest.mark.parametrize(
    ("entries", "launch", "resume"),
    [
        (journal(), Action.SYNC, Action.ABANDON),
        (journal(*WHOLE[:1]), Action.SYNC, Action.ABANDON),
        (journal(*WHOLE[:2]), Action.SUBMIT, Action.ABANDON),
        (journal(*WHOLE[:3]), Action.SUBMIT, Action.ASK),
        (journal(*WHOLE[:4]), Action.FOLLOW, Action.FOLLOW),
        (journal(*WHOLE[:5]), Action.COLLECT, Action.COLLECT),
        (journal(*WHOLE[:6]), Action.COMPLETE, Action.COMPLETE),
        (journal(*WHOLE), Action.COMPLETE, Action.COMPLETE),
        (cloud(*CLOUD[:1]), Action.ACQUIRE, Action.ABANDON),
        (cloud(*CLOUD[:2]), Action.SYNC, Action.ABANDON),
        (cloud(*CLOUD[:4]), Action.SYNC, Action.ABANDON),
        (cloud(*CLOUD[:7]), Action.SUBMIT, Action.ABANDON),
        (cloud(*CLOUD[:8]), Action.SUBMIT, Action.ASK),
        (cloud(*CLOUD[:9]), Action.FOLLOW, Action.FOLLOW),
        (cloud(*CLOUD[:10]), Action.COLLECT, Action.COLLECT),
        (cloud(*CLOUD[:11]), Action.RELEASE, Action.RELEASE),
        (cloud(*CLOUD[:12]), Action.RELEASE, Action.RELEASE),
        (cloud(*CLOUD[:13]), Action.RELEASE, Action.RELEASE),
        (cloud(*CLOUD[:14]), Action.COMPLETE, Action.COMPLETE),
        (cloud(*CLOUD), Action.COMPLETE, Action.COMPLETE),
    ],
)
def test_what_comes_after_each_line(entries: list[JournalEntry], launch: Action, resume: Action) -> None:
    assert both(fold(entries)) == (launch, resume)


def before_wake(*lines: str, goes_on: bool = True, status: str = "passed") -> list[JournalEntry]:
    stepped = {"goes_on": goes_on, "status": status, "reason": "why"}
    return journal(*lines, begun={"before_wake": 1}, stepped=stepped)


@pytest.mark.parametrize(
    ("lines", "launch", "resume"),
    [
        (("begun",), Action.PREWAKE, Action.ABANDON),
        (("begun", "prewake"), Action.SETTLE_HERE, Action.SETTLE_HERE),
        (("begun", "prewake", "stepped"), Action.SYNC, Action.ABANDON),
        (("begun", "prewake", "stepped", "sync"), Action.SUBMIT, Action.ABANDON),
    ],
)
def test_steps_on_this_computer_come_first(lines: tuple[str, ...], launch: Action, resume: Action) -> None:
    state = fold(before_wake(*lines))
    assert both(state) == (launch, resume)


def test_a_run_whose_first_steps_fail_never_leaves() -> None:
    state = fold(before_wake("begun", "prewake", "stepped", goes_on=False, status="failed"))
    assert (state.without_outcome, state.ended_as, state.reason) == ("here", "failed", "why")
    assert decide(state, "launch") is decide(state, "resume") is Action.COMPLETE


@given(st.lists(st.sampled_from([*WHOLE, *CLOUD, *LINES])), st.sampled_from([journal, cloud]))
def test_any_journal_goes_forward_and_ends_without_a_machine(kinds: list[str], written: Any) -> None:
    state = fold([])
    for entry in written("begun", *kinds):
        after = advance(state, entry)
        assert after.stage >= state.stage
        state = after
    modes: list[Mode] = ["launch", "resume"]
    for mode in modes:
        end, seen = state, []
        while (move := decide(end, mode)) is not Action.COMPLETE:
            assert move not in seen, "a move was made twice"
            assert mode == "launch" or move not in (Action.SYNC, Action.SUBMIT), "nobody waits for it any more"
            seen.append(move)
            for entry in journal(*MOVED[move]):
                end = advance(end, entry)
        assert end.machine not in ("held", "leaving")
        assert end.stage is Stage.COLLECTED or end.without_outcome in ("abandoned", "here")


def test_an_abandoned_run_needs_nothing_of_the_host() -> None:
    state = fold(journal("begun", "sync", "abandoned"))
    assert state.without_outcome == "abandoned"
    assert decide(state, "resume") is Action.COMPLETE


@pytest.mark.parametrize("lines", range(2, 9))
def test_an_abandoned_run_lets_go_of_what_it_turned_on(lines: int) -> None:
    state = fold(cloud(*CLOUD[:lines], "abandoned"))
    assert decide(state, "resume") is Action.RELEASE
    assert decide(fold(cloud(*CLOUD[:lines], "abandoned", "release", "unreleased")), "resume") is Action.COMPLETE


def test_one_that_never_looked_for_a_machine_has_none_to_let_go() -> None:
    assert decide(fold(cloud("begun", "abandoned")), "resume") is Action.COMPLETE


@pytest.mark.parametrize("lines", [8, 9, 10])
def test_a_run_whose_machine_is_off_waits_until_it_is_woken_or_given_up(lines: int) -> None:
    stopped = cloud(*CLOUD[:lines], "stopped")
    assert both(fold(stopped)) == (Action.WAIT, Action.WAIT)
    woken = fold(cloud(*CLOUD[:lines], "stopped", "acquire"))
    assert decide(woken, "resume") in (Action.ASK, Action.FOLLOW, Action.COLLECT)
    given_up = fold(cloud(*CLOUD[:lines], "stopped", "lost", "collected"))
    assert decide(given_up, "resume") is Action.COMPLETE
    gone = fold(cloud(*CLOUD[:lines], "stopped", "lost"))
    assert decide(gone, "resume") is Action.COLLECT, "which asks nobody: there is no disk any more"


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
    left = fold(cloud(*CLOUD[:10], "release", "cloud", "released"))
    assert decide(left, "resume") is Action.COLLECT, "it may be on yet, for somebody else"
    assert OtherRun("r", left, live=False).left_behind, "whoever is on it does not delete it"
    waits = advance(left, JournalEntry(seq=99, time=99.0, kind="stopped", data={"how": UNWRITTEN}))
    assert decide(waits, "resume") is Action.WAIT
    assert OtherRun("r", waits, live=False).left_behind
    assert not OtherRun("r", fold(cloud(*CLOUD)), live=False).left_behind
