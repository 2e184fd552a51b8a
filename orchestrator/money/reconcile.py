"""The ledger against the cloud's own word on when machines were on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.machines.cloud import Operation
from orchestrator.machines.power_history import NEAR_START_S, PowerInterval, off_at
from orchestrator.money.ledger import SLIGHT_S, Line, UsageRecord, latest

#: By how much a stop that was seen may be from the end of the stop's operation without being another, seconds.
SAME_STOP_S = 60.0


# ------------------------------------------------------------------------------------------- what the ledger learns
def closings(known: Iterable[UsageRecord], operations: Sequence[Operation], now: float) -> list[UsageRecord]:
    """Records that end starts whose end was not seen, from the cloud's operations."""
    records = []
    for record in latest(known):
        if record.stopped is not None and not record.bound:
            continue
        at = off_at(operations, record.instance_id, record.started)
        if at is not None:
            records.append(record.model_copy(update={"stopped": at, "seen": now, "bound": False}))
    return records


def corrections(
    known: Iterable[UsageRecord], times: Sequence[PowerInterval], like: UsageRecord, now: float
) -> list[UsageRecord]:
    """Returns records of what nobody saw, or saw otherwise than the cloud has it, since the first ``known`` record of
    one machine. ``times`` are from the cloud; ``like`` gives price and place."""
    seen = latest(known)
    records, same_as = [], _paired(seen, times)
    for on in times:
        same = same_as.get(on)
        if same is None:
            if not seen or on.started > seen[0].started:
                new = {"started": on.started, "stopped": on.stopped, "seen": now, "user": on.user, "bound": False}
                records.append(like.model_copy(update=new))
        elif _is_news(same, on):
            new = {"stopped": on.stopped, "seen": now, "user": on.user or same.user, "bound": False}
            records.append(same.model_copy(update=new))
    return records


def _paired(seen: Sequence[UsageRecord], times: Sequence[PowerInterval]) -> dict[PowerInterval, UsageRecord]:
    """Matches records and times, the nearest starts first, each once."""
    pairs = [(abs(s.started - on.started), s, on) for s in seen for on in times]
    paired: dict[PowerInterval, UsageRecord] = {}
    for apart, record, on in sorted(pairs, key=lambda pair: pair[0]):
        if apart <= NEAR_START_S and on not in paired and record not in paired.values():
            paired[on] = record
    return paired


def _is_news(known: UsageRecord, on: PowerInterval) -> bool:
    if on.stopped is None:
        return False
    return known.stopped is None or known.bound or abs(known.stopped - on.stopped) > SAME_STOP_S


def bounds(known: Iterable[UsageRecord], now: float) -> list[UsageRecord]:
    """Returns records that end the machine's open times at its deadline plus the late-stop allowance, or now."""
    records = []
    for record in latest(known):
        if record.stopped is None:
            limit = min(now, record.latest_end)
            records.append(record.model_copy(update={"stopped": max(limit, record.started), "seen": now,
                                                     "bound": True}))  # fmt: skip
    return records


def learned(
    known: Sequence[UsageRecord], history: Sequence[Operation], times: Sequence[PowerInterval], there: bool | None,
    now: float,
) -> list[UsageRecord]:  # fmt: skip
    """Returns what the ledger learns of one machine, of which it has the ``known`` records: what the cloud has
    otherwise; without a word of the cloud on a deleted machine (not ``there``), its latest possible end."""
    records = corrections(known, times, known[-1], now)
    records += closings([*known, *records], history, now)
    return records + bounds([*known, *records], now) if there is False else records


# --------------------------------------------------------------------------------------------- what the audit shows
@dataclass(frozen=True)
class Time:
    """One time of being on, and the seconds of it that runs and sessions of this workspace used."""

    span: UsageRecord
    used_s: float

    @property
    def for_nobody(self) -> bool:
        return self.used_s < SLIGHT_S


@dataclass(frozen=True)
class Account:
    """One machine in the cloud's books and in ours."""

    #: The newest of the ledger.
    record: UsageRecord
    #: Whether the cloud has it still; None: that part of the cloud did not answer.
    there: bool | None
    times: tuple[Time, ...]
    #: What the ledger had before the audit, which added what the cloud has beyond it.
    ledger_s: float
    ledger_usd: float
    #: What runs claim beyond what the machine was on; it is not in the ledger.
    beyond_s: float
    beyond_usd: float
    #: When it was on before the ledger's first record; not in the ledger.
    earlier: tuple[PowerInterval, ...] = ()

    @property
    def cloud_s(self) -> float:
        return sum(time.span.billed_s for time in self.times)

    @property
    def cloud_usd(self) -> float:
        return sum(time.span.usd(time.span.billed_s) for time in self.times)

    @property
    def difference_s(self) -> float:
        """What the ledger had beyond the cloud; below zero: what it lacked."""
        return self.ledger_s - self.cloud_s

    @property
    def difference_usd(self) -> float:
        return self.ledger_usd - self.cloud_usd

    @property
    def agrees(self) -> bool:
        return abs(self.difference_s) < SLIGHT_S and abs(self.beyond_s) < SLIGHT_S


def account(
    record: UsageRecord, there: bool | None, on: Sequence[UsageRecord], before: Iterable[Line], after: Iterable[Line],
    earlier: Sequence[PowerInterval] = (),
) -> Account:  # fmt: skip
    """Returns the account of one machine: ``on`` as the cloud has it, the ledger ``before`` and ``after`` the cloud was
    asked, and times ``earlier`` than the ledger's first record."""
    had = [line for line in before if line.machine == record.machine and line.what is None]
    has = [line for line in after if line.machine == record.machine and line.what is None]
    used = {span.started: 0.0 for span in on}
    for line in has:
        if line.run_id is not None and line.on_since in used:
            used[line.on_since] += line.seconds
    beyond = [(line.beyond_s, line.usd / line.seconds * line.beyond_s) for line in has if line.beyond_s]
    return Account(
        record, there, tuple(Time(span, min(used[span.started], span.billed_s)) for span in on),
        sum(line.seconds for line in had), sum(line.usd for line in had),
        sum(seconds for seconds, _ in beyond), sum(usd for _, usd in beyond), tuple(earlier),
    )  # fmt: skip
