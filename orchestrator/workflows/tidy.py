"""Old runs' folders on a host, deleted once their results are verified at home."""

from __future__ import annotations

from fcctl_remote import wire
from orchestrator.errors import HostError
from orchestrator.ports import Services, Store
from orchestrator.workflows.link import Link

#: Finished runs kept on a host, newest first, for whoever logs in there.
KEPT_ON_HOST = 10


def tidy_host(services: Services, link: Link) -> None:
    """Have the host forget old runs whose results are complete here; a courtesy, so its failure is nobody's."""
    try:
        summaries = link.session().status(None)
        ended = sorted((r.run_id for r in summaries if r.status in wire.RUN_ENDINGS), reverse=True)
        for run_id in ended[KEPT_ON_HOST:]:
            if _is_home(services.store, run_id):
                link.session().forget(run_id)
    except HostError as e:
        services.observer.note(f"old runs stay on {link.target.name}: {e.message}")


def _is_home(store: Store, run_id: str) -> bool:
    """Whether the host has nothing of that run that is not here too."""
    return store.is_complete(run_id) and not store.get(run_id).omitted
