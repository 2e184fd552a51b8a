"""How a cap in dollars holds while a run goes on: what it buys, when the run has to end, when to warn. Pure.

A run whose worst case fits its caps needs none of this: it cannot break them. One that was told to stop at its budget
gets three limits, each of which holds without the ones before it: the controller's guard, the host program's own
``stop_by``, and the cloud's fence 1, which is set so that the cap is kept even if both of them never act.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from orchestrator.base.journal import JournalEntry
from orchestrator.base.models import KEPT
from orchestrator.money.caps import FENCE_LATENESS_S, MINIMUM_BILLED_S, Usd

#: The part of a cap at which the user is warned.
WARN_AT = 0.8
#: Of the time that a cap buys, what is kept for ending a run: its notice and grace, bringing it home, stopping the
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


def seconds_within(usd: float, rate: float) -> float:
    """How long ``usd`` dollars last at ``rate`` dollars an hour; infinite if it costs nothing."""
    return max(0.0, usd) / rate * 3600 if rate > 0 else math.inf


def fence_within(usd: float, rate: float) -> float:
    """Fence 1 that keeps a start within ``usd``, seconds (whole ones, or infinity): with the cloud's lateness, and the
    least that it bills, it costs no more than that. 0 if ``usd`` buys no start at all."""
    seconds = seconds_within(usd, rate) - FENCE_LATENESS_S - MINIMUM_BILLED_S
    return seconds if math.isinf(seconds) else float(max(0, math.floor(seconds - 1e-6)))


def reserve_s(seconds: float) -> float:
    """What is kept of ``seconds`` for ending a run in good order."""
    return min(RESERVE_S, RESERVE_PART * seconds)


def stop_by(usd: float, rate: float, began: float, deadline: float | None = None) -> float | None:
    """When a run has to end so that the rest fits into ``usd``; None if nothing costs anything.

    Args:
        began: since when the machine costs for it, epoch seconds of the host's clock.
        deadline: when it is turned off whatever happens, on the same clock.
    """
    seconds = fence_within(usd, rate)
    if deadline is not None:
        seconds = min(seconds, deadline - began)
    return None if math.isinf(seconds) else began + seconds - reserve_s(seconds)


def tightest(caps: Sequence[Cap]) -> Cap | None:
    return min(caps, key=lambda cap: cap.usd, default=None)


def judge(cap: Cap, spent: float, rate: float, *, strictly: bool) -> Verdict:
    """What to do about one cap.

    Args:
        spent: of this cap, dollars, with what the run itself has cost so far.
        strictly: stop early enough for the ending to fit in; else when the cap is reached.
    """
    ahead = reserve_s(seconds_within(cap.usd, rate)) / 3600 * rate if strictly and rate > 0 else 0.0
    if spent + ahead >= cap.usd:
        return "stop"
    return "warn" if spent >= WARN_AT * cap.usd else "fine"


def began_to_cost(entries: Sequence[JournalEntry], *, machine: bool) -> JournalEntry | None:
    """The line since which the run costs something; None if it does not yet.

    Of a machine that was turned on for it, from the moment the cloud was asked to; of one that was on, from when the
    run took it; of one that is simply there, from the submission.
    """
    if not machine:
        return next((e for e in entries if e.kind == "submitted"), None)
    since = None
    for entry in entries:
        if entry.kind == "acquire":
            since = None
        elif since is None and (
            entry.kind == "acquired"
            or (entry.kind == "cloud" and entry.data.get("action") in ("start", "create", "resume"))
        ):
            since = entry
    return since
