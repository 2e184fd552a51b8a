"""Reservations: dollars set aside before a start, and what of them may still be spent. Pure. A reservation is released
by its owner's record or by the machine's history, never by time. Of one machine, the larger counts of what keeps it on
and what runs on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from orchestrator.base.models import KEPT
from orchestrator.money.caps import FENCE_LATENESS_S
from orchestrator.money.ledger import IDLE, NEAR_S, Line, UsageRecord

#: ``wake``: a machine that is turned on only to fetch a run's results. ``up``: by ``fcctl hosts up``. ``kept``: left on
#: after a run, because its target says so or because it could not be stopped.
#: How long after its deadline and the late-stop allowance a machine counts as off, unseen, seconds.
SURELY_OFF_S = 60.0

Owner = Literal["run", "session", "wake", "up", "kept"]


class Reservation(BaseModel):
    """Dollars that a start may cost at most."""

    model_config = KEPT

    reservation_id: str
    owner: Owner
    #: The run or session whose record releases it; of ``up``, its own id.
    owner_id: str
    #: The name of the fcctl project, and the ``results`` folder that has the owner's record.
    project: str
    results: str
    target: str
    #: The cloud's machine; empty for one that is simply there.
    cloud_project: str = ""
    instance: str = ""
    #: The start of the machine that it is for, once it is known: its id, and when it was started by the cloud's clock.
    instance_id: str = ""
    started: float | None = None
    #: Until then: the machine's last start that was known when it was made. Its own is later.
    newer_than: float = 0.0
    #: When it was made, epoch seconds.
    at: float
    usd: float
    #: Nobody pays: it is the sandbox's.
    emulated: bool = False
    #: No start was requested yet, so that nothing can cost; the first request makes the reservation anew.
    unasked: bool = False
    #: The schedule's firing that it was made for; see :mod:`orchestrator.money.firings`.
    firing: str | None = None

    @property
    def machine(self) -> tuple[str, str]:
        """Cloud project and instance; of a machine that is simply there, the target."""
        return (self.cloud_project, self.instance) if self.instance else ("", self.target)


@dataclass(frozen=True)
class Scope:
    """Whose money a cap counts: this project's, in every checkout, and that of its targets' machines, whoever used them
    here."""

    project: str
    results: str
    #: (cloud project, instance) of the workspace's targets.
    machines: frozenset[tuple[str, str]] = frozenset()

    def has(self, project: str, results: str, machine: tuple[str, str] | None) -> bool:
        return project == self.project or results == self.results or (machine is not None and machine in self.machines)


@dataclass(frozen=True)
class Reserved:
    """A reservation, and what of it may still be spent beyond what the ledger has, dollars."""

    reservation: Reservation
    usd: float


def remaining(reservations: Iterable[Reservation], lines: Sequence[Line]) -> list[Reserved]:
    """Returns what may still be spent of each: less what the ledger ``lines`` have of its machine since it was made."""
    by_machine: dict[tuple[str, str], list[Reservation]] = {}
    for one in reservations:
        if not one.emulated:
            by_machine.setdefault(one.machine, []).append(one)
    # The ledger's lines have no cloud project: two machines of one name cannot be told apart.
    names = [name for project, name in by_machine if project]
    reserved: list[Reserved] = []
    for machine, group in by_machine.items():
        known = machine[0] and names.count(machine[1]) == 1
        of_it = [line for line in lines if _is_of(line, machine[1])] if known else []
        keeping = [_left(one, of_it) for one in group if one.owner in ("up", "kept")]
        using = [_left(one, of_it) for one in group if one.owner == "session"]
        using += _left_of_runs([one for one in group if one.owner in ("run", "wake")], of_it)
        larger = max(keeping, using, key=lambda side: sum(one.usd for one in side))
        reserved += larger
        reserved += [Reserved(one.reservation, 0.0) for one in (*keeping, *using) if one not in larger]
    return sorted(reserved, key=lambda r: (r.reservation.at, r.reservation.reservation_id))


def _left(one: Reservation, lines: Sequence[Line]) -> Reserved:
    """Of one that is for a whole start of the machine: less all that the ledger has of the machine since then."""
    return Reserved(one, max(0.0, one.usd - sum(_usd_since(line, _since(one)) for line in lines)))


def _left_of_runs(group: Sequence[Reservation], lines: Sequence[Line]) -> list[Reserved]:
    """Of runs, which have no lines yet: less the time of their machine since each that no run has, each dollar once."""
    idle, taken, reserved = [line for line in lines if line.activity == IDLE], 0.0, []
    for one in sorted(group, key=lambda r: (-_since(r), r.at)):
        spent = min(one.usd, max(0.0, sum(_usd_since(line, _since(one)) for line in idle) - taken))
        reserved.append(Reserved(one, one.usd - spent))
        taken += spent
    return reserved


def _since(one: Reservation) -> float:
    return one.at if one.started is None else one.started


def _usd_since(line: Line, since: float) -> float:
    return line.usd * min(1.0, max(0.0, line.start + line.seconds - since) / line.seconds) if line.seconds > 0 else 0.0


def _is_of(line: Line, name: str) -> bool:
    """Whether the line is of a machine of that name; its id is not known before the machine was made."""
    return line.machine is not None and line.machine.rpartition(" (")[0] == name


# --------------------------------------------------------------------------------- what the machine's history says
def is_off(one: Reservation, power: Sequence[UsageRecord], now: float) -> bool:
    """Whether a machine that was left on is off: the cloud said so, or its deadline has passed."""
    if one.owner not in ("up", "kept"):
        return False
    of_it = (s for s in power if (s.project, s.name) == one.machine and is_start_of(one, s))
    last = max(of_it, key=lambda s: s.started, default=None)
    if last is not None and (last.stopped is not None or is_past_deadline(last.fence, now)):
        return True
    newer = [s for s in power if one.instance_id and s.instance_id == one.instance_id]
    return bool(one.started) and any(s.started > (one.started or 0.0) + 1.0 for s in newer)


def is_past_deadline(deadline: float | None, now: float) -> bool:
    """Whether a machine with this deadline is off by now, whatever was seen of it."""
    return deadline is not None and now > deadline + FENCE_LATENESS_S + SURELY_OFF_S


def is_start_of(one: Reservation, record: UsageRecord) -> bool:
    """Whether the record is of the start that the reservation is for."""
    if one.started is not None:
        return record.instance_id == one.instance_id and abs(record.started - one.started) <= 1.0
    return record.started >= one.at - NEAR_S and record.started > one.newer_than + 1.0
