"""What must hold after every command of an episode, and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.hosts.audit import audit
from orchestrator.machines.provision.actions import RUN_LABEL, UP_PREFIX
from orchestrator.runs.cost.spending import lines as ledger_lines
from orchestrator.runs.services import Services
from tests.simulation.accounts import RATE, beyond_control, check_caps, check_worst_cases
from tests.simulation.cloud import Instance
from tests.simulation.firings import check_firings
from tests.simulation.host import HERE, Guest
from tests.simulation.schedule import ELSEWHERE
from tests.simulation.world import Actor, Violation

if TYPE_CHECKING:
    from tests.simulation.episode import Episode, Workspace

#: A command that ended leaves nothing on; how long it may still take for what it asked for to come true, seconds.
SETTLED_S = 30.0


def check(episode: Episode, services: Services) -> None:
    """After every command: money, results."""
    spent = episode.cloud.spent(RATE)
    limit = episode.allowed + beyond_control(episode)
    if spent > limit + 1e-6:
        raise Violation(f"${spent:.4f} spent, ${limit:.4f} allowed")
    check_caps(episode)
    check_worst_cases(episode)
    # Of a machine that a person deleted, the runs are given up, on another one that was made of its snapshot, too.
    given_up = {run_id for guest in episode.guests.values() if guest.instance.given_up for run_id in guest.runs}
    for name, guest in episode.guests.items():
        for run_id in guest.runs.keys() - given_up if name != HERE else ():
            _check_results(episode, services, guest, run_id)


# ------------------------------------------------------------------------------------------------------------ results
def _check_results(episode: Episode, services: Services, guest: Guest, run_id: str) -> None:
    """A step that finished has its result here, or still there and a run here that will ask for it."""
    store = _store_of(episode, services, run_id)
    there = guest.files(guest.runs[run_id])
    if not store.is_complete(run_id):
        if run_id not in store.active():
            raise Violation(f"nobody remembers {run_id}, whose results are on the machine")
        return
    record = store.get(run_id)
    gone = ["is gone", "was deleted with its disk"]
    if any(workspace.computer != "here" for workspace in episode.workspaces):  # which has another ledger
        gone.append("was deleted or replaced")  # another machine has its name by now
    deleted = any(words in (record.message or "") for words in gone)
    if len(episode.workspaces) > 1 and record.status == "lost" and deleted:
        return  # who shares nothing with the run cannot know that its results are on the disk that is deleted
    given_up = "-builder-" in run_id and record.status in ("lost", "preempted", "over_budget")
    if given_up and not guest.goes_on(guest.runs[run_id]):
        return  # it was for a run that has ended: its results on a machine that is off are of no use
    for path, content in there.items():
        here = store.folder(run_id) / path
        if path.startswith("steps/") and (not here.is_file() or here.read_bytes() != content):
            raise Violation(f"{run_id} is complete as {record.status}, and {path} stayed behind")
    goes_on = not guest.runs[run_id].ended and guest.instance in episode.cloud.instances.values()
    if episode.cloud.copies:  # what is on the disk that a copy was made of does not go on
        goes_on = guest.goes_on(guest.runs[run_id])
    if goes_on:
        raise Violation(f"{run_id} is complete as {record.status}, and goes on at the machine")


def _store_of(episode: Episode, services: Services, run_id: str) -> Any:
    """Where the run is known; if nowhere, where somebody looks for it."""
    stores = [services.store, *episode.stores()]
    return next((s for s in stores if s.is_complete(run_id) or run_id in s.active()), services.store)


def services_of(episode: Episode, workspace: Workspace) -> Services:
    """For whoever judges; its own effects are nobody's."""
    return episode.services(Actor("judge"), workspace)


# ---------------------------------------------------------------------------------------------------------- all is off
def check_off_after(episode: Episode, what: str, ending: str) -> None:
    """A run that was seen to its end, or refused, leaves no machine on; nor does one whose results find no room."""
    if (
        what == "up"
        or episode.schedule.release == "keep"
        or not ending.startswith(("ended", "refused"))
        or _in_session(episode)
        or (_live(episode) and not _found_no_room(episode, what, ending))
    ):
        return
    episode.world.advance(SETTLED_S + episode.world.stop_seconds)
    for instance in episode.cloud.running():
        if not _excused(episode, instance):
            raise Violation(f"{instance.name} is {instance.status} after a command that {ending}")


def _live(episode: Episode) -> bool:
    return any(True for workspace in episode.workspaces for _ in (workspace.root / "results/active").glob("2*"))


def _in_session(episode: Episode) -> bool:
    sessions = [p for workspace in episode.workspaces for p in (workspace.root / "results/sessions").glob("2*")]
    return any(not (p / "end.json").exists() for p in sessions)


#: With none of these a machine is on for the run of the command that ended, or for nobody.
_FOR_OTHERS = {
    "cloud_down", "lost_reply", "other", "beside", "abroad", "console", "crash", "kill", "kill_after", "interrupt",
}  # fmt: skip


def _found_no_room(episode: Episode, what: str, ending: str) -> bool:
    """Whether a run had ended when the laptop's disk was full, and was alone on its machine."""
    alone = not _FOR_OTHERS & {fault.kind for fault in episode.schedule.faults}
    at_work = any(guest.goes_on(run) for guest in episode.guests.values() for run in guest.runs.values())
    return what in ("run", "attach") and "computer's disk is full" in ending and alone and not at_work


def _excused(episode: Episode, instance: Instance) -> bool:
    """Whether something else turns it on or off: a person did, in the console or with ``hosts up``, or a note was left
    that it could not be stopped."""
    debts = [
        d for workspace in episode.workspaces for d in services_of(episode, workspace).store.pending_releases().values()
    ]
    owed = {hold["zone"] for debt in debts for hold in debt["holds"]}
    by_hand = instance.resource["labels"].get(RUN_LABEL, "").startswith(UP_PREFIX)
    return by_hand or not episode.cloud.started_by(instance) or instance.zone in owed


# ------------------------------------------------------------------------------------------------------------- the end
def check_at_the_end(episode: Episode) -> None:
    """Long after: everything is off, nothing is left to be done."""
    for instance in episode.cloud.running():
        raise Violation(f"{instance.name} is still {instance.status}, hours later")
    services = services_of(episode, episode.here)
    check(episode, services)
    _check_ledger(episode, services)
    if episode.schedule.firings is not None:
        check_firings(episode)
    for workspace in episode.workspaces if "never" not in episode.schedule.commands else ():
        _check_all_done(services_of(episode, workspace))


def _check_ledger(episode: Episode, services: Services) -> None:
    """The ledger knows what was billed: not more than was, and all of it if fcctl alone turned machines on.

    A cloud that does not answer, or not with the truth, leaves a run to assume the worst; a run may claim time of a
    machine that the cloud never had, where another one was at it, too. Those are left alone here.
    """
    kinds = {fault.kind for fault in episode.schedule.faults}
    if kinds & {"cloud_down", "lost_reply", "misreported", "other", "beside", "abroad"}:
        return
    audit(services, episode.targets, workspace="sim")
    lines = [line for line in ledger_lines(services) if line.what is None]
    known = sum(line.seconds for line in lines if not (line.machine or "").startswith(ELSEWHERE))
    cloud = episode.cloud
    true = sum(map(cloud.seconds, cloud.billed))
    if known > true + 1.0 * len(cloud.billed):
        raise Violation(f"the ledger has {known:.0f} s, {true:.0f} s were billed")
    if cloud.only_fcctl_starts and known < true - 60.0:
        raise Violation(f"the ledger has {known:.0f} s of {true:.0f} s that were billed")


def _check_all_done(services: Services) -> None:
    if services.store.pending_releases():
        raise Violation(f"still to be stopped, hours later: {services.store.pending_releases()}")
    if services.sessions.open():
        raise Violation(f"still not over, hours later: {services.sessions.open()}")
    for run_id in services.store.active():
        kinds = [entry.kind for entry in services.store.journal_of(run_id)]
        if "stopped" not in kinds:
            raise Violation(f"{run_id} is still not complete, hours later: {kinds}")
