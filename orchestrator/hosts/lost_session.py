"""Stops the machine of a session whose files cannot be read: the ledger has its reservation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.hosts.hosts import down
from orchestrator.machines.provision.release import Released
from orchestrator.machines.targets import CloudTarget, SandboxTarget, Target
from orchestrator.runs.services import Services


@dataclass(frozen=True)
class LostSession:
    """A session of this workspace that the ledger has a reservation for, and whose plan cannot be read."""

    session_id: str
    target: CloudTarget | SandboxTarget


def lost_sessions(services: Services, targets: Mapping[str, Target]) -> Iterator[LostSession]:
    """Those on the machines of ``targets``, oldest first."""
    book = services.spending
    for one in sorted(book.state().open().values(), key=lambda one: one.at):
        target = targets.get(one.target)
        is_own = one.owner == "session" and one.results == book.scope.results
        is_lost = is_own and services.sessions.plan_of(one.owner_id) is None
        if is_lost and isinstance(target, CloudTarget | SandboxTarget):
            yield LostSession(one.owner_id, target)


def stop(services: Services, lost: LostSession, *, workspace: str, force: bool = False) -> list[Released]:
    """Stops its machine as ``hosts down`` does, which books the cost. Raises ConflictError if a run uses it and not
    ``force``; CloudError, AuthError if it may be on."""
    machine = services.clouds.if_there(lost.target)
    return [] if machine is None else down(services, machine, workspace=workspace, force=force)
