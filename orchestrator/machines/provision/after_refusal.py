"""What follows when the cloud refuses: the same again after a pause, or the end with its cure. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.machines.cloud import Remedy, region_of
from orchestrator.machines.provision import refusals
from orchestrator.machines.provision.actions import Attempt, Fail, Move, Policy, Problem, Wait

#: Between two requests for a machine that is not in stock, or to a cloud that asks to come back; the last repeats.
BACKOFF_S = (5.0, 10.0, 20.0, 40.0, 60.0)
#: How often "try again" is believed before it counts as a no.
PATIENCE = 6


def again(tried: Sequence[Attempt], policy: Policy, now: float, what: str) -> Move | None:
    """After the refusals of one action: give up, wait, or (None) do it again."""
    refusal = tried[-1].refusal if tried else None
    if refusal is None:
        return None
    if refusal.remedy is Remedy.FATAL:
        return fatal(what, policy, tried[-1])
    if in_a_row(tried) >= PATIENCE:
        return Fail("timeout", f"{what}: the cloud goes on to refuse", cause=refusal.message,
                      hint=hint_for(policy, tried[-1]), refusal=refusal)  # fmt: skip
    left = tried[-1].at + pause(in_a_row(tried)) - now
    return Wait(left, refusal.message) if left > 0 else None


def in_a_row(tried: Sequence[Attempt]) -> int:
    """How many attempts at the end of ``tried`` were refused for the same reason in the same place."""
    last = tried[-1] if tried else None
    if last is None or last.refusal is None:
        return 0
    count = 0
    for attempt in reversed(tried):
        if attempt.refusal is None or attempt.zone != last.zone or attempt.refusal.remedy is not last.refusal.remedy:
            break
        count += 1
    return count


def pause(times: int) -> float:
    return BACKOFF_S[min(max(times, 1), len(BACKOFF_S)) - 1]


def fatal(what: str, policy: Policy, attempt: Attempt) -> Fail:
    """A refusal that no waiting cures, with what cures it."""
    refusal = attempt.refusal
    if refusal is None:
        raise ValueError("nothing was refused")
    problem: Problem = "config"
    if "quota" in refusal.code.lower() or refusals.quota_metric(refusal):
        problem = "quota"
    elif refusal.http_status in (401, 403) or refusals.missing_permission(refusal.message):
        problem = "denied"
    return Fail(problem, what, cause=refusal.message, hint=hint_for(policy, attempt), refusal=refusal)


def hint_for(policy: Policy, attempt: Attempt | None) -> str | None:
    if attempt is None or attempt.refusal is None:
        return None
    return refusals.hint(attempt.refusal, project=policy.project, region=region_of(attempt.zone))
