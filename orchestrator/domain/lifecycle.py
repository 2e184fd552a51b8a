"""The life of a run as a pure function of its journal.

The journal is the only memory: each line names an intent and is on disk before its effect. A controller that starts a
run and one that finds a dead controller's run do the same thing: fold the journal into a :class:`State`, ask
:func:`decide` for the next :class:`Move`, make it, append the line, repeat.

===========  ==================================================  ==========================
journal      the effect it announces                             stage after it
===========  ==================================================  ==========================
begun        the run exists here; nothing happened yet           BEGUN
arm, armed   the host's shutdown timer is about to be, is set    (unchanged)
sync         files are about to reach the tree on the host       SYNCING
submit       the plan is about to reach the host program         SUBMITTING
submitted    the host program answered that it has the run       RUNNING
detached     nobody follows any more                             (unchanged)
cancel       the host program is about to be told to stop it     (unchanged)
ended        the host program says how it ended                  ENDED
lost         the host does not know the run                      ENDED
abandoned    the run ends without ever having been submitted     COLLECTED
collected    every byte is here and verified                     COLLECTED
complete     run.json is about to be written                     COLLECTED
===========  ==================================================  ==========================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Literal

from orchestrator.domain.records import JournalEntry

Mode = Literal["launch", "resume"]


class Stage(IntEnum):
    BEGUN = 0
    SYNCING = 1
    SUBMITTING = 2
    RUNNING = 3
    ENDED = 4
    COLLECTED = 5


class Move(StrEnum):
    SYNC = "sync"  # send the source, snapshot it
    SUBMIT = "submit"  # idempotent by run id
    ASK = "ask"  # does the host have this run?
    FOLLOW = "follow"
    COLLECT = "collect"
    COMPLETE = "complete"
    ABANDON = "abandon"


@dataclass(frozen=True)
class State:
    stage: Stage = Stage.BEGUN
    #: Why the run ends without the host's account of it: it was abandoned, or the host lost it.
    without_outcome: Literal["abandoned", "lost"] | None = None
    reason: str | None = None
    detached: bool = False
    cancelled: bool = False


def advance(state: State, entry: JournalEntry) -> State:
    """The state after one more journal line. Unknown kinds (a newer version's) change nothing."""
    reason = entry.data.get("reason")
    match entry.kind:
        case "sync":
            return replace(state, stage=max(state.stage, Stage.SYNCING))
        case "submit":
            return replace(state, stage=max(state.stage, Stage.SUBMITTING))
        case "submitted":
            return replace(state, stage=max(state.stage, Stage.RUNNING), detached=False)
        case "detached":
            return replace(state, detached=True)
        case "cancel":
            return replace(state, cancelled=True)
        case "ended":
            return replace(state, stage=max(state.stage, Stage.ENDED))
        case "lost":
            return replace(state, stage=max(state.stage, Stage.ENDED), without_outcome="lost", reason=reason)
        case "abandoned":
            cancelled = state.cancelled or entry.data.get("status") == "cancelled"
            return replace(
                state, stage=Stage.COLLECTED, without_outcome="abandoned", reason=reason, cancelled=cancelled
            )
        case "collected" | "complete":
            return replace(state, stage=Stage.COLLECTED)
    return state


def fold(entries: Iterable[JournalEntry]) -> State:
    """The state that a journal leads to."""
    state = State()
    for entry in entries:
        state = advance(state, entry)
    return state


def decide(state: State, mode: Mode) -> Move:
    """What to do next.

    ``launch`` is the controller that began the run and still lives; ``resume`` is any later one. A resumed run that
    was never submitted is abandoned, not started: nobody waits for it any more. One whose submission is in doubt is
    looked for on the host.
    """
    match state.stage:
        case Stage.BEGUN:
            return Move.SYNC if mode == "launch" else Move.ABANDON
        case Stage.SYNCING:
            return Move.SUBMIT if mode == "launch" else Move.ABANDON
        case Stage.SUBMITTING:
            return Move.SUBMIT if mode == "launch" else Move.ASK
        case Stage.RUNNING:
            return Move.FOLLOW
        case Stage.ENDED:
            return Move.COMPLETE if state.without_outcome == "abandoned" else Move.COLLECT
        case Stage.COLLECTED:
            return Move.COMPLETE
