"""Watch a run until it ends. Nothing here is needed for the run to go on."""

from __future__ import annotations

from collections.abc import Callable

from fcctl_remote import wire
from orchestrator.base.errors import HostFault
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.runs.services import Services

POLL_S = 5.0


def follow(
    link: ReconnectingHost, run_id: str, services: Services, also: Callable[[wire.WatchReply], None] | None = None
) -> wire.RunSummary | None:
    """Reports events and progress until the run has ended, each event once; ``also`` is called with each reply. Returns
    the last summary; None if the host does not know the run."""
    request = wire.WatchRequest(run_id=run_id, log_step="@current", tail=True, wait_s=POLL_S)
    while True:
        try:
            reply, tail = link.call(lambda s: s.watch(request))
        except HostFault as e:
            if e.fault == "not_found":
                return None
            raise
        for event in reply.events:
            services.observer.event(event)
        request.events_offset = reply.events_offset
        if reply.log_step is not None:  # else the same part is sent again and again
            request.log_offset = reply.log_offset + len(tail)
        services.observer.progress(reply, tail)
        if also is not None:
            also(reply)
        if reply.summary.status in wire.RUN_ENDINGS:
            return reply.summary
