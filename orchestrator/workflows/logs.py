"""The logs of a run's steps, from the store once they are home, from the host before that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fcctl_remote import wire
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.errors import NotFoundError, RunNotFinished, RunNotFound, did_you_mean
from orchestrator.ports import Services
from orchestrator.workflows.link import Link
from orchestrator.workflows.resume import new_link, saved_plan

_CHUNK = 1 << 20
_ARRIVAL_POLL_S = 0.3


@dataclass(frozen=True)
class LogPiece:
    step: str
    data: bytes


def read_logs(services: Services, run_id: str, step: str | None, *, wait: bool) -> Iterator[LogPiece]:
    """The log of one step, or of all in order, in pieces; with ``wait``, also what is still to come.

    Raises:
        NotFoundError: the run has no such step.
    """
    if services.store.is_complete(run_id):
        yield from _from_store(services, run_id, step)
        return
    saved = saved_plan(services, run_id)
    if saved is None:
        raise RunNotFound(f"no run {run_id}", hint="fcctl results ls lists the runs, fcctl ps the active ones")
    yield from _from_host(services, saved, step, wait=wait)


def _from_store(services: Services, run_id: str, step: str | None) -> Iterator[LogPiece]:
    record, folder = services.store.get(run_id), services.store.folder(run_id)
    _check_step(step, [s.id for s in record.steps])
    for result in record.steps:
        path = folder / "steps" / result.id / "log.txt"
        if step not in (None, result.id) or not path.is_file():
            continue
        with path.open("rb") as f:
            while data := f.read(_CHUNK):
                yield LogPiece(result.id, data)


def _from_host(services: Services, saved: SavedPlan, step: str | None, *, wait: bool) -> Iterator[LogPiece]:
    ids = [s.id for s in saved.plan.steps]
    _check_step(step, ids)
    link = new_link(services, saved.target)
    ended: set[str] = set()
    request = wire.WatchRequest(run_id=saved.plan.run_id, wait_s=5.0 if wait else 0.0)
    try:
        _await_arrival(services, link, saved, wait=wait)
        for step_id in ids if step is None else [step]:
            yield from _follow_step(link, request, step_id, ended, wait=wait)
    finally:
        link.close()


def _await_arrival(services: Services, link: Link, saved: SavedPlan, *, wait: bool) -> None:
    """Return once the host has the run, whose source may still be on its way.

    Raises:
        RunNotFinished: it has not, and nobody waits, or nobody will bring it there any more.
    """
    run_id = saved.plan.run_id
    while not link.call(lambda s: s.status([run_id])):
        if not wait or run_id not in services.store.active():
            raise RunNotFinished(
                f"run {run_id} is not on {saved.target.name}: there is no log of it",
                hint="while its source is being sent, fcctl logs -f waits for it; fcctl ps tells how it stands",
            )
        services.clock.sleep(_ARRIVAL_POLL_S)


def _follow_step(
    link: Link, request: wire.WatchRequest, step: str, ended: set[str], *, wait: bool
) -> Iterator[LogPiece]:
    request.log_step, request.log_offset = step, 0
    while True:
        reply, data = link.call(lambda s: s.watch(request))
        request.events_offset = reply.events_offset
        ended.update(str(e.data.get("step")) for e in reply.events if e.type == "step_finished")
        if data:
            yield LogPiece(step, data)
            request.log_offset = reply.log_offset + len(data)
            continue
        over = step in ended or reply.summary.status in wire.RUN_ENDINGS
        if request.log_offset >= reply.log_size and (over or not wait):
            return


def _check_step(step: str | None, known: list[str]) -> None:
    if step is not None and step not in known:
        raise NotFoundError(f"the run has no step '{step}'", hint=did_you_mean(step, known))
