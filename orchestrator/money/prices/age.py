"""How old the list prices are that a plan was made with. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from orchestrator.base.errors import ConfigError
from orchestrator.machines.targets import Target
from orchestrator.money.caps import Budget, as_gcp
from orchestrator.money.prices.machine import machine_price
from orchestrator.money.prices.rates import machine_choices

#: List prices older than this many days are named in every plan; older than so many nothing is started with, unless the
#: user says so.
NAMED_AFTER_DAYS, REFUSED_AFTER_DAYS = 90, 365
_REFRESH = "fcctl cost prices --refresh fetches today's"


def price_date(target: Target, budget: Budget) -> str | None:
    """Returns the date of the oldest list price of the machines that ``target`` may start, ISO 8601; None if no list
    price counts. Raises ConfigError without a price."""
    machine = as_gcp(target)
    if machine is None or target.kind == "sandbox":
        return None
    prices = [machine_price(one, budget, machine).machine for one in machine_choices(machine, budget)]
    return min((price.date for price in prices if price.date is not None), default=None)


def age_days(date: str, now: float) -> int:
    """Whole days from ``date`` until ``now``, epoch seconds; 0 for a date to come. No date is as old as can be."""
    try:
        since = datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()
    except ValueError:
        since = 0.0
    return max(0, int((now - since) // 86400))


def price_age(target: Target, budget: Budget, now: float) -> dict[str, str | int] | None:
    """``{"date": "2026-08-20", "age_days": 96}`` of the oldest list price; None if there is none."""
    date = price_date(target, budget)
    return {"date": date, "age_days": age_days(date, now)} if date is not None else None


def old_prices(target: Target, budget: Budget, now: float, *, accepted: bool) -> str | None:
    """Returns a note about old list prices; None if they are fresh. Raises ConfigError if they are too old and not
    ``accepted``."""
    date = price_date(target, budget)
    days = age_days(date, now) if date is not None else 0
    if days <= NAMED_AFTER_DAYS:
        return None
    text = f"the list prices of {target.name} are of {date}, {days} days old"
    if days > REFUSED_AFTER_DAYS and not accepted:
        raise ConfigError(
            text,
            cause=f"with prices that are older than {REFUSED_AFTER_DAYS} days no cap is sure to hold",
            hint=f"{_REFRESH}; or say what an hour costs: usd_per_hour of [targets.{target.name}]; or go on with them:"
            " --accept-old-prices",
        )
    return f"{text}: {_REFRESH}"
