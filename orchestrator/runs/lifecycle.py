"""The life of a run as a pure function of its journal.

The journal is the only memory: each line names an intent and is on disk before its effect. A controller that starts a
run and one that finds a dead controller's run do the same thing: fold the journal into a :class:`State`, ask
:func:`decide` for the next :class:`Action`, make it, append the line, repeat.

===========  ==================================================  ==========================
journal      the effect it announces                             stage after it
===========  ==================================================  ==========================
begun        the run exists here; nothing happened yet           BEGUN
prewake      its first steps are about to run on this computer   (unchanged)
stepped      they have ended; if not well, the run ends too      BEGUN or COLLECTED
acquire      the machine is about to be looked for and woken     (unchanged)
cloud        the cloud is about to be asked for a change         (unchanged)
refused      it refused that at once: nothing is on its way      (unchanged)
acquired     the machine answers, and its deadline is known      (unchanged)
arm, armed   the host's shutdown timer is about to be, is set    (unchanged)
sync         files are about to reach the tree on the host       SYNCING
submit       the plan is about to reach the host program         SUBMITTING
submitted    the host program answered that it has the run       RUNNING
detached     nobody follows any more                             (unchanged)
cancel       the host program is about to be told to stop it     (unchanged)
over_budget  the host program is about to be told that a cap is  (unchanged)
             reached, and to end the run
stopped      the machine was stopped under the run, or with      (unchanged)
             results that this computer's disk did not take
ended        the host program says how it ended                  ENDED
lost         the host does not know the run                      ENDED
abandoned    the run ends without ever having been submitted     COLLECTED
collected    every byte is here and verified                     COLLECTED
went_down    why it went down, which only the cloud can say      (unchanged)
release      the machine is about to be stopped, kept, deleted   COLLECTED
released     it was, or stays on for another                     COLLECTED
unreleased   it could not be: later commands try again           COLLECTED
complete     run.json is about to be written                     COLLECTED
===========  ==================================================  ==========================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Literal

from orchestrator.base.journal import JournalEntry
from orchestrator.results.records import RunStatus

Mode = Literal["launch", "resume"]


class Stage(IntEnum):
    BEGUN = 0
    SYNCING = 1
    SUBMITTING = 2
    RUNNING = 3
    ENDED = 4
    COLLECTED = 5


#: Lines before which nothing may happen: a machine costs, or a host gets, nothing that is not on disk here. All others
#: can wait for room on a full disk, so that machines are stopped; later commands ask host and cloud.
_FIRST = frozenset({"begun", "prewake", "stepped", "acquire", "arm", "sync", "submit"})
_OFF = ("stop", "delete")
#: How a machine was stopped whose results do not fit on this computer's disk.
UNWRITTEN = "unwritten"


def may_wait(kind: str, data: Mapping[str, object]) -> bool:
    """Whether what the line announces happens although the line cannot be written yet."""
    return kind not in _FIRST and not (kind == "cloud" and data.get("action") not in _OFF)


_STAGES = {"sync": Stage.SYNCING, "submit": Stage.SUBMITTING, "ended": Stage.ENDED}


class Action(StrEnum):
    PREWAKE = "prewake"  # run the steps that belong here, before any machine costs anything
    SETTLE_HERE = "settle_here"  # end the steps here that a dead controller left, and store their results
    ACQUIRE = "acquire"  # acquire the machine
    SYNC = "sync"  # send the source, snapshot it
    SUBMIT = "submit"  # idempotent by run id
    ASK = "ask"  # does the host have this run?
    FOLLOW = "follow"
    COLLECT = "collect"
    RELEASE = "release"  # stop the machine, or what its target says
    WAIT = "wait"  # results are on the disk of a machine that is off: the user decides whether to start it
    COMPLETE = "complete"
    ABANDON = "abandon"


@dataclass(frozen=True)
class State:
    stage: Stage = Stage.BEGUN
    #: Why the run ends without the host's account of it: it ended on this computer, it was abandoned, or the host lost
    #: it.
    without_outcome: Literal["here", "abandoned", "lost"] | None = None
    reason: str | None = None
    ended_as: RunStatus = "error"  # for a run that ended on this computer
    #: The steps on this computer that come first.
    before_wake: Literal["none", "due", "running", "done"] = "none"
    #: The cloud machine: ``held`` as soon as it could be on for this run; ``leaving`` while it is being released.
    machine: Literal["none", "due", "held", "leaving", "released"] = "none"
    #: Why the machine is off although the run is not collected; None: it is on, as far as known.
    stopped: str | None = None
    cancelled: bool = False


def advance(state: State, entry: JournalEntry) -> State:
    """The state after one more journal line. Unknown kinds (a newer version's) change nothing."""
    reason = entry.data.get("reason")
    match entry.kind:
        case "begun" | "prewake" | "stepped":
            return _before_wake(state, entry)
        case "acquire" | "stopped" | "release" | "released" | "unreleased":
            return _machine(state, entry)
        case "sync" | "submit" | "ended":
            return replace(state, stage=max(state.stage, _STAGES[entry.kind]))
        case "submitted":
            return replace(state, stage=max(state.stage, Stage.RUNNING))
        case "cancel":
            return replace(state, cancelled=True)
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


def _before_wake(state: State, entry: JournalEntry) -> State:
    """The lines about the steps on this computer."""
    if entry.kind == "begun":
        state = replace(state, machine="due" if entry.data.get("machine") else "none")
        return replace(state, before_wake="due" if entry.data.get("before_wake") else "none")
    if entry.kind == "prewake":
        return replace(state, before_wake="running")
    if entry.data.get("goes_on"):
        return replace(state, before_wake="done")
    ended = replace(state, stage=Stage.COLLECTED, before_wake="done", without_outcome="here")
    return replace(ended, reason=entry.data.get("reason"), ended_as=entry.data.get("status", "error"))


def _machine(state: State, entry: JournalEntry) -> State:
    """The lines about a machine that fcctl starts."""
    if entry.kind == "acquire":
        return replace(state, machine="held", stopped=None)
    if entry.kind == "stopped":
        return replace(state, machine="released", stopped=str(entry.data.get("how", "stopped")))
    return replace(state, machine="leaving" if entry.kind == "release" else "released")


def fold(entries: Iterable[JournalEntry]) -> State:
    """The state that a journal leads to."""
    state = State()
    for entry in entries:
        state = advance(state, entry)
    return state


def decide(state: State, mode: Mode) -> Action:
    """What to do next.

    ``launch`` is the controller that began the run and still lives; ``resume`` is any later one. A resumed run that
    was never submitted is abandoned, not started: nobody waits for it any more. One whose submission is in doubt is
    looked for on the host. A machine that a run has woken is released before the run is complete.
    """
    match state.stage:
        case Stage.BEGUN:
            return _decide_begun(state, mode)
        case Stage.SUBMITTING | Stage.RUNNING | Stage.ENDED if state.stopped and state.without_outcome is None:
            return Action.WAIT
        case Stage.SYNCING:
            return Action.SUBMIT if mode == "launch" else Action.ABANDON
        case Stage.SUBMITTING:
            return Action.SUBMIT if mode == "launch" else Action.ASK
        case Stage.RUNNING:
            return Action.FOLLOW
        case Stage.ENDED:
            return Action.COMPLETE if state.without_outcome == "abandoned" else Action.COLLECT
        case Stage.COLLECTED:
            return Action.RELEASE if state.machine in ("held", "leaving") else Action.COMPLETE


def _decide_begun(state: State, mode: Mode) -> Action:
    if state.before_wake == "running":
        return Action.SETTLE_HERE
    if mode != "launch":
        return Action.ABANDON
    if state.before_wake == "due":
        return Action.PREWAKE
    return Action.ACQUIRE if state.machine == "due" else Action.SYNC
