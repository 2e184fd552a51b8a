"""The life of a run: what each journal leads to, and that no journal leads to doing a thing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.journal import JournalEntry
from orchestrator.runs.lifecycle import Action, Mode, Stage, advance, decide, fold

WHOLE = ["begun", "sync", "submit", "submitted", "ended", "collected", "complete"]


def journal(*kinds: str) -> list[JournalEntry]:
    return [JournalEntry(seq=i, time=float(i), kind=kind) for i, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("lines", "launch", "resume"),
    [
        (0, Action.SYNC, Action.ABANDON),
        (1, Action.SYNC, Action.ABANDON),
        (2, Action.SUBMIT, Action.ABANDON),
        (3, Action.SUBMIT, Action.ASK),
        (4, Action.FOLLOW, Action.FOLLOW),
        (5, Action.COLLECT, Action.COLLECT),
        (6, Action.COMPLETE, Action.COMPLETE),
        (7, Action.COMPLETE, Action.COMPLETE),
    ],
)
def test_what_comes_after_each_line(lines: int, launch: Action, resume: Action) -> None:
    state = fold(journal(*WHOLE[:lines]))
    assert decide(state, "launch") is launch
    assert decide(state, "resume") is resume


def test_a_resumed_run_is_never_submitted() -> None:
    """Nobody waits for it any more: only the controller that was asked to run a job may start it."""
    for lines in range(len(WHOLE) + 1):
        assert decide(fold(journal(*WHOLE[:lines])), "resume") not in (Action.SYNC, Action.SUBMIT)


def before_wake(*lines: str, goes_on: bool = True, status: str = "passed") -> list[JournalEntry]:
    data = {"begun": {"before_wake": 1}, "stepped": {"goes_on": goes_on, "status": status, "reason": "why"}}
    return [JournalEntry(seq=i, time=float(i), kind=kind, data=data.get(kind, {})) for i, kind in enumerate(lines)]


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
    assert (decide(state, "launch"), decide(state, "resume")) == (launch, resume)


def test_a_run_whose_first_steps_fail_never_leaves() -> None:
    state = fold(before_wake("begun", "prewake", "stepped", goes_on=False, status="failed"))
    assert (state.without_outcome, state.ended_as, state.reason) == ("here", "failed", "why")
    assert decide(state, "launch") is decide(state, "resume") is Action.COMPLETE


@given(
    st.lists(
        st.sampled_from([*WHOLE, "prewake", "stepped", "detached", "cancel", "lost", "abandoned", "from-the-future"])
    )
)
def test_any_journal_goes_forward_and_ends(kinds: list[str]) -> None:
    state, modes = fold([]), ("launch", "resume")
    for entry in journal(*kinds):
        after = advance(state, entry)
        assert after.stage >= state.stage
        state = after
    moved: dict[Action, list[str]] = {
        Action.SETTLE_HERE: ["stepped"],
        Action.SYNC: ["sync"],
        Action.SUBMIT: ["submit", "submitted"],
        Action.ASK: ["submitted"],
        Action.FOLLOW: ["ended"],
        Action.COLLECT: ["collected"],
        Action.ABANDON: ["abandoned"],
    }
    mode: Mode
    for mode in modes:  # type: ignore[assignment]
        end, seen = state, []
        while (move := decide(end, mode)) is not Action.COMPLETE:
            assert move not in seen, "a move was made twice"
            seen.append(move)
            for entry in journal(*moved[move]):
                end = advance(end, entry)
        assert end.stage is Stage.COLLECTED or end.without_outcome in ("abandoned", "here")


def test_an_abandoned_run_needs_nothing_of_the_host() -> None:
    state = fold(journal("begun", "sync", "abandoned"))
    assert state.without_outcome == "abandoned"
    assert decide(state, "resume") is Action.COMPLETE
