"""The action after a refusal: the same again after a pause, or a failure with a hint. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.machines.cloud import Remedy
from orchestrator.machines.provision.actions import Action, Attempt, Fail, Wait

#: Waits between requests after a stockout or a transient refusal, seconds; the last repeats.
BACKOFF_S = (5.0, 10.0, 20.0, 40.0, 60.0)
#: How many transient refusals in a row count as a failure.
PATIENCE = 6


def again(tried: Sequence[Attempt], now: float, what: str) -> Action | None:
    """After the refusals of one action: fail, wait, or (None) do it again."""
    refusal = tried[-1].refusal if tried else None
    if refusal is None:
        return None
    if refusal.remedy is Remedy.FATAL:
        return fatal(what, tried[-1])
    if in_a_row(tried) >= PATIENCE:
        return Fail("timeout", f"{what}: the cloud refuses each time", refusal.message, refusal.hint)
    left = tried[-1].at + pause(in_a_row(tried)) - now
    return Wait(left, refusal.message) if left > 0 else None


def in_a_row(tried: Sequence[Attempt]) -> int:
    """How many of the last attempts were refused for the same reason in the same zone."""
    last, count = tried[-1] if tried else None, 0
    for attempt in reversed(tried):
        if last is None or last.refusal is None or attempt.refusal is None:
            break
        if (attempt.zone, attempt.refusal.remedy) != (last.zone, last.refusal.remedy):
            break
        count += 1
    return count


def pause(times: int) -> float:
    return BACKOFF_S[min(max(times, 1), len(BACKOFF_S)) - 1]


def fatal(what: str, attempt: Attempt) -> Fail:
    """A refusal that no waiting cures, with what cures it."""
    refusal = attempt.refusal
    if refusal is None:
        raise ValueError("nothing was refused")
    return Fail(refusal.problem, what, refusal.message, refusal.hint)
