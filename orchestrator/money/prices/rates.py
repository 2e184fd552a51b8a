"""What an hour of a target is planned to cost: in each zone, price model and machine that a start may end in. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel

from orchestrator.base.errors import ConfigError
from orchestrator.base.models import KEPT
from orchestrator.machines.targets import CloudTarget, Target
from orchestrator.money.caps import Budget

if TYPE_CHECKING:
    from orchestrator.machines.cloud import Hardware


class HourlyPlan(BaseModel):
    """What an hour of a target is planned to cost, dollars: part of a run's and of a session's plan."""

    model_config = KEPT

    #: The machine with its GPUs, in the place that is tried first.
    usd_per_hour: float = 0.0
    #: The same in each ``zone/model`` that a start may end in, ``us-west1-c/spot``.
    usd_by_place: dict[str, float] = {}
    #: The same in the dearest of them; None: the same.
    worst_usd_per_hour: float | None = None
    #: At most what the disks and the external address cost beside that; None: not planned, in an older version's plan.
    rest_usd_per_hour: float | None = None

    @property
    def worst_machine_rate(self) -> float:
        """Dollars an hour of the machine with its GPUs alone, in the dearest place."""
        return self.usd_per_hour if self.worst_usd_per_hour is None else self.worst_usd_per_hour

    @property
    def rest_rate(self) -> float:
        """Dollars an hour of the machine's disks and its address, at most."""
        return self.rest_usd_per_hour or 0.0

    @property
    def worst_rate(self) -> float:
        """Dollars an hour of all of it in the dearest place."""
        return self.worst_machine_rate + self.rest_rate

    def rate_in(self, zone: str, *, spot: bool, shown: float | None) -> float:
        """Dollars an hour of the machine that came: as the cloud ``shown`` it, else as planned."""
        if shown is not None:
            return shown
        return self.usd_by_place.get(f"{zone}/{'spot' if spot else 'on_demand'}", self.usd_per_hour)


def hourly_plan(target: Target, budget: Budget) -> HourlyPlan:
    """Returns what an hour of ``target`` is planned to cost, over all :func:`machine_choices`. Raises ConfigError
    without a price."""
    if (machine := target.cloud) is None:
        usd = usd_per_hour(target, budget)
        return HourlyPlan(usd_per_hour=usd, worst_usd_per_hour=usd, rest_usd_per_hour=0.0)
    from orchestrator.money.prices.machine import machine_price

    choices = [(one, machine_price(one, budget, machine)) for one in machine_choices(machine, budget)]
    by_place: dict[str, float] = {}
    for one, price in choices:
        place = f"{one.zone}/{'spot' if one.spot else 'on_demand'}"
        by_place[place] = max(price.usd, by_place.get(place, 0.0))
    worst = max(by_place.values())
    rest = max(price.usd + price.rest_usd for _, price in choices) - worst
    return HourlyPlan(
        usd_per_hour=choices[0][1].usd, usd_by_place=by_place, worst_usd_per_hour=worst, rest_usd_per_hour=rest
    )


def machine_choices(target: CloudTarget, budget: Budget) -> list[Hardware]:
    """Returns the machines that a start may end in, first choice first: those that the cloud shows, and those that may
    be made."""
    from orchestrator.machines.provision.actions import hardware

    seen = budget.seen(target)
    if seen and not (target.create and target.on_stockout == "rebuild"):
        return list(seen)
    made = [hardware(target, zone, spot=way == "spot") for way in target.ways for zone in target.zones]
    return [*seen, *made]


def usd_per_hour(target: Target, budget: Budget) -> float:
    """Returns dollars per hour of ``target``: its own price, else the budget's, else the list's of its first choice,
    else 0. Raises ConfigError for a gcp target without a price."""
    if (machine := target.cloud) is not None:
        from orchestrator.money.prices.machine import machine_price

        return machine_price(machine_choices(machine, budget)[0], budget, machine).usd
    if target.usd_per_hour is not None:
        return target.usd_per_hour
    if target.kind == "ssh" and budget.usd_per_hour is not None:
        return budget.usd_per_hour
    return 0.0


# ------------------------------------------------------------------------------------------- how old list prices are
#: List prices older than this many days are named in every plan; older than so many nothing is started with, unless the
#: user says so.
NAMED_AFTER_DAYS, REFUSED_AFTER_DAYS = 90, 365
_REFRESH = "get today's prices: fcctl cost prices --refresh"


class PriceAge(NamedTuple):
    """Of list prices: their date, ISO 8601, and how many whole days ago that is."""

    date: str
    days: int


def price_age(target: Target, budget: Budget, now: float) -> PriceAge | None:
    """Returns the age at ``now``, epoch seconds, of the oldest list price of the machines that ``target`` may start;
    None if no list price counts. A damaged date is as old as can be. Raises ConfigError without a price."""
    machine = target.cloud
    if machine is None or target.kind == "sandbox":
        return None
    from orchestrator.money.prices.machine import machine_price

    prices = [machine_price(one, budget, machine).machine for one in machine_choices(machine, budget)]
    date = min((price.date for price in prices if price.date is not None), default=None)
    if date is None:
        return None
    try:
        since = datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()
    except ValueError:
        since = 0.0
    return PriceAge(date, max(0, int((now - since) // 86400)))


def old_prices(target: Target, budget: Budget, now: float, *, accepted: bool) -> str | None:
    """Returns a note about old list prices; None if they are fresh. Raises ConfigError if they are too old and not
    ``accepted``."""
    age = price_age(target, budget, now)
    if age is None or age.days <= NAMED_AFTER_DAYS:
        return None
    text = f"the list prices of {target.name} are from {age.date}, {age.days} days old"
    if age.days > REFUSED_AFTER_DAYS and not accepted:
        raise ConfigError(
            text,
            cause=f"prices older than {REFUSED_AFTER_DAYS} days are too uncertain for a cap",
            hint=f"{_REFRESH}; or set the price of an hour: usd_per_hour in [targets.{target.name}]; or accept the "
            f"old prices: --accept-old-prices",
        )
    return f"{text}: {_REFRESH}"
