"""What a run may cost: the caps of ``[budget]``, and the worst case of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field, PrivateAttr, field_validator

from orchestrator.base.clock import zone
from orchestrator.base.errors import ConfigError
from orchestrator.base.models import KEPT, WRITTEN
from orchestrator.machines.targets import CloudTarget, IdleGpu

if TYPE_CHECKING:
    from fcctl_remote import wire
    from orchestrator.base.journal import JournalEntry
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

    def with_seen(self, target: CloudTarget, machines: Iterable[Hardware]) -> Budget:
        """The same caps with the machines that the cloud shows for ``target``."""
        made = self.model_copy()
        made._seen = {**self._seen, (target.project, target.instance): tuple(machines)}  # noqa: SLF001 - as above
        return made

    def seen(self, target: CloudTarget) -> tuple[Hardware, ...]:
        """The machines of :meth:`with_seen`."""
        return self._seen.get((target.project, target.instance), ())

    @property
    def prices(self) -> PriceTable:
        """The price list in force. Raises RuntimeError if :meth:`with_prices` was not called."""
        if self._prices is None:
            raise RuntimeError("the budget has no price list")
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
            f"the steps may take {minutes:.0f} min, but {target.name} may run at most {target.max_run_minutes:.0f} min",
            hint=f"lower the steps' timeouts or `budget: {{minutes: N}}` in the job, select fewer steps with --steps, "
            f"or raise max_run_minutes in [targets.{target.name}]",
        )
    return int(min(longest_s, target.wake_timeout_s + steps_s + TRANSFER_MARGIN_S))


def fenced_worst_case_usd(fence_s: float, rate: float) -> float:
    """The most that a start with this deadline can cost: the cloud may stop late, and bills at least a minute."""
    return (fence_s + FENCE_LATENESS_S + MINIMUM_BILLED_S) / 3600 * rate


# ------------------------------------------------------------------------------------------------- a run within a cap
# A run that is to stop at its budget has three limits, each of which holds without the others: the controller's guard,
# the host program's ``stop_by`` and the cloud's maximum run duration.
#: The part of a cap at which the user is warned.
WARN_AT = 0.8
#: Of the time that a cap buys, what is kept for ending a run: its notice and grace, collecting it, stopping the
#: machine. Of a short time, a tenth.
RESERVE_S = 180.0
RESERVE_PART = 0.1
#: A cap that does not even buy so long for a boot and some work is of no use, seconds.
LEAST_S = 120.0

Over = Literal["run", "day", "month", "project"]
Verdict = Literal["fine", "warn", "stop"]


class Cap(BaseModel):
    """One cap on a run: dollars over what."""

    model_config = KEPT

    name: str  # as the user knows it: "per_run_usd of [budget]"
    usd: Usd
    over: Over = "run"


def run_caps(job: str, budget: Budget, job_usd: float | None, run_usd: float | None = None) -> list[Cap]:
    """The caps of one run: those of the configuration, of its job and of the command line."""
    given = {"per_run_usd of [budget]": budget.per_run_usd, f"budget: usd of the job {job}": job_usd,
             "--budget": run_usd}  # fmt: skip
    return [Cap(name=name, usd=usd) for name, usd in given.items() if usd is not None]


def books_caps(budget: Budget) -> list[Cap]:
    """The caps of all runs of a day, a month and the project."""
    return [Cap(name=f"{key} of [budget]", usd=usd, over=window) for window, key, usd in budget.over_runs]


def seconds_within(usd: float, rate: float) -> float:
    """How long ``usd`` dollars last at ``rate`` dollars an hour; infinite if it costs nothing."""
    return max(0.0, usd) / rate * 3600 if rate > 0 else math.inf


def fence_within(usd: float, rate: float) -> float:
    """Returns the maximum run duration that keeps a start within ``usd``, whole seconds or infinity; 0 if it buys no
    start."""
    seconds = seconds_within(usd, rate) - FENCE_LATENESS_S - MINIMUM_BILLED_S
    return seconds if math.isinf(seconds) else float(max(0, math.floor(seconds - 1e-6)))


def reserve_s(seconds: float) -> float:
    """The part of ``seconds`` that ending a run takes."""
    return min(RESERVE_S, RESERVE_PART * seconds)


def stop_by(usd: float, rate: float, began: float, deadline: float | None = None) -> float | None:
    """Returns when a run must end to stay within ``usd``; None if nothing costs. ``began`` and ``deadline`` (off in any
    case) are epoch seconds of the host's clock."""
    seconds = fence_within(usd, rate)
    if deadline is not None:
        seconds = min(seconds, deadline - began)
    return None if math.isinf(seconds) else began + seconds - reserve_s(seconds)


def judge(cap: Cap, spent: float, rate: float, *, strictly: bool) -> Verdict:
    """Returns what to do about one cap of which ``spent`` dollars are spent. ``strictly``: stop early enough to end the
    run."""
    ahead = reserve_s(seconds_within(cap.usd, rate)) / 3600 * rate if strictly and rate > 0 else 0.0
    if spent + ahead >= cap.usd:
        return "stop"
    return "warn" if spent >= WARN_AT * cap.usd else "fine"


def is_start(entry: JournalEntry) -> bool:
    """Whether the cloud was about to be asked to start a machine."""
    return entry.kind == "cloud" and entry.data.get("action") in ("start", "create")


def last_change(entries: Sequence[JournalEntry]) -> JournalEntry | None:
    """The newest line that says whether the machine is on for the run."""
    kinds = ("acquire", "acquired", "released", "unreleased", "stopped")
    return next((entry for entry in reversed(entries) if entry.kind in kinds or is_start(entry)), None)


def began_to_cost(entries: Sequence[JournalEntry], *, machine: bool) -> JournalEntry | None:
    """Returns the journal line since which the run costs; None if it does not yet. With a machine: the start that was
    asked for, or the acquisition; without: the submission."""
    if not machine:
        return next((e for e in entries if e.kind == "submitted"), None)
    since = None
    for entry in entries:
        if entry.kind == "acquire":
            since = None
        elif since is None and (entry.kind == "acquired" or is_start(entry)):
            since = entry
    return since
