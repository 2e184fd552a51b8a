"""What is looked at while a run is followed: its caps, and its machine's limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.results.store_api import Journal
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.machines.provision.find import Log
    from orchestrator.runs.machine.hold import RunLease

Watcher = Callable[[wire.WatchReply], None]


def watchers(
    services: Services,
    link: ReconnectingHost,
    saved: SavedPlan,
    journal: Journal,
    log: Log,
    machine: RunLease | None,
) -> Watcher:
    """One call with each answer of the host, for all of them."""
    found: list[Watcher] = []
    if saved.caps:
        from orchestrator.runs.cost.budget_guard import watcher

        found.append(watcher(services, link, saved, journal, log))
    if machine is not None:
        glance = machine.watch.glance
        found.append(lambda _: glance())

    def watch(reply: wire.WatchReply) -> None:
        for each in found:
            each(reply)

    return watch
