"""How a run is kept within a cap in dollars. Pure. A run that is to stop at its budget has three limits, each of which
holds without the others: the controller's guard, the host program's ``stop_by`` and the cloud's maximum run duration.
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


def tightest(caps: Sequence[Cap]) -> Cap | None:
    return min(caps, key=lambda cap: cap.usd, default=None)


def judge(cap: Cap, spent: float, rate: float, *, strictly: bool) -> Verdict:
    """Returns what to do about one cap of which ``spent`` dollars are spent. ``strictly``: stop early enough to end the
    run."""
    ahead = reserve_s(seconds_within(cap.usd, rate)) / 3600 * rate if strictly and rate > 0 else 0.0
    if spent + ahead >= cap.usd:
        return "stop"
    return "warn" if spent >= WARN_AT * cap.usd else "fine"


def is_start(entry: JournalEntry) -> bool:
    """Whether the cloud was about to be asked to start a machine."""
    return entry.kind == "cloud" and entry.data.get("action") in ("start", "create", "resume")


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
