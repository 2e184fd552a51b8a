"""What is looked at while a run is followed: its caps, and its machine's limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.ports import Journal, Services
from orchestrator.workflows.link import Link

if TYPE_CHECKING:
    from orchestrator.workflows.hold import MachineHold

Watcher = Callable[[wire.WatchReply], None]


def watchers(
    services: Services,
    link: Link,
    saved: SavedPlan,
    journal: Journal,
    log: Callable[..., None],
    machine: MachineHold | None,
) -> Watcher:
    """One call with each answer of the host, for all of them."""
    found: list[Watcher] = []
    if saved.caps:
        from orchestrator.workflows.guard import watcher

        found.append(watcher(services, link, saved, journal, log))
    if machine is not None:
        glance = machine.watch.glance
        found.append(lambda _: glance())

    def watch(reply: wire.WatchReply) -> None:
        for each in found:
            each(reply)

    return watch
