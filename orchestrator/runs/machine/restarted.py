"""Whether a machine that a run turned on went off and was turned on again by a person: then it is theirs."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.journal import JournalEntry
from orchestrator.leases.machine_lease import started_between
from orchestrator.machines.cloud import Machine
from orchestrator.machines.power_history import off_at
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.audit import Claim, start_of
from orchestrator.runs.services import Services

#: Who has it then, in journals.
PERSON = "a person, who started it since"


def off_before_a_person(
    services: Services, target: CloudTarget, seen: Machine, run_id: str, entries: Sequence[JournalEntry]
) -> tuple[bool, float | None]:
    """Whether a person has restarted the machine since, and when it went off before, epoch seconds. Asks the cloud only
    if it was started after the run's own start. Raises CloudError, AuthError."""
    claim = Claim(run_id, "over", turned_on=started_between(entries))
    if claim.turned_on is None or claim.is_of(seen) or not seen.billed:
        return False, None
    history = services.clouds.open(target).operations(seen.zone, seen.name)
    start = start_of(seen, history, [claim])
    if start.started_by != "person" or not start.certain:  # another fcctl's start must not leave it on for ever
        return False, None
    return True, off_at(history, seen.id, claim.turned_on[0])
