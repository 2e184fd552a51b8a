"""How a machine is had: what to do next, given what the cloud shows and what it has refused so far.

Pure. :mod:`orchestrator.workflows.acquire` looks, asks :func:`next_move`, makes the move, notes what came of it in
the :class:`History`, and looks again. Whatever the cloud answers, three things hold:

- a machine is started only after fence 1 (its time limit with STOP) was read back as wanted,
- nothing is created while a machine of that name is seen in any zone, or while a creation has no known end,
- it ends: every wait is within the target's ``wake_timeout_s`` (and ``stockout_wait_minutes`` where there is no stock).
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.domain import refusals
from orchestrator.domain.acquire_moves import (
    Attempt,
    Create,
    GiveUp,
    History,
    Move,
    Policy,
    Problem,
    Resume,
    SetFence,
    Snapshot,
    Start,
    Stop,
    Use,
    Wait,
)
from orchestrator.domain.cloud import Machine, Power, Remedy, region_of

#: Between two looks at a machine that is changing its state by itself, seconds.
POLL_S = 2.0
#: Between two requests for a machine that is not in stock, or to a cloud that asks to come back; the last repeats.
BACKOFF_S = (5.0, 10.0, 20.0, 40.0, 60.0)
#: How often "try again" is believed before it counts as a no.
PATIENCE = 6
#: What the cloud's clock and ours may differ by before a limit counts as another one, seconds.
SLACK_S = 5.0


def next_move(
    seen: Sequence[Machine], policy: Policy, history: History, now: float, cloud_ahead_s: float = 0.0
) -> Move:
    """What to do next.

    Args:
        seen: every machine of the name, from all zones, as they are now.
        now: epoch seconds on the clock of ``history``.
        cloud_ahead_s: how much the cloud's clock, which its deadlines are told by, is ahead of that one.
    """
    if now - history.began >= policy.limit_s:
        return GiveUp(
            "timeout",
            f"no machine {policy.name} after {policy.limit_s:.0f} s",
            cause=_last_words(history) or _states(seen),
            hint="fcctl hosts ls shows it; try again, or raise wake_timeout_s of the target",
        )
    machine = choose(seen, policy, history)
    if machine is None:
        return _create(policy, history, now, frozenset(), None) if policy.wish.start else _over(policy)
    power = machine.power
    if power is Power.RUNNING:
        return _running(machine, policy, history, now, now + cloud_ahead_s)
    if power is Power.STOPPED:
        return _stopped(machine, policy, history, now, seen)
    if power is Power.SUSPENDED:
        return _suspended(machine, policy, history, now)
    return _in_between(machine, policy, history, now)


def choose(seen: Sequence[Machine], policy: Policy, history: History) -> Machine | None:
    """The machine to deal with, of several of one name: one that is on; else one whose zone has not refused to start
    it; else the one that was on last, because its disk is the newest."""
    order = {zone: n for n, zone in enumerate(policy.zones)}

    def rank(machine: Machine) -> tuple[bool, int, float, int, str]:
        off = machine.power in (Power.STOPPED, Power.STOPPING, Power.SUSPENDED, Power.SUSPENDING)
        refused = len([a for a in history.of("start", machine.zone) if a.refusal is not None])
        return off, refused, -(machine.started or 0.0), order.get(machine.zone, len(order)), machine.zone

    return min(seen, key=rank, default=None)


def snapshot_name(machine: Machine) -> str:
    """The same for the same state of the disk, so that a rebuild that was cut off finds its snapshot again."""
    return f"{machine.name[:40].rstrip('-')}-{int(machine.stopped or machine.created or 0):x}"


def deadline_of(machine: Machine) -> float | None:
    """When the cloud itself stops a machine that runs, epoch seconds; None: never, as far as is known."""
    if machine.termination_action == "DELETE":
        return None
    if machine.deadline is not None:
        return machine.deadline
    if machine.max_run_s is not None and machine.started is not None:
        return machine.started + machine.max_run_s
    return None


# -------------------------------------------------------------------------------------------------- one state at a time
def _running(machine: Machine, policy: Policy, history: History, now: float, cloud_now: float) -> Move:
    # Whatever was said of it: a start that was refused may have happened all the same.
    ours = bool(history.of("start", machine.zone) or history.of("create", machine.zone))
    wish = policy.wish
    if not ours and (wish.restart or history.of("resume", machine.zone)):
        return _stop(machine, policy, history, now)
    deadline = deadline_of(machine)
    if deadline is None:
        return Use(machine) if wish.allow_unfenced and not ours else _unfenced(machine, ours=ours)
    if not ours and deadline - cloud_now + SLACK_S < wish.need_s:
        return GiveUp(
            "budget",
            f"the cloud stops {machine.name} in {max(0.0, deadline - cloud_now) / 60:.0f} minutes, and this may take"
            f" {wish.need_s / 60:.0f}",
            cause="the time limit of a machine that runs cannot be moved",
            hint="add --restart to stop it and start it with a limit of its own, or wait until it has stopped",
        )
    return Use(machine)


def _unfenced(machine: Machine, *, ours: bool) -> GiveUp:
    action = "deletes it" if machine.termination_action == "DELETE" else "never stops it"
    if ours:
        return GiveUp(
            "conflict",
            f"{machine.name} was started, and the cloud {action} by itself",
            cause="its time limit was changed between being set and the start",
            hint="look at who else starts it (fcctl hosts ls), then try again",
        )
    return GiveUp(
        "budget",
        f"{machine.name} runs, and the cloud {action} by itself",
        cause="it was started without fcctl; the time limit of a machine that runs cannot be set",
        hint="add --restart to stop it and start it with a limit, or --allow-unfenced to rely on its own shutdown"
        " timer alone",
    )


def _stop(machine: Machine, policy: Policy, history: History, now: float) -> Move:
    tried = history.of("stop", machine.zone)
    if len([a for a in tried if a.worked]) >= 2:
        return GiveUp(
            "conflict",
            f"{machine.name} was stopped, and runs again",
            cause="somebody else starts it",
            hint="look at who does (fcctl hosts ls), then try again",
        )
    return _again(tried, policy, now, f"{machine.name} cannot be stopped") or Stop(machine)


def _suspended(machine: Machine, policy: Policy, history: History, now: float) -> Move:
    if not policy.wish.restart:
        return GiveUp(
            "conflict",
            f"{machine.name} is suspended in {machine.zone}",
            cause="a time limit can be set on a stopped machine only, and stopping it loses what it has in memory",
            hint="add --restart to lose that, or resume and stop it yourself",
        )
    return _again(history.of("resume", machine.zone), policy, now, f"{machine.name} cannot be resumed") or Resume(
        machine
    )


def _stopped(machine: Machine, policy: Policy, history: History, now: float, seen: Sequence[Machine]) -> Move:
    if not policy.wish.start:
        return _over(policy)
    starts = history.of("start", machine.zone)
    made_here = any(a.worked for a in history.of("create", machine.zone))
    if made_here or any(a.worked for a in starts):
        return GiveUp(
            "preempted",
            f"{machine.name} was stopped again while it was waking",
            cause=f"it reached RUNNING in {machine.zone} and is {machine.status} now",
            hint="fcctl hosts ls tells why; then try again",
        )
    if starts and starts[-1].refusal is not None:
        if starts[-1].refusal.remedy in (Remedy.NEXT_ZONE, Remedy.NEXT_REGION):
            move = _no_stock(machine, policy, history, now, seen)
        else:
            move = _again(starts, policy, now, f"{machine.name} cannot be started")
        if move is not None:
            return move
    if starts and not starts[-1].done and now - starts[-1].at < policy.wake_timeout_s:
        return Wait(POLL_S, f"{machine.name} is about to start")
    return _fence(machine, policy, history, now) or Start(machine)


def _over(policy: Policy) -> GiveUp:
    return GiveUp(
        "conflict",
        f"{policy.name} is off: its session is over",
        hint="fcctl session status says why; then run it again, or start another session",
    )


def _fence(machine: Machine, policy: Policy, history: History, now: float) -> Move | None:
    """None if the cloud shows the limit that is wanted."""
    if machine.max_run_s == policy.wish.max_run_s and machine.termination_action == "STOP":
        return None
    tried = history.of("fence", machine.zone)
    if len([a for a in tried if a.worked]) >= 2:
        return GiveUp(
            "conflict",
            f"the time limit of {machine.name} does not stay as it was set",
            cause=f"{policy.wish.max_run_s} s was asked for, and it says {machine.max_run_s} s now",
            hint="another fcctl may be starting it: try again in a moment",
        )
    refused = _again(tried, policy, now, f"the time limit of {machine.name} cannot be set")
    return refused or SetFence(machine, policy.wish.max_run_s)


def _in_between(machine: Machine, policy: Policy, history: History, now: float) -> Move:
    since = max([history.began, *(a.at for a in history.attempts)])
    if now - since >= policy.wake_timeout_s:
        return GiveUp(
            "timeout",
            f"{machine.name} is {machine.status} in {machine.zone} for {now - since:.0f} s",
            hint="fcctl hosts ls shows it; raise wake_timeout_s of the target if that is what it takes",
        )
    return Wait(POLL_S, f"{machine.name} is {machine.status}")


# ----------------------------------------------------------------------------------------------------------- no stock
def _no_stock(machine: Machine, policy: Policy, history: History, now: float, seen: Sequence[Machine]) -> Move | None:
    """What the target wants for a stopped machine whose zone has none like it; None: ask again."""
    starts = [a for a in history.of("start", machine.zone) if a.refusal is not None]
    refusal = starts[-1].refusal
    if policy.on_stockout == "rebuild":
        return _rebuild(machine, policy, history, now, seen)
    if policy.on_stockout == "wait" and now - history.began < policy.stockout_wait_s:
        left = starts[-1].at + _pause(len(starts)) - now
        return Wait(left, f"no stock in {machine.zone} for {machine.name}") if left > 0 else None
    waited = f" after {(now - history.began) / 60:.0f} minutes" if policy.on_stockout == "wait" else ""
    return GiveUp(
        "capacity",
        f"{machine.zone} has no machine for {machine.name}{waited}",
        cause=refusal.message if refusal else None,
        hint=_hint(policy, starts[-1]) if refusal and refusal.remedy is Remedy.NEXT_REGION else
        "try again later, or set on_stockout = \"rebuild\" for the target: a copy of its disk in another zone",
        refusal=refusal,
    )  # fmt: skip


def _rebuild(machine: Machine, policy: Policy, history: History, now: float, seen: Sequence[Machine]) -> Move:
    """A copy in a zone that has none of the name: an earlier rebuild may have left some, each off."""
    other = next((one for one in seen if one.power is not Power.STOPPED), None)
    if other is not None:
        decide = _suspended if other.power is Power.SUSPENDED else _in_between
        return decide(other, policy, history, now)
    name = snapshot_name(machine)
    tried = history.of("snapshot", machine.zone)
    if not any(a.worked for a in tried):
        return _again(tried, policy, now, f"no snapshot of {machine.name} can be made") or Snapshot(machine, name)
    return _create(policy, history, now, frozenset(one.zone for one in seen), name)


# ------------------------------------------------------------------------------------------------------------- create
def _create(policy: Policy, history: History, now: float, taken: frozenset[str], snapshot: str | None) -> Move:
    """A machine where there is none, or none to be had: the first zone and price model not refused yet."""
    if not policy.wish.create:
        return GiveUp(
            "not_found",
            f"there is no machine {policy.name} in {', '.join(policy.zones)}",
            hint="check instance, project and zones of the target, or set create = true",
        )
    tried = history.of("create")
    if tried and not tried[-1].done:
        if now - tried[-1].at < policy.wake_timeout_s:
            return Wait(POLL_S, f"{policy.name} is being created in {tried[-1].zone}")
        return GiveUp("timeout", f"{policy.name} was asked for in {tried[-1].zone}, and never came",
                      hint="fcctl hosts audit finds it if it comes after all")  # fmt: skip
    if any(a.worked for a in tried):
        return GiveUp("preempted", f"{policy.name} was created, and is gone again",
                      cause="it was preempted or deleted while it was waking", hint="try again")  # fmt: skip
    return _next_place(policy, history, now, taken, snapshot)


def _next_place(policy: Policy, history: History, now: float, taken: frozenset[str], snapshot: str | None) -> Move:
    tried = history.of("create")
    last = tried[-1] if tried else None
    if last is not None and last.refusal is not None and last.zone not in taken:
        if last.refusal.remedy is Remedy.LOOK_AGAIN:
            return _exists(policy, tried, now, snapshot)
        if last.refusal.remedy is Remedy.FATAL:
            return _fatal(f"{policy.name} cannot be created in {last.zone}", policy, last)
        if last.refusal.remedy in (Remedy.RETRY, Remedy.NOT_READY) and _row(tried) < PATIENCE:
            left = last.at + _pause(_row(tried)) - now
            return Wait(left, last.refusal.message) if left > 0 else Create(last.zone, last.spot, snapshot)
    places = [(zone, spot) for spot in policy.models for zone in _hinted(policy, tried) if zone not in taken]
    rounds = {place: _refusals(tried, place) for place in places}
    fewest = min(rounds.values(), default=0)
    place = next((p for p in places if rounds[p] == fewest), None)
    if place is None or (fewest > 0 and last is not None and not _may_wait(policy, history, now, snapshot)):
        return _nowhere(policy, last)
    if fewest > 0 and last is not None and max(rounds.values()) == fewest:
        left = last.at + _pause(fewest) - now
        if left > 0:
            return Wait(left, f"no stock for {policy.name} in any zone")
    return Create(place[0], place[1], snapshot)


def _may_wait(policy: Policy, history: History, now: float, snapshot: str | None) -> bool:
    return policy.on_stockout == "wait" and snapshot is None and now - history.began < policy.stockout_wait_s


def _nowhere(policy: Policy, last: Attempt | None) -> GiveUp:
    refusal = last.refusal if last else None
    return GiveUp(
        "capacity",
        f"no zone has a machine for {policy.name}: {', '.join(policy.zones)}",
        cause=refusal.message if refusal else "the target names no other zone",
        hint=_hint(policy, last) or "add zones to `zones` of the target",
        refusal=refusal,
    )


def _exists(policy: Policy, tried: Sequence[Attempt], now: float, snapshot: str | None) -> Move:
    """The name is taken, yet no machine is seen: one is just coming or going, or its disk was left behind."""
    last = tried[-1]
    if _row(tried) < 4:
        left = last.at + _pause(_row(tried)) - now
        return Wait(left, f"{policy.name} exists already") if left > 0 else Create(last.zone, last.spot, snapshot)
    message = last.refusal.message if last.refusal else ""
    return GiveUp("conflict", f"the name {policy.name} is taken in {last.zone}, and no machine has it", cause=message,
                  hint="a disk of that name may be left: delete or rename it, or name another instance",
                  refusal=last.refusal)  # fmt: skip


def _hinted(policy: Policy, tried: Sequence[Attempt]) -> list[str]:
    """The target's zones, those first that the cloud itself named as having stock."""
    named = {zone for a in tried if a.refusal for zone in a.refusal.zones_available}
    return sorted(policy.zones, key=lambda zone: zone not in named)


def _refusals(tried: Sequence[Attempt], place: tuple[str, bool]) -> int:
    """How often there was none in this place, by itself or because its whole region was refused."""
    zone, spot = place
    here = [a for a in tried if a.refusal and a.spot is spot]
    region = [
        a for a in here
        if a.refusal and a.refusal.remedy is Remedy.NEXT_REGION and region_of(a.zone) == region_of(zone)
    ]  # fmt: skip
    retried = any(a.zone == zone and a.refusal and a.refusal.remedy in (Remedy.RETRY, Remedy.NOT_READY) for a in here)
    own = [a for a in here if a.zone == zone and a.refusal and a.refusal.remedy is Remedy.NEXT_ZONE]
    return len(own) + len(region) + (1 if retried else 0)


# ------------------------------------------------------------------------------------------------------------ refusals
def _again(tried: Sequence[Attempt], policy: Policy, now: float, what: str) -> Move | None:
    """After the refusals of one action: give up, wait, or (None) do it again."""
    refusal = tried[-1].refusal if tried else None
    if refusal is None:
        return None
    if refusal.remedy is Remedy.FATAL:
        return _fatal(what, policy, tried[-1])
    if _row(tried) >= PATIENCE:
        return GiveUp("timeout", f"{what}: the cloud goes on to refuse", cause=refusal.message,
                      hint=_hint(policy, tried[-1]), refusal=refusal)  # fmt: skip
    left = tried[-1].at + _pause(_row(tried)) - now
    return Wait(left, refusal.message) if left > 0 else None


def _row(tried: Sequence[Attempt]) -> int:
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


def _pause(times: int) -> float:
    return BACKOFF_S[min(max(times, 1), len(BACKOFF_S)) - 1]


def _fatal(what: str, policy: Policy, attempt: Attempt) -> GiveUp:
    """A refusal that no waiting cures, with what cures it."""
    refusal = attempt.refusal
    if refusal is None:
        raise ValueError("nothing was refused")
    problem: Problem = "config"
    if "quota" in refusal.code.lower() or refusals.quota_metric(refusal):
        problem = "quota"
    elif refusal.http_status in (401, 403) or refusals.missing_permission(refusal.message):
        problem = "denied"
    return GiveUp(problem, what, cause=refusal.message, hint=_hint(policy, attempt), refusal=refusal)


def _hint(policy: Policy, attempt: Attempt | None) -> str | None:
    if attempt is None or attempt.refusal is None:
        return None
    return refusals.hint(attempt.refusal, project=policy.project, region=region_of(attempt.zone))


def _last_words(history: History) -> str | None:
    return next((a.refusal.message for a in reversed(history.attempts) if a.refusal), None)


def _states(seen: Sequence[Machine]) -> str | None:
    return ", ".join(f"{m.status} in {m.zone}" for m in seen) or None
