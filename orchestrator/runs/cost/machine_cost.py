"""The cost of a run's machine, from the run's journal. Pure. The cloud says how long it was on; journal and steps say
what the time was used for. The parts are fitted to the whole: the rest is ``idle``, and ``idle`` and ``boot`` are cut
first. And of a run that is active, its cost until now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.base.clock import iso
from orchestrator.base.errors import FcctlError
from orchestrator.base.journal import JournalEntry, newest
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.caps import (
    EGRESS_USD_PER_GIB,
    FENCE_LATENESS_S,
    MINIMUM_BILLED_S,
    RESERVE_S,
    began_to_cost,
    is_start,
    last_change,
)
from orchestrator.results.records import CostLine, CostRecord, MachineRecord, SittingRecord, StepRecord
from orchestrator.runs.job.saved_plan import SavedPlan

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

#: The part of the bill that begins with a line of the journal; None: the machine is off, or not this run's any more.
_PHASES: dict[str, str | None] = {
    "acquired": "sync", "submitted": "run", "ended": "collect", "lost": "collect", "collected": "stop",
    "abandoned": "stop", "released": None, "unreleased": None, "stopped": None,
}  # fmt: skip

#: How a machine was released that is off since then.
_OFF = ("stopped", "deleted", "gone")


@dataclass
class PowerOnPeriod:
    """One time that the machine was on for the run."""

    #: The controller's clock: when the start was requested, or when the run took a machine that was on.
    began: float
    parts: dict[str, float] = field(default_factory=dict)
    turned_on: bool = True
    #: The cloud's clock.
    started: float | None = None
    stopped: float | None = None
    #: The cloud's deadline: it was not on for longer.
    deadline: float | None = None
    released: str | None = None
    #: The machine as the cloud showed it; empty: it never answered.
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def since(self) -> float:
        """Since when it was on for the run: by the cloud's clock, if the run started it."""
        return self.started if self.turned_on and self.started is not None else self.began

    @property
    def seconds(self) -> float:
        since, held = self.started, sum(self.parts.values())
        if since is None:
            return held
        longest = math.inf if self.deadline is None else max(0.0, self.deadline + FENCE_LATENESS_S - since)
        if self.stopped is None:
            return min(longest, held)
        if self.turned_on:
            return min(longest, max(0.0, self.stopped - since))
        # One that was on already is paid for since the run took it, by this computer's clock.
        return min(longest, held, self.stopped - self.began if self.stopped > self.began else held)

    @property
    def minimum_s(self) -> float:
        """Seconds that the minimum charge adds: once per start, for the run with which the machine went off."""
        if self.released not in _OFF:
            return 0.0
        on_s = self.seconds if self.turned_on else MINIMUM_BILLED_S
        if self.started is not None and self.stopped is not None:
            on_s = self.stopped - self.started
        return max(0.0, MINIMUM_BILLED_S - max(on_s, self.seconds))

    @property
    def upper_bound(self) -> bool:
        """Whether its end is unknown: it was on for the run no longer than :attr:`seconds`."""
        return self.stopped is None and self.released in _OFF

    @property
    def billed(self) -> bool:
        """Whether it was ever on, as far as is known."""
        if self.released == "gone":
            return bool(self.machine) or self.stopped is not None
        return bool(self.parts) and self.released not in ("off", "untouched")


def power_on_periods(entries: Sequence[JournalEntry]) -> list[PowerOnPeriod]:
    """The times the machine was on for the run, the first one first; one that was never turned on is none."""
    found: list[PowerOnPeriod] = []
    phase, since = None, 0.0
    for entry in entries:
        if entry.kind == "acquire":
            found.append(PowerOnPeriod(entry.time))
            phase, since = "look", entry.time
            continue
        if not found:
            continue
        changed = _next_phase(entry, phase)
        if changed == phase:
            continue
        parts = found[-1].parts
        if phase is not None and phase != "look":
            parts[phase] = parts.get(phase, 0.0) + max(0.0, entry.time - since)
        _learn(found[-1], entry)
        phase, since = changed, entry.time
    return [period for period in found if period.billed]


def _next_phase(entry: JournalEntry, phase: str | None) -> str | None:
    if phase == "look" and is_start(entry):
        return "boot"
    if entry.kind not in _PHASES:
        return phase
    after = _PHASES[entry.kind]
    return after if phase is not None else None


def _learn(period: PowerOnPeriod, entry: JournalEntry) -> None:
    if entry.kind == "cloud":
        period.began = entry.time
    elif entry.kind == "acquired":
        period.machine = entry.data
        period.turned_on = bool(entry.data.get("turned_on"))
        period.started = entry.data.get("started")
        period.deadline = entry.data.get("deadline")
    elif entry.kind in ("released", "unreleased", "stopped"):
        period.released = str(entry.data.get("how", "left on")) if entry.kind == "released" else "stopped"
        period.released = None if entry.kind == "unreleased" else period.released
        period.stopped = entry.data.get("at") if entry.kind == "stopped" else entry.data.get("stopped")
        period.started = period.started or entry.data.get("started")


def machine_cost(entries: Sequence[JournalEntry], saved: SavedPlan, steps: Sequence[StepRecord]) -> CostRecord:
    """The bill: seconds of being on, at the price of the place, with what they went into."""
    on = power_on_periods(entries)
    whole = sum(period.seconds for period in on)
    parts: dict[str, float] = {}
    for period in on:
        for name, seconds in period.parts.items():
            parts[name] = parts.get(name, 0.0) + seconds
    parts = _fitted(_with_steps(parts, steps), whole)
    minimum = sum(period.minimum_s for period in on)
    if minimum > 0:
        parts["minimum"] = minimum
    rate = rate_of(entries, saved)
    billed = sum(parts.values())
    usd = sum((s.seconds + s.minimum_s) * _rate(s.machine, saved, rate) for s in on) / 3600
    mean = usd / billed if billed > 0 else 0.0
    lines = [
        CostLine(activity=name, seconds=round(seconds, 3), usd=round(seconds * mean, 6))
        for name, seconds in parts.items()
        if round(seconds, 3) > 0
    ]
    return CostRecord(
        usd=round(usd, 6),
        usd_per_hour=rate,
        billed_s=round(billed, 3),
        breakdown=lines,
        upper_bound=any(period.upper_bound for period in on),
        emulated=saved.target.kind == "sandbox",
        egress_usd=_egress_usd(entries) if isinstance(saved.target, CloudTarget) else 0.0,
    )


def _egress_usd(entries: Sequence[JournalEntry]) -> float:
    sizes = [entry.data.get("bytes", 0) for entry in entries if entry.kind == "collected"]
    return round(max(sizes, default=0) / 1024**3 * EGRESS_USD_PER_GIB, 6)


#: At least as fast as results are fetched, bytes a second: the machine is on for that time.
SLOWEST_BYTES_S = 5e6
#: So many bytes of results are fetched in any case, for less than a cent: the outcome, logs and documents.
LEAST_BYTES = 64 << 20


def affordable_bytes(entries: Sequence[JournalEntry], saved: SavedPlan, now: float) -> int | None:
    """How many bytes of results can be fetched within what was reserved for the run, or for the start that fetches
    them; at least :data:`LEAST_BYTES`, and what was planned. None: without a cap, or if nobody pays."""
    if not saved.caps or not isinstance(saved.target, CloudTarget):
        return None
    starts = [number for number, entry in enumerate(entries) if entry.kind == "acquire"]
    reserved = saved.wake_usd if len(starts) > 1 else saved.worst_case_usd
    spent, rate = of_journal(entries[starts[-1] if starts else 0 :], saved, now).usd, rate_of(entries, saved)
    left = max(saved.egress_usd, reserved - spent - RESERVE_S / 3600 * rate)
    return max(LEAST_BYTES, int(left / (EGRESS_USD_PER_GIB / 1024**3 + rate / 3600 / SLOWEST_BYTES_S)))


def rate_of(entries: Sequence[JournalEntry], saved: SavedPlan) -> float:
    """Dollars an hour of the machine that the run was on in the end, as the cloud showed it; as planned without one."""
    return _rate(newest(entries, "acquired"), saved, saved.usd_per_hour)


def _rate(machine: dict[str, Any], saved: SavedPlan, unknown: float) -> float:
    if not machine:
        return unknown
    shown = machine.get("usd_per_hour")
    return saved.rate_in(str(machine.get("zone")), spot=bool(machine.get("spot")), shown=shown)


def _with_steps(parts: dict[str, float], steps: Sequence[StepRecord]) -> dict[str, float]:
    """``run`` as the steps' activities, and ``idle`` for what lies between them."""
    order: dict[str, float] = {name: parts[name] for name in ("boot", "sync") if name in parts}
    for step in steps:
        if step.duration_s > 0:
            order[step.activity] = order.get(step.activity, 0.0) + step.duration_s
    between = parts.get("run", 0.0) - sum(max(0.0, step.duration_s) for step in steps)
    if between > 0:
        order["idle"] = between
    return {**order, **{name: parts[name] for name in ("collect", "stop") if name in parts}}


def _fitted(parts: dict[str, float], whole: float) -> dict[str, float]:
    """The same parts with ``whole`` as their sum."""
    parts = dict(parts)
    excess = sum(parts.values()) - whole
    if excess < 0:
        parts["idle"] = parts.get("idle", 0.0) - excess
        return parts
    for name in ("idle", "boot", "stop"):
        give = min(excess, parts.get(name, 0.0))
        if give > 0:
            parts[name] -= give
            excess -= give
    total = sum(parts.values())
    return {name: seconds * whole / total for name, seconds in parts.items()} if total > 0 else parts


def _names_it(facts: dict[str, Any]) -> bool:
    return all(facts.get(key) for key in ("project", "zone", "name", "instance_id"))


def machine_record(entries: Sequence[JournalEntry]) -> MachineRecord | None:
    """The machine, and when it was on for the run; None without one."""
    on = power_on_periods(entries)
    had = next((e.data for e in reversed(entries) if e.kind in ("acquired", "released") and _names_it(e.data)), None)
    if had is None or not on:
        return None
    last = on[-1]
    ended = last.stopped if last.released in _OFF else None
    return MachineRecord(
        project=str(had["project"]),
        zone=str(had["zone"]),
        name=str(had["name"]),
        instance_id=str(had["instance_id"]),
        began=iso(on[0].since),
        ended=iso(ended),
        released=last.released,
        sittings=[
            SittingRecord(
                began=iso(s.since) or "", seconds=round(s.seconds + s.minimum_s, 3), started=iso(s.started),
                name=s.machine.get("name"), instance_id=s.machine.get("instance_id"),
            )
            for s in on
        ],
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- of an active run
@dataclass(frozen=True)
class CostSoFar:
    """Dollars of one active run."""

    usd: float
    #: While it costs something; 0 before its machine is on and after that is off.
    usd_per_hour: float
    worst_case_usd: float
    #: Nobody pays: its machine is the sandbox's.
    emulated: bool = False

    def as_json(self) -> dict[str, float]:
        shown = CostSoFar(0.0, 0.0, 0.0) if self.emulated else self
        return {
            "usd": round(shown.usd, 6), "usd_per_hour": shown.usd_per_hour,
            "worst_case_usd": round(shown.worst_case_usd, 6),
        }  # fmt: skip


def cost_so_far(store: FileStore, run_id: str, now: float, *, since: float = 0.0) -> CostSoFar | None:
    """Returns an active run's cost from ``since`` until ``now``, epoch seconds; None if its plan or journal cannot be
    read."""
    try:
        saved = SavedPlan.model_validate(store.plan_of(run_id))
        entries = [entry for entry in store.journal_of(run_id) if entry.time >= since]
        return of_journal(entries, saved, now)
    except (FcctlError, ValueError, TypeError, LookupError, ArithmeticError):  # of another version, or damaged
        return None


def of_journal(entries: Sequence[JournalEntry], saved: SavedPlan, now: float) -> CostSoFar:
    """The same of a journal and a plan. Pure."""
    emulated, rate = saved.target.kind == "sandbox", rate_of(entries, saved)
    if saved.target.cloud is None or saved.fence_s is None:
        began = began_to_cost(entries, machine=False)
        ended = next((e.time for e in entries if e.kind in ("ended", "lost")), None)
        seconds = 0.0 if began is None else max(0.0, (ended if ended is not None else now) - began.time)
        is_on = began is not None and ended is None
        return CostSoFar(seconds / 3600 * rate, rate if is_on else 0.0, saved.worst_case_usd, emulated)
    until_now = [*entries, JournalEntry(seq=0, time=now, kind="released")]
    usd = machine_cost(until_now, saved, []).usd
    return CostSoFar(usd, rate if _is_on(entries) else 0.0, saved.worst_case_usd, emulated)


def _is_on(entries: Sequence[JournalEntry]) -> bool:
    """Whether the machine is on for the run, as far as its journal knows."""
    last = last_change(entries)
    return last is not None and last.kind in ("cloud", "acquired")
