"""What must hold after a command with a search on several machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.runs.lifecycle import Stage, fold
from tests.simulation.fleet_story import Command, Told
from tests.simulation.invariants import SETTLED_S
from tests.simulation.laptop import CountedStore
from tests.simulation.world import Actor, Violation

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

#: How long letting all go takes where nothing goes wrong, with ways to machines that are off by then, seconds.
LET_GO_S = 100.0


def check_in_order(fleet: Fleet, told: Told, struck_at: float | None) -> None:
    """Where nothing goes wrong, each machine is in the search, and is let go with it, or at Ctrl-C."""
    outcome = fleet.parts[fleet.searches[-1]].outcome if fleet.searches else None
    over_at = struck_at or (outcome.finished if outcome is not None else fleet.world.now)
    if fleet.world.now - over_at > LET_GO_S:
        raise Violation(f"nothing went wrong, and at its end the fleet took {fleet.world.now - over_at:.0f} s")
    for name in fleet.story.names[1:] if struck_at is None else ():
        if not any(note.startswith((f"host {name}: 1 x card", f"host {name}: not used")) for note in told.notes):
            raise Violation(f"nothing went wrong, and {name} was never in the search")


def check_refused(fleet: Fleet, told: Told) -> None:
    """Where a machine does not forward ports, or the search's makes up where its scheduler is, that is told once."""
    story, (first, *others) = fleet.story, fleet.story.names
    leads = f"the search continues on {first} only"
    refused = {leads: first in story.closed or story.lies}
    for name in others:
        refused[f"host {name}: cannot be used"] = name in story.closed and bool(fleet.machines[name].parts)
    notes = [note for note in told.notes if "does not forward ports" in note or "address" in note]
    for words, is_so in refused.items():
        if sum(note.startswith(words) for note in notes) != is_so:
            raise Violation(f"{words!r} was told in {notes}")


def check_heard(fleet: Fleet, what: Command, ending: str, told: Told) -> None:
    """Each word of the search on a machine is told once, in its order."""
    logs = [fleet.parts[r].log.decode().splitlines() for r in fleet.searches]
    said = [line for log in logs for line in log]
    heard = [note for note in told.notes if note in set(said)]
    rest = iter(said)
    if not all(line in rest for line in heard):
        raise Violation(f"said: {said}, and heard: {heard}")
    last, is_new = logs[-1] if logs else [], len(fleet.searches) > fleet.before
    if ending == "ended: passed" and is_new and heard[len(heard) - len(last) :] != last:
        raise Violation(f"said last: {last}, and heard: {heard}")


def check_left(fleet: Fleet, ending: str, words: str) -> None:
    """Whatever is still at work, or on, or not home, was named with what to do about it."""
    fleet.world.advance(SETTLED_S + fleet.world.stop_seconds)
    store = fleet.services(Actor("judge"), Told(fleet.trace)).store
    for name, machine in fleet.machines.items():
        excused = [r for r in {*machine.parts, *_active_on(store, name)} if r in words]
        part = machine.working
        if part is not None and part.plan.run_id not in excused:
            raise Violation(f"{part.plan.run_id} is at work on {name} after {ending!r}, without a word")
        on = name in fleet.story.cloud and machine.instance.is_billed
        if (
            on
            and not excused
            and not any(hold["zone"] for d in store.pending_releases().values() for hold in d["holds"])
        ):
            raise Violation(f"{name} is {machine.instance.status} after {ending!r}, without a word")
    for run_id in store.active():
        state = fold(store.journal_of(run_id))
        is_nothing_yet = state.stage < Stage.SYNCING and state.machine in ("none", "due")
        if run_id not in words and not is_nothing_yet:
            raise Violation(f"{run_id} is not home after {ending!r}, without a word")


def _active_on(store: CountedStore, name: str) -> list[str]:
    return [r for r in store.active() if ((store.plan_of(r) or {}).get("target") or {}).get("name") == name]
