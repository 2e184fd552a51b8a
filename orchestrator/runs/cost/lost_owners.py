"""Reservations that no record will ever release: the folder of their run or session was deleted."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.clock import iso
from orchestrator.base.errors import FcctlError
from orchestrator.machines.cloud import Machine
from orchestrator.machines.cloud_api import Cloud
from orchestrator.money import ledger as books
from orchestrator.money.book import Change, Line
from orchestrator.money.ledger import NEAR_S, RunUsage, UsageRecord
from orchestrator.money.reservations import Reservation
from orchestrator.results.records import CostLine, CostRecord, MachineRecord
from orchestrator.runs.cost.owners import session_book_of, store_of
from orchestrator.runs.services import Services

#: The time for which the dollars of a machine without a price are booked, seconds.
SOME_S = 3600.0


def has_record(services: Services, one: Reservation) -> bool:
    """Whether the run or the session that a reservation was made for is in a store on this computer."""
    if one.owner == "session":
        return session_book_of(services, one).plan_of(one.owner_id) is not None
    stores = (services.store, store_of(services, one))
    return any(s.is_complete(one.owner_id) or s.plan_of(one.owner_id) is not None for s in stores)


def settle_lost(services: Services, cloud: Cloud, project: str) -> list[Reservation]:
    """Releases reservations in a cloud project whose owner has no record and whose machine the cloud says is off. Their
    cost is booked as an upper bound unless the ledger has the machine's own history."""
    state, now = services.spending.state(), services.clock.now()
    power = books.latest(one for _, one in state.of("power", UsageRecord))
    lost = [
        one for one in state.open().values() if one.cloud_project == project and _is_lost(services, one, power, now)
    ]
    machines = _all_machines(cloud) if lost else None
    if machines is None:
        return []
    on = {machine.name for machine in machines if machine.billed}
    off = [one for one in lost if one.instance not in on]
    if off:
        with services.spending.changing() as change:
            open_ = change.state.open()
            for one in off:
                if one.reservation_id in open_:
                    change.release(one)
                    if not (one.emulated or _is_covered(one, power, machines)):
                        _book(change, one, power)
    return off


def _all_machines(cloud: Cloud) -> list[Machine] | None:
    """None if a part of the cloud does not answer."""
    try:
        machines, unasked = cloud.machines({})
    except FcctlError:
        return None
    return None if unasked else machines


def _is_lost(services: Services, one: Reservation, power: Sequence[UsageRecord], now: float) -> bool:
    """Whether no record can release it. A machine that a person turned on, or a kept one, may be about to start until
    the cloud has shown it."""
    if one.owner in ("run", "wake", "session"):
        return not has_record(services, one)
    seen = any((s.project, s.name) == one.machine and s.started >= one.at - NEAR_S for s in power)
    return not seen and now - one.at > NEAR_S


def _is_covered(one: Reservation, power: Sequence[UsageRecord], machines: Sequence[Machine]) -> bool:
    """Whether the ledger has all of the machine's time since the reservation."""
    there = {machine.id for machine in machines}
    return any(
        s.stopped is not None and (s.stopped >= one.at or (s.instance_id in there and s.seen >= one.at))
        for s in power
        if (s.project, s.name) == one.machine
    )


def _book(change: Change, one: Reservation, power: Sequence[UsageRecord]) -> None:
    """All that was reserved, from then on."""
    rate = next(
        (s.usd_per_hour for s in reversed(power) if (s.project, s.name) == one.machine and s.usd_per_hour), None
    )
    seconds = SOME_S if rate is None else one.usd / rate * 3600
    cost = CostRecord(
        usd=one.usd, usd_per_hour=rate or 0.0, billed_s=seconds, upper_bound=True,
        breakdown=[CostLine(activity="lost", seconds=seconds, usd=one.usd)],
    )  # fmt: skip
    began = iso(one.at) or ""
    machine = MachineRecord(project=one.cloud_project, zone="", name=one.instance, instance_id="", began=began)
    usage = RunUsage(
        run_id=one.reservation_id, job="(no record)", target=one.target, created=began, started=began, cost=cost,
        machine=machine, firing=one.firing,
    )  # fmt: skip
    # It is booked for the workspace that made it, also if another one finds it.
    change.lines.append(Line("run", one.project, one.results, usage.model_dump(mode="json")))
