"""The logs of a run's steps, from the store once they are collected, from the host before that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fcctl_remote import wire
from orchestrator.base.errors import (
    HostError,
    HostFault,
    LinkLost,
    NotFoundError,
    RunNotFinished,
    RunNotFound,
    did_you_mean,
)
from orchestrator.base.safe_paths import open_result
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.runs import local_steps as prewake
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import Stage, fold
from orchestrator.runs.reopen import new_link, saved_plan
from orchestrator.runs.services import Services

_CHUNK = 1 << 20
_ARRIVAL_POLL_S = 0.3


@dataclass(frozen=True)
class LogPiece:
    step: str
    data: bytes


def read_logs(services: Services, run_id: str, step: str | None, *, wait: bool) -> Iterator[LogPiece]:
    """Yields the log of one step, or of all in order; with ``wait``, also what is still to come. If the run is
    collected meanwhile, the rest is read here. Raises NotFoundError for an unknown step."""
    saved = None if services.store.is_complete(run_id) else saved_plan(services, run_id)
    if saved is None:
        if not services.store.is_complete(run_id):  # asked again: it may just have been completed
            raise RunNotFound(f"no run {run_id}", hint="to list finished runs: fcctl results ls; active runs: fcctl ps")
        for one in _chosen(step, [s.id for s in services.store.get(run_id).steps]):
            yield from _from_store(services, run_id, one)
        return
    here, there = [s.id for s in saved.before_wake], [s.id for s in saved.plan.steps]
    chosen = _chosen(step, [*here, *there])
    yield from _from_here(services, run_id, [one for one in here if one in chosen], wait=wait)
    if wanted := [one for one in there if one in chosen]:
        yield from _from_host(services, saved, wanted, wait=wait)


def _chosen(step: str | None, known: list[str]) -> list[str]:
    if step is None:
        return known
    if step not in known:
        none = "the run ended before its first step; for the reason: fcctl results show"
        raise NotFoundError(f"the run has no step '{step}'", hint=did_you_mean(step, known) if known else none)
    return [step]


def _from_store(services: Services, run_id: str, step: str, offset: int = 0) -> Iterator[LogPiece]:
    folder: Path | None = None
    while True:
        earlier, folder = folder, services.store.folder(run_id)
        if folder == earlier:
            return  # there is no log, or a link or a pipe stands there
        # Else look again after a failure: the folder gets its final name when the run is complete.
        with suppress(OSError, ValueError):
            file, _size = open_result(folder, f"steps/{step}/log.txt")
            break
    with file:
        file.seek(offset)
        while data := file.read(_CHUNK):
            yield LogPiece(step, data)


def _from_here(services: Services, run_id: str, steps: Sequence[str], *, wait: bool) -> Iterator[LogPiece]:
    """Yields the logs of the steps on this computer, while they run or afterwards."""
    read = dict.fromkeys(steps, 0)
    if steps and fold(services.store.journal_of(run_id)).before_wake == "running":
        with ReconnectingHost(services.hosts, prewake.HERE, services.clock, services.observer) as link:
            try:
                if link.call(lambda s: s.status([run_id])):
                    for piece in _followed(link, run_id, steps, wait=wait):
                        yield piece
                        read[piece.step] += len(piece.data)
                    return
            except HostFault as fault:
                if fault.fault != "not_found":  # else it has just been collected, and deleted there
                    raise
    for step, offset in read.items():
        yield from _from_store(services, run_id, step, offset)


def _from_host(services: Services, saved: SavedPlan, steps: Sequence[str], *, wait: bool) -> Iterator[LogPiece]:
    run_id, read = saved.plan.run_id, dict.fromkeys(steps, 0)

    def is_collected() -> bool:
        """Then its machine may be off."""
        store = services.store
        return store.is_complete(run_id) or fold(store.journal_of(run_id)).stage is Stage.COLLECTED

    def doubt() -> None:
        if is_collected():
            raise LinkLost(f"{saved.target.name} has been released")

    try:
        if not is_collected():
            with new_link(services, saved.target) as link:
                link.doubts.append(doubt)
                _await_arrival(services, link, saved, wait=wait)
                for piece in _followed(link, run_id, steps, wait=wait):
                    yield piece
                    read[piece.step] += len(piece.data)
            return
    except (HostError, RunNotFinished):
        if not is_collected():
            raise
    for step, offset in read.items():
        yield from _from_store(services, run_id, step, offset)


def _await_arrival(services: Services, link: ReconnectingHost, saved: SavedPlan, *, wait: bool) -> None:
    """Returns once the host has the run. Raises RunNotFinished if it has not, and nobody waits or will send it."""
    run_id = saved.plan.run_id
    while not link.call(lambda s: s.status([run_id])):
        if not wait or run_id not in services.store.active():
            raise RunNotFinished(
                f"{saved.target.name} does not have run {run_id}: no log",
                hint="if its source is still being sent, wait with: fcctl logs -f; for its status: fcctl ps",
            )
        services.clock.sleep(_ARRIVAL_POLL_S)


def _followed(link: ReconnectingHost, run_id: str, steps: Sequence[str], *, wait: bool) -> Iterator[LogPiece]:
    """Yields what the host has of each step's log; with ``wait``, until the step has ended."""
    request = wire.WatchRequest(run_id=run_id, wait_s=5.0 if wait else 0.0)
    ended: set[str] = set()
    for step in steps:
        request.log_step, request.log_offset = step, 0
        while True:
            reply, data = link.call(lambda s: s.watch(request))
            request.events_offset = reply.events_offset
            ended.update(str(e.data.get("step")) for e in reply.events if e.type == "step_finished")
            if data:
                yield LogPiece(step, data)
                request.log_offset = reply.log_offset + len(data)
                continue
            if not wait or step in ended or reply.summary.status in wire.RUN_ENDINGS:
                break  # whatever size the host claims: it sends what it has
