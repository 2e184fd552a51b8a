"""Old runs' folders on a host, deleted once their results are verified at home."""

from __future__ import annotations

from fcctl_remote import wire
from orchestrator.base.errors import HostError
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.results.store_api import Store
from orchestrator.runs.services import Services

#: Finished runs that stay on a host, newest first.
KEPT_ON_HOST = 10
#: With less free space, none stays.
LOW_BYTES = 2 * 1024**3


def delete_old_runs(services: Services, link: ReconnectingHost) -> None:
    """Deletes old runs on the host that are complete here; a failure does not matter."""
    _forget_old(services, link, KEPT_ON_HOST)


def make_room(services: Services, link: ReconnectingHost) -> None:
    """Before a run is sent: on a host whose disk is nearly full, not even the newest of the old runs stay."""
    if link.call(lambda s: s.hello.free_bytes) < LOW_BYTES and (count := _forget_old(services, link, 0)):
        runs = f"{count} old run{'s' if count > 1 else ''}"
        services.observer.note(f"the disk of {link.target.name} is nearly full: {runs} deleted there")


def _forget_old(services: Services, link: ReconnectingHost, keep: int) -> int:
    """How many went."""
    count = 0
    try:
        summaries = link.session().status(None)
        ended = sorted((r.run_id for r in summaries if r.status in wire.RUN_ENDINGS), reverse=True)
        for run_id in ended[keep:]:
            if _is_home(services.store, run_id):
                link.session().forget(run_id)
                count += 1
    except HostError as e:
        services.observer.note(f"old runs stay on {link.target.name}: {e.message}")
    return count


def _is_home(store: Store, run_id: str) -> bool:
    """Whether the host has nothing of that run that is not here too."""
    return store.is_complete(run_id) and not store.get(run_id).omitted
