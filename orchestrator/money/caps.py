"""What a run may cost: the caps of ``[budget]``, and the worst case of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field, PrivateAttr, field_validator

from orchestrator.base.errors import ConfigError
from orchestrator.base.models import WRITTEN
from orchestrator.base.text.timezones import zone
from orchestrator.machines.targets import CloudTarget, IdleGpu, SandboxTarget, Target

if TYPE_CHECKING:
    from fcctl_remote import wire
    from orchestrator.machines.cloud import Hardware
    from orchestrator.money.prices.table import PriceTable

Window = Literal["day", "month", "project"]
#: Dollars that a person may mean.
Usd = Annotated[float, Field(gt=0, le=1_000_000)]

#: A GiB from a cloud to the internet, dollars: the upper end of the premium tier for the first TiB of a month, as third
#: parties quote it. Not read at Google, and farther places cost more: https://cloud.google.com/vpc/network-pricing.
EGRESS_USD_PER_GIB = 0.12
#: The cloud enforces ``maxRunDuration`` up to this much late, and bills a machine that was on at all for a minute.
#: https://cloud.google.com/compute/docs/instances/limit-vm-runtime, https://cloud.google.com/compute/vm-instance-pricing
FENCE_LATENESS_S = 30.0
MINIMUM_BILLED_S = 60.0
#: Past the boot and the worst case of a run's steps, for sending the source and fetching the results.
TRANSFER_MARGIN_S = 15 * 60.0


class Budget(BaseModel):
    """Caps in dollars; an absent cap does not bind."""

    model_config = WRITTEN

    per_run_usd: Usd | None = None
    per_session_usd: Usd | None = None
    per_day_usd: Usd | None = None
    per_month_usd: Usd | None = None
    project_usd: Usd | None = None
    #: Price of an hour on a billed machine whose target names none.
    usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    #: IANA name of the zone whose days and months all money is counted in.
    timezone: Annotated[str, Field(max_length=64)] = "UTC"
    #: When a run is ended because it leaves the GPU idle, where neither its job nor its target says.
    idle: IdleGpu | None = None
    #: Returns the price list in force.
    _prices: Callable[[], PriceTable] | None = PrivateAttr(default=None)
    #: What the clouds show of targets' machines, by project and instance.
    _seen: Mapping[tuple[str, str], tuple[Hardware, ...]] = PrivateAttr(default_factory=dict)

    @field_validator("timezone")
    @classmethod
    def _zone_is_known(cls, value: str) -> str:
        zone(value)
        return value

    @property
    def zone(self) -> tzinfo:
        """The zone whose days and months all money is counted in."""
        return zone(self.timezone)

    def with_prices(self, prices: Callable[[], PriceTable]) -> Budget:
        """The same caps with the price list that ``prices`` returns."""
        made = self.model_copy()
        made._prices = prices  # noqa: SLF001 - the copy's, that nobody else has yet
        return made

    def with_seen(self, target: CloudTarget, found: Iterable[Hardware]) -> Budget:
        """The same caps with the machines that the cloud shows for ``target``."""
        made = self.model_copy()
        made._seen = {**self._seen, (target.project, target.instance): tuple(found)}  # noqa: SLF001 - as above
        return made

    def seen(self, target: CloudTarget) -> tuple[Hardware, ...]:
        """The machines of :meth:`with_seen`."""
        return self._seen.get((target.project, target.instance), ())

    @property
    def prices(self) -> PriceTable:
        """The price list in force. Raises RuntimeError if :meth:`with_prices` was not called."""
        if self._prices is None:
            raise RuntimeError("the budget was given no price list")
        return self._prices()

    @property
    def over_runs(self) -> list[tuple[Window, str, float]]:
        """(window, name of its setting, dollars) of the caps that count the cost of other runs."""
        caps: list[tuple[Window, str, float | None]] = [
            ("day", "per_day_usd", self.per_day_usd), ("month", "per_month_usd", self.per_month_usd),
            ("project", "project_usd", self.project_usd),
        ]  # fmt: skip
        return [(window, key, usd) for window, key, usd in caps if usd is not None]

    @property
    def holds_over_runs(self) -> bool:
        """Whether a cap counts the cost of other runs."""
        return bool(self.over_runs)


def dollars(usd: float) -> str:
    """``$2.50``; of less than a cent, what it is and not ``$0.00``."""
    return f"${usd:.2f}" if usd >= 0.01 or usd <= 0 else f"${usd:.2g}"


def as_gcp(target: Target) -> CloudTarget | None:
    """The cloud machine of a target; None without one."""
    if isinstance(target, SandboxTarget):
        from orchestrator.machines.sandbox_target import as_machine

        return as_machine(target)
    return target if isinstance(target, CloudTarget) else None


# ------------------------------------------------------------------------------------------------------- worst cases
def worst_case_minutes(steps: Iterable[wire.StepSpec], max_minutes: float | None = None) -> float:
    """Wall clock of a run in which every step uses its whole timeout in every attempt, cut off at ``max_minutes``."""
    minutes = sum(step.timeout_s * (step.retries + 1) for step in steps) / 60
    return minutes if max_minutes is None else min(minutes, max_minutes)


def fence_s(minutes: float, target: CloudTarget) -> int:
    """Returns the maximum run duration for steps of ``minutes``, seconds since RUNNING: with boot and transfers, at
    most the target's ``max_run_minutes``. Raises ConfigError if the steps alone may take longer than that."""
    steps_s, longest_s = minutes * 60, target.max_run_minutes * 60
    if steps_s > longest_s:
        raise ConfigError(
            f"the steps may take {minutes:.0f} min, and {target.name} runs {target.max_run_minutes:.0f} min at most",
            hint=f"lower the steps' timeouts or `budget: {{minutes: N}}` of the job, take fewer with --steps, or raise"
            f" max_run_minutes of [targets.{target.name}]",
        )
    return int(min(longest_s, target.wake_timeout_s + steps_s + TRANSFER_MARGIN_S))


def worst_case_usd(minutes: float, rate: float) -> float:
    """Dollars for ``minutes`` at ``rate`` dollars an hour."""
    return minutes / 60 * rate


def fenced_worst_case_usd(fence_s: float, rate: float) -> float:
    """The most that a start with this deadline can cost: the cloud may stop late, and bills at least a minute."""
    return (fence_s + FENCE_LATENESS_S + MINIMUM_BILLED_S) / 3600 * rate
