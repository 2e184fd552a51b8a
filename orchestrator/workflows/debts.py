"""Machines that could not be stopped when their run was home: tried again by every command that looks at runs."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.domain.target import GcpTarget, Target
from orchestrator.errors import FcctlError
from orchestrator.ports import Services
from orchestrator.workflows.machines import in_cloud
from orchestrator.workflows.neighbours import neighbours
from orchestrator.workflows.release import Hold, others_on_host, release
from orchestrator.workflows.session import open_on

_TARGET: TypeAdapter[Target] = TypeAdapter(Target)
_HOLDS = TypeAdapter(list[Hold])


def pay(services: Services) -> None:
    """Stop what was left on, unless another run is on it, or about to be: then it is asked again after that."""
    for run_id, debt in services.store.owed().items():
        try:
            if _is_paid(services, run_id, debt):
                services.store.paid(run_id)
        except FcctlError as error:
            why = f" ({error.cause})" if error.cause else ""
            services.observer.note(f"the machine of {run_id} is still not stopped: {error.message}{why}")


def _is_paid(services: Services, run_id: str, debt: dict[str, Any]) -> bool:
    try:
        target = _TARGET.validate_python(debt.get("target"))
        holds = _HOLDS.validate_python(debt.get("holds"))
    except ValidationError:
        services.observer.note(f"what was written down about the machine of {run_id} cannot be read: fcctl hosts audit")
        return True
    machine = in_cloud(services, target)
    if machine is None or not holds:
        return True
    if services.sessions.open() and _is_of_session(services, machine, holds):
        return True  # it was off before the session turned it on, and the session sees to it now
    if any(n.state.machine in ("held", "leaving") for n in neighbours(services, machine, None)):
        return False
    if others_on_host(services, machine, run_id) is not None:
        return False
    release(services, machine, holds, "stop", _unwritten)
    services.observer.note(f"{machine.instance}, which {run_id} could not stop, is off now")
    return True


def _is_of_session(services: Services, target: GcpTarget, holds: list[Hold]) -> bool:
    cloud = services.clouds.open(target)
    seen = [cloud.machine(hold.zone, target.instance) for hold in holds]
    return all(one is not None and open_on(services, one.id, one.started) for one in seen)


def _unwritten(kind: str, **data: object) -> None:
    """The debt itself is the journal: it is struck out only when the machine is off."""
