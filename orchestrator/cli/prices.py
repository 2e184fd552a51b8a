"""From a target, and the prices that the command line accepts, to the budget that its plan is made with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.cli.amounts import PRICE_OPTIONS
from orchestrator.machines.provision.wake_options import AcceptedPrices
from orchestrator.machines.targets import CloudTarget

if TYPE_CHECKING:
    from orchestrator.machines.targets import Target
    from orchestrator.money.caps import Budget
    from orchestrator.runs.services import Services


def accepting_prices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that accept a price; it gets them as ``accepted``."""

    @functools.wraps(function)
    def with_options(*args: Any, accept_price: bool, accept_old_prices: bool, **given: Any) -> Any:
        return function(*args, accepted=AcceptedPrices(accept_price, accept_old_prices), **given)

    for option in reversed(PRICE_OPTIONS):
        with_options = option(with_options)
    return with_options


def own_price(services: Services, target: Target, budget: Budget, accepted: AcceptedPrices) -> Budget:
    """``budget`` reckoned with the machine that the cloud shows for ``target``.

    Raises:
        BudgetError, ConfigError: it is too dear, or its price is not known or too old, and that was not accepted.
    """
    if not isinstance(target, CloudTarget):
        return budget
    from orchestrator.runs.cost.own_price import with_own_price

    return with_own_price(services, target, budget, accepted)
