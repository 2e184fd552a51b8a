"""Chooses the zone and price model in which a machine is created next, if none can be started. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.machines.cloud import Remedy, region_of
from orchestrator.machines.provision.actions import POLL_S, Action, Attempt, Create, Fail, History, Policy, Wait
from orchestrator.machines.targets import Provisioning

#: Waits between requests after a stockout or a transient refusal, seconds; the last repeats.
BACKOFF_S = (5.0, 10.0, 20.0, 40.0, 60.0)
#: How many transient refusals in a row count as a failure.
PATIENCE = 6


def creation(policy: Policy, history: History, now: float, taken: frozenset[str], snapshot: str | None) -> Action:
    """A machine where there is none, or none to be had: the first zone and price model not refused yet."""
    if not (policy.request.create and policy.target.create):
        return Fail(
            "not_found",
            f"the machine {policy.name} does not exist in {', '.join(policy.target.zones)}",
            hint="check instance, project and zones in the target, or set create = true",
        )
    tried = history.of("create")
    if tried and not tried[-1].done:
        if now - tried[-1].at < policy.target.wake_timeout_s:
            return Wait(POLL_S, f"{policy.name} is being created in {tried[-1].zone}")
        return Fail("timeout", f"{policy.name} was requested in {tried[-1].zone}, but did not appear",
                      hint="check later whether it exists: fcctl hosts audit")  # fmt: skip
    worked = next((a for a in tried if a.worked and not history.of("delete", a.zone)), None)
    if worked is not None:
        return Fail("preempted", f"{policy.name} was created, and does not exist any more",
                      cause="it was preempted or deleted during its start", hint="run the command again")  # fmt: skip
    return _next_place(policy, history, now, taken, snapshot)


def _next_place(policy: Policy, history: History, now: float, taken: frozenset[str], snapshot: str | None) -> Action:
    tried = history.of("create")
    last = tried[-1] if tried else None
    if last is not None and last.refusal is not None and last.zone not in taken:
        if last.refusal.remedy is Remedy.LOOK_AGAIN:
            return _exists(policy, tried, now, snapshot)
        if last.refusal.remedy is Remedy.FATAL:
            return fatal(f"{policy.name} cannot be created in {last.zone}", last)
        if last.refusal.remedy in (Remedy.RETRY, Remedy.NOT_READY) and in_a_row(tried) < PATIENCE:
            left = last.at + pause(in_a_row(tried)) - now
            return Wait(left, last.refusal.message) if left > 0 else Create(last.zone, last.way, snapshot)
    places = [(zone, way) for way in policy.target.ways for zone in _hinted(policy, tried) if zone not in taken]
    rounds = {place: _refusals(tried, place) for place in places}
    fewest = min(rounds.values(), default=0)
    place = next((p for p in places if rounds[p] == fewest), None)
    if place is None or (fewest > 0 and last is not None and not _may_wait(policy, history, now, snapshot)):
        return _nowhere(policy, last)
    if fewest > 0 and last is not None and max(rounds.values()) == fewest:
        left = last.at + pause(fewest) - now
        if left > 0:
            return Wait(left, f"no zone has a free machine for {policy.name}")
    return Create(place[0], place[1], snapshot)


def _may_wait(policy: Policy, history: History, now: float, snapshot: str | None) -> bool:
    return policy.target.on_stockout == "wait" and snapshot is None and now - history.began < policy.stockout_wait_s


def _nowhere(policy: Policy, last: Attempt | None) -> Fail:
    refusal = last.refusal if last else None
    return Fail(
        "capacity",
        f"no zone has a free machine for {policy.name}: {', '.join(policy.target.zones)}",
        cause=refusal.message if refusal else "the target has no other zone",
        hint=(refusal and refusal.hint) or "add zones to `zones` in the target",
    )


def _exists(policy: Policy, tried: Sequence[Attempt], now: float, snapshot: str | None) -> Action:
    """The name is taken, yet no machine is seen: one is just coming or going, or its disk was left behind."""
    last = tried[-1]
    if in_a_row(tried) < 4:
        left = last.at + pause(in_a_row(tried)) - now
        return Wait(left, f"{policy.name} exists already") if left > 0 else Create(last.zone, last.way, snapshot)
    message = last.refusal.message if last.refusal else ""
    return Fail("conflict", f"the name {policy.name} is in use in {last.zone}, but not by a machine", cause=message,
                  hint="a disk may have that name: delete it, or set another `instance` in the target")  # fmt: skip


def _hinted(policy: Policy, tried: Sequence[Attempt]) -> list[str]:
    """The target's zones, those first that the cloud itself named as having stock."""
    named = {zone for a in tried if a.refusal for zone in a.refusal.zones_available}
    return sorted(dict.fromkeys(policy.target.zones), key=lambda zone: zone not in named)


def _refusals(tried: Sequence[Attempt], place: tuple[str, Provisioning]) -> int:
    """How often there was none in this place, by itself or because its whole region was refused."""
    zone, way = place
    here = [a for a in tried if a.refusal and a.way == way]
    region = [
        a for a in here
        if a.refusal and a.refusal.remedy is Remedy.NEXT_REGION and region_of(a.zone) == region_of(zone)
    ]  # fmt: skip
    retried = any(a.zone == zone and a.refusal and a.refusal.remedy in (Remedy.RETRY, Remedy.NOT_READY) for a in here)
    own = [a for a in here if a.zone == zone and a.refusal and a.refusal.remedy is Remedy.NEXT_ZONE]
    return len(own) + len(region) + (1 if retried else 0)


# ----------------------------------------------------------------------------------------------------- after a refusal
def again(tried: Sequence[Attempt], now: float, what: str) -> Action | None:
    """After the refusals of one action: fail, wait, or (None) do it again."""
    refusal = tried[-1].refusal if tried else None
    if refusal is None:
        return None
    if refusal.remedy is Remedy.FATAL:
        return fatal(what, tried[-1])
    if in_a_row(tried) >= PATIENCE:
        return Fail("timeout", f"{what}: the cloud refused every attempt", refusal.message, refusal.hint)
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
