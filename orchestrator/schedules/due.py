"""When a schedule is due, and what is done about it. Pure. Times follow Debian's cron (cronsim): a time that the spring
change skips is due right after it, one that the autumn change repeats is due once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field, field_validator

from orchestrator.base.clock import zone
from orchestrator.base.models import KEPT, WRITTEN
from orchestrator.machines.targets import Name

if TYPE_CHECKING:
    from cronsim import CronSim

_ALIASES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
#: At most so many missed times of a computer that slept are recorded.
MOST_RECORDED = 100


class Schedule(BaseModel):
    """``[schedules.NAME]``: a job to be run at set times, within a budget."""

    model_config = WRITTEN

    job: Name
    on: Annotated[str, Field(min_length=1, max_length=255)] = "local"
    #: Minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, @monthly, @yearly.
    cron: Annotated[str, Field(max_length=200)]
    #: IANA name (Europe/Berlin); this computer's own zone if absent.
    timezone: Annotated[str, Field(max_length=64)] | None = None
    #: The most one firing may cost.
    budget_usd: Annotated[float, Field(gt=0, le=100_000)] | None = None
    #: The most all firings of one calendar month (of ``[budget] timezone``) may cost.
    per_month_usd: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    #: A time that passed while this computer slept is made up for if no more than this late; 0 never.
    catch_up_minutes: Annotated[float, Field(ge=0, le=7 * 24 * 60)] = 60.0
    #: ``--set`` of the job.
    settings: dict[str, str] = {}
    enabled: bool = True

    @field_validator("cron")
    @classmethod
    def _cron_means_something(cls, value: str) -> str:
        _simulation(value, datetime.now(UTC))
        return value

    @field_validator("timezone")
    @classmethod
    def _zone_is_known(cls, value: str | None) -> str | None:
        if value is not None:
            zone(value)
        return value

    @property
    def key(self) -> str:
        """Changes when the times do: what was due under another line says nothing about this one."""
        return f"{self.cron} {self.timezone or ''}"


def _simulation(line: str, after: datetime) -> CronSim:
    """The times of a cron line. Raises ValueError, with the reason, if it can never be due."""
    from cronsim import CronSim, CronSimError

    words = _ALIASES.get(line.strip().lower(), line).split()
    if line.strip().startswith("@") and len(words) == 1:
        raise ValueError(f"unknown shorthand '{line.strip()}' (known: {', '.join(_ALIASES)})")
    if len(words) != len(_FIELDS):
        raise ValueError(f"a cron expression has {len(_FIELDS)} fields ({', '.join(_FIELDS)}), not {len(words)}")
    try:
        simulation = CronSim(" ".join(words), after)
    except (CronSimError, ValueError, AssertionError) as e:
        text = " ".join(str(e).split())
        reason = (text[:1].lower() + text[1:]) or "a field is out of range"
        raise ValueError(f"'{line}' is not a valid cron expression: {reason}") from None
    return simulation


def due_between(schedule: Schedule, after: datetime, until: datetime, limit: int = MOST_RECORDED) -> list[datetime]:
    """The newest ``limit`` times in (``after``, ``until``], oldest first, in UTC; both arguments are aware."""
    after = max(after, until - timedelta(days=366))  # a clock may have been years off
    newest: deque[datetime] = deque(maxlen=limit)
    for time in _times(schedule, after):
        if time > until:
            break
        newest.append(time)
    return list(newest)


def upcoming(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    """The next ``count`` times, in the schedule's zone; fewer if it is never due again."""
    local = zone(schedule.timezone)
    return [time.astimezone(local) for time in islice(_times(schedule, after), count)]


def _times(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """All times after ``after``, in UTC: two aware times of one zone compare by the wall clock, which goes back."""
    for time in _simulation(schedule.cron, after.astimezone(zone(schedule.timezone))):
        yield time.astimezone(UTC)


Outcome = Literal["watching", "started", "missed", "overlap", "refused", "interrupted", "finished"]


class Firing(BaseModel):
    """One line of a schedule's record. Every time that was due has one, also when nothing was started."""

    model_config = KEPT

    outcome: Outcome
    #: The time of the cron line that this is about, epoch seconds; of ``watching``: from when on times count.
    due: float
    #: When it was decided.
    at: float
    #: The cron line and zone it was decided under.
    key: str = ""
    reason: str | None = None
    run_id: str | None = None
    status: str | None = None
    exit_code: int | None = None
    usd: float | None = None
    #: Of ``refused``: how many times in a row, up to ``due``, for the same reason.
    count: int = 1


@dataclass(frozen=True)
class FiringHistory:
    """What a schedule's record says."""

    seen: float | None  # times up to here are dealt with
    unfinished: Firing | None  # started, and nothing is known of its end


def read_past(schedule: Schedule, record: Sequence[Firing]) -> FiringHistory:
    """Fold a schedule's record, oldest first."""
    seen: float | None = None
    open_: dict[float, Firing] = {}
    for firing in record:
        if firing.outcome in ("finished", "interrupted"):
            open_.pop(firing.due, None)
            continue
        if firing.outcome == "started":
            open_[firing.due] = firing
        if firing.key != schedule.key:
            seen = None
        elif firing.outcome == "watching":  # also after a clock that was ahead
            seen = firing.due
        else:
            seen = max(seen or firing.due, firing.due)
    return FiringHistory(seen, next(reversed(open_.values()), None))


def decide(schedule: Schedule, past: FiringHistory, now: datetime, *, running: bool) -> list[Firing]:
    """Returns what to record at ``now``; at most the last is ``started``. A new or changed schedule starts with its
    next time; of missed times only the newest is made up for, within ``catch_up_minutes``; ``running``: an earlier
    firing is at work, so this time is skipped. No time is due twice, even if the clock is set back."""
    stamp = now.timestamp()
    if past.seen is None:
        return [Firing(outcome="watching", due=stamp, at=stamp, key=schedule.key)]
    if past.seen > stamp + 24 * 3600:
        reason = "this computer's clock was set back by more than a day; fcctl schedules from the new time"
        return [Firing(outcome="watching", due=stamp, at=stamp, key=schedule.key, reason=reason)]
    times = due_between(schedule, datetime.fromtimestamp(past.seen, UTC), now)
    firings = [
        _firing(schedule, time, now, "missed", "a later time of this schedule is also due") for time in times[:-1]
    ]
    if times:
        firings.append(_newest(schedule, times[-1], now, running=running))
    return firings


def _newest(schedule: Schedule, due: datetime, now: datetime, *, running: bool) -> Firing:
    if (too_late := is_late(schedule, due.timestamp(), now.timestamp())) is not None:
        return _firing(schedule, due, now, "missed", too_late)
    if running:
        return _firing(schedule, due, now, "overlap", "the previous firing is still active")
    late = (now.timestamp() - due.timestamp()) / 60
    return _firing(schedule, due, now, "started", f"{late:.0f} minutes late" if late >= 1.5 else None)


def is_late(schedule: Schedule, due: float, now: float) -> str | None:
    """Why a firing that was ``due`` does not start any more; None: it does. Both are epoch seconds."""
    late = (now - due) / 60
    too_late = late > max(schedule.catch_up_minutes, 1.5)
    return f"noticed {late:.0f} minutes late: this computer slept or was off" if too_late else None


def _firing(schedule: Schedule, due: datetime, now: datetime, outcome: Outcome, reason: str | None) -> Firing:
    return Firing(outcome=outcome, due=due.timestamp(), at=now.timestamp(), key=schedule.key, reason=reason)
