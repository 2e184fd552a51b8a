"""Decides the next action to acquire a machine, from what the cloud lists and what it refused so far.

Pure. ``machines.provision.acquire`` lists the machines, calls :func:`next_action`, executes the action, adds the result
to the :class:`History`, and repeats. Whatever the cloud answers:

- a machine is started only after its max run duration (with STOP) was read back,
- nothing is created while a machine of that name exists in any zone, or while a creation is in progress,
- of several machines created concurrently by processes that could not know of each other, all keep the same one,
- it ends: every wait is within the target's ``wake_timeout_s`` (and ``stockout_wait_minutes`` without stock).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile

from orchestrator.machines.cloud import MANAGED_LABEL, RUN_LABEL, Machine, Power, Refusal, Remedy, region_of
from orchestrator.machines.provision.actions import (
    POLL_S,
    Action,
    Attempt,
    Create,
    DeleteCreated,
    Fail,
    History,
    Policy,
    SetDeadline,
    Snapshot,
    Start,
    Stop,
    UseMachine,
    Wait,
)
from orchestrator.machines.targets import Provisioning

#: The tolerance between the cloud's clock and ours in deadlines, seconds.
SLACK_S = 5.0


def next_action(
    seen: Sequence[Machine], policy: Policy, history: History, now: float, cloud_ahead_s: float = 0.0
) -> Action:
    """What to do next.

    Args:
        seen: every machine of the name, from all zones, as they are now.
        now: epoch seconds on the clock of ``history``.
        cloud_ahead_s: how much the cloud's clock, which sets its deadlines, is ahead of that one.
    """
    if now - history.began >= policy.limit_s:
        refusals = (attempt.refusal.message for attempt in reversed(history.attempts) if attempt.refusal)
        states = ", ".join(f"{machine.status} in {machine.zone}" for machine in seen)
        return Fail(
            "timeout",
            f"{policy.name} was not ready after {policy.limit_s:.0f} s",
            cause=next(refusals, states or None),
            hint="see its state: fcctl hosts ls; run the command again, or raise wake_timeout_s in the target",
        )
    deletion = _delete_created(seen, policy, history, now)
    if deletion is not None:
        return deletion
    machine = choose(seen, policy, history)
    if machine is None:
        return creation(policy, history, now, frozenset(), None) if policy.request.start else _over(policy)
    power = machine.power
    if power is Power.RUNNING:
        return _running(machine, policy, history, now, now + cloud_ahead_s)
    if power is Power.STOPPED:
        return _stopped(machine, policy, history, now, seen)
    if power is Power.SUSPENDED:
        return _suspended(machine)
    return _in_between(machine, policy, history, now)


def choose(seen: Sequence[Machine], policy: Policy, history: History) -> Machine | None:
    """The machine to use, of several of one name: of those that are on the oldest, as every fcctl decides; else one
    whose zone has not refused to start it; else the one that was on last, whose disk is the newest."""
    order = {zone: n for n, zone in enumerate(policy.target.zones)}

    def rank(machine: Machine) -> tuple[int, float, int, str]:
        refused = len([a for a in history.of("start", machine.zone) if a.refusal is not None])
        return refused, -(machine.started or 0.0), order.get(machine.zone, len(order)), machine.zone

    return min(filter(_is_on, seen), key=_age, default=None) or min(seen, key=rank, default=None)


def _is_on(machine: Machine) -> bool:
    """Whether it is on or starting."""
    return machine.power not in (Power.STOPPED, Power.STOPPING, Power.SUSPENDED, Power.SUSPENDING)


def _age(machine: Machine) -> tuple[float, str]:
    """A sort key, oldest first, from the cloud's data, so that every process decides alike."""
    return machine.created if machine.created is not None else math.inf, machine.zone


def _delete_created(seen: Sequence[Machine], policy: Policy, history: History, now: float) -> Action | None:
    """Delete what was made here, if an older one is on by now: another computer's fcctl saw none either, and made one
    in another zone. All see the same two, and whoever made the younger one deletes it.

    It is where we asked for one, even if that was refused (a refused creation may have happened), and has the label of
    who it was made for: whoever uses it has put another on it.
    """
    asked = {a.zone for a in history.of("create")}
    first = min(filter(_is_on, seen), key=_age, default=None)
    younger = [m for m in seen if _is_on(m) and m is not first and m.zone in asked]
    own = (m for m in younger if m.labels.get(RUN_LABEL) == policy.label and MANAGED_LABEL in m.labels)
    ours = next(own, None)
    if first is None or ours is None:
        return None
    refused = again(history.of("delete", ours.zone), now, f"the second machine {ours.name} cannot be deleted")
    return refused or DeleteCreated(ours, first)


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
def _running(machine: Machine, policy: Policy, history: History, now: float, cloud_now: float) -> Action:
    # Even if refused: a refused start may have happened.
    starts = [*history.of("start", machine.zone), *history.of("create", machine.zone)]
    ours, request = bool(starts), policy.request
    if not ours and request.restart:
        return _stop(machine, history, now)
    deadline = deadline_of(machine)
    if deadline is None:
        return UseMachine(machine) if request.allow_unfenced and not ours else _unfenced(machine, ours=ours)
    if any(start.worked for start in starts) and (machine.max_run_s or 0) > request.max_run_s:
        return _changed_limit(machine, f"with a limit of {machine.max_run_s} s instead of {request.max_run_s} s")
    if not ours and deadline - cloud_now + SLACK_S < request.need_s:
        return Fail(
            "budget",
            f"the cloud stops {machine.name} in {max(0.0, deadline - cloud_now) / 60:.0f} minutes, but the steps may "
            f"take {request.need_s / 60:.0f}",
            cause="the time limit of a running machine cannot be changed",
            hint="stop it and start it with a new time limit: --restart; or wait until it has stopped",
        )
    return UseMachine(machine)


def _unfenced(machine: Machine, *, ours: bool) -> Fail:
    action = "deletes it" if machine.termination_action == "DELETE" else "never stops it"
    if ours:
        return _changed_limit(machine, f"without its time limit: the cloud {action}")
    return Fail(
        "budget",
        f"{machine.name} runs without a time limit: the cloud {action}",
        cause="it was started without fcctl, and the time limit of a running machine cannot be changed",
        hint="stop it and start it with a time limit: --restart; or rely on the machine's own shutdown timer only: "
        "--allow-unfenced",
    )


def _changed_limit(machine: Machine, how: str) -> Fail:
    cause = "another program changed the limit after fcctl had set it"
    hint = "find out what else starts this machine (fcctl hosts audit), then run the command again"
    return Fail("conflict", f"{machine.name} was started {how}", cause, hint)


def _stop(machine: Machine, history: History, now: float) -> Action:
    tried = history.of("stop", machine.zone)
    if len([a for a in tried if a.worked]) >= 2:
        return Fail(
            "conflict",
            f"{machine.name} was stopped, and is running again",
            cause="another program or person started it",
            hint="find out what starts this machine (fcctl hosts audit), then run the command again",
        )
    return again(tried, now, f"{machine.name} cannot be stopped") or Stop(machine)


def _suspended(machine: Machine) -> Fail:
    return Fail(
        "conflict",
        f"{machine.name} is suspended in {machine.zone}",
        cause="only a stopped machine can get a time limit, and a stop deletes the contents of its memory",
        hint="resume it, save your work and stop it yourself; then run the command again",
    )


def _stopped(machine: Machine, policy: Policy, history: History, now: float, seen: Sequence[Machine]) -> Action:
    if not policy.request.start:
        return _over(policy)
    starts = history.of("start", machine.zone)
    if any(a.worked for a in (*starts, *history.of("create", machine.zone))):
        return Fail(
            "preempted",
            f"{machine.name} was stopped during its start",
            cause=f"it was RUNNING in {machine.zone} and is {machine.status} now",
            hint="see the reason: fcctl hosts ls; then run the command again",
        )
    if starts and starts[-1].refusal is not None:
        if starts[-1].refusal.remedy in (Remedy.NEXT_ZONE, Remedy.NEXT_REGION):
            move = _no_stock(machine, policy, history, now, seen)
        else:
            move = again(starts, now, f"{machine.name} cannot be started")
        if move is not None:
            return move
    if starts and not starts[-1].done and now - starts[-1].at < policy.target.wake_timeout_s:
        return Wait(POLL_S, f"{machine.name} will start soon")
    return _fence(machine, policy, history, now) or Start(machine)


def _over(policy: Policy) -> Fail:
    return Fail(
        "conflict",
        f"{policy.name} is off, because its session has ended",
        hint="see why: fcctl session status; then run the command again, or start another session",
    )


def _fence(machine: Machine, policy: Policy, history: History, now: float) -> Action | None:
    """None if the cloud shows the limit that is wanted."""
    if machine.max_run_s == policy.request.max_run_s and machine.termination_action == "STOP":
        return None
    tried = history.of("fence", machine.zone)
    if len([a for a in tried if a.worked]) >= 2:
        return Fail(
            "conflict",
            f"the time limit of {machine.name} changes after fcctl has set it",
            cause=f"fcctl set {policy.request.max_run_s} s; the cloud shows {machine.max_run_s} s",
            hint="another fcctl may be starting this machine; run the command again in a minute",
        )
    refused = again(tried, now, f"the time limit of {machine.name} cannot be set")
    return refused or SetDeadline(machine, policy.request.max_run_s)


def _in_between(machine: Machine, policy: Policy, history: History, now: float) -> Action:
    since = max([history.began, *(a.at for a in history.attempts)])
    if now - since >= policy.target.wake_timeout_s:
        return Fail(
            "timeout",
            f"{machine.name} has been {machine.status} in {machine.zone} for {now - since:.0f} s",
            hint="see its state: fcctl hosts ls; if it needs more time, raise wake_timeout_s in the target",
        )
    return Wait(POLL_S, f"{machine.name} is {machine.status}")


# ----------------------------------------------------------------------------------------------------------- no stock
def _no_stock(machine: Machine, policy: Policy, history: History, now: float, seen: Sequence[Machine]) -> Action | None:
    """What the target wants for a stopped machine whose zone has none like it; None: ask again."""
    starts = [a for a in history.of("start", machine.zone) if a.refusal is not None]
    refusal, how, hint = starts[-1].refusal, policy.target.on_stockout, "run the command again later"
    if how == "rebuild" and policy.may_create:
        return _rebuild(machine, policy, history, now, seen)
    if how != "fail" and now - history.began < policy.stockout_wait_s:
        return _pause(starts[-1], len(starts), now, f"{machine.zone} has no free machine for {machine.name}")
    waited = f" after {(now - history.began) / 60:.0f} minutes" if how != "fail" else ""
    if how != "rebuild":
        hint += ', or set on_stockout = "rebuild" in the target: fcctl then copies its disk to another zone'
    return Fail(
        "capacity",
        f"{machine.zone} has no free machine for {machine.name}{waited}",
        cause=refusal.message if refusal else None,
        hint=refusal.hint if refusal and refusal.remedy is Remedy.NEXT_REGION else hint,
    )


def _rebuild(machine: Machine, policy: Policy, history: History, now: float, seen: Sequence[Machine]) -> Action:
    """A copy in a zone that has none of the name: an earlier rebuild may have left some, each off."""
    other = next((one for one in seen if one.power is not Power.STOPPED), None)
    if other is not None:
        return _suspended(other) if other.power is Power.SUSPENDED else _in_between(other, policy, history, now)
    name = snapshot_name(machine)
    tried = history.of("snapshot", machine.zone)
    if not any(a.worked for a in tried):
        return again(tried, now, f"a snapshot of {machine.name} cannot be created") or Snapshot(machine, name)
    return creation(policy, history, now, frozenset(one.zone for one in seen), name)


#: Waits between requests after a stockout or a transient refusal, seconds; the last repeats.
BACKOFF_S = (5.0, 10.0, 20.0, 40.0, 60.0)
#: How many transient refusals in a row count as a failure.
PATIENCE = 6


def creation(policy: Policy, history: History, now: float, taken: frozenset[str], snapshot: str | None) -> Action:
    """A machine where there is none, or none to be had: the first zone and price model not refused yet."""
    if not policy.may_create:
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
            return _fatal(f"{policy.name} cannot be created in {last.zone}", last.refusal)
        if last.refusal.remedy in (Remedy.RETRY, Remedy.NOT_READY) and in_a_row(tried) < PATIENCE:
            wait = _pause(last, in_a_row(tried), now, last.refusal.message)
            return wait or Create(last.zone, last.way, snapshot)
    places = [(zone, way) for way in policy.target.ways for zone in _hinted(policy, tried) if zone not in taken]
    rounds = {place: _refusals(tried, place) for place in places}
    fewest = min(rounds.values(), default=0)
    place = next((p for p in places if rounds[p] == fewest), None)
    waits = policy.target.on_stockout == "wait" and snapshot is None and now - history.began < policy.stockout_wait_s
    if place is None or (fewest > 0 and last is not None and not waits):
        return _nowhere(policy, last)
    wait = None
    if fewest > 0 and last is not None and max(rounds.values()) == fewest:
        wait = _pause(last, fewest, now, f"no zone has a free machine for {policy.name}")
    return wait or Create(*place, snapshot)


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
        wait = _pause(last, in_a_row(tried), now, f"{policy.name} already exists")
        return wait or Create(last.zone, last.way, snapshot)
    message = last.refusal.message if last.refusal else ""
    return Fail("conflict", f"the name {policy.name} is in use in {last.zone}, but not by a machine", cause=message,
                  hint="a disk may have that name: delete it, or set another `instance` in the target")  # fmt: skip


def _hinted(policy: Policy, tried: Sequence[Attempt]) -> list[str]:
    """The target's zones, those first that the cloud itself named as having stock."""
    named = {zone for a in tried if a.refusal for zone in a.refusal.zones_available}
    return sorted(dict.fromkeys(policy.target.zones), key=lambda zone: zone not in named)


def _refusals(tried: Sequence[Attempt], place: tuple[str, Provisioning]) -> int:
    """Counts the refused attempts that rule out ``place``, a zone with a price model: those in its zone, and those that
    rule out the whole region. Refusals that ask for a repetition count once."""
    zone, way = place
    remedies = [(a.zone, a.refusal.remedy) for a in tried if a.refusal and a.way == way]
    own = [remedy for where, remedy in remedies if where == zone]
    region = [r for where, r in remedies if r is Remedy.NEXT_REGION and region_of(where) == region_of(zone)]
    return own.count(Remedy.NEXT_ZONE) + len(region) + (Remedy.RETRY in own or Remedy.NOT_READY in own)


# ----------------------------------------------------------------------------------------------------- after a refusal
def again(tried: Sequence[Attempt], now: float, what: str) -> Action | None:
    """After the refusals of one action: fail, wait, or (None) do it again."""
    refusal = tried[-1].refusal if tried else None
    if refusal is None:
        return None
    if refusal.remedy is Remedy.FATAL:
        return _fatal(what, refusal)
    if in_a_row(tried) >= PATIENCE:
        return Fail("timeout", f"{what}: the cloud refused every attempt", refusal.message, refusal.hint)
    return _pause(tried[-1], in_a_row(tried), now, refusal.message)


def in_a_row(tried: Sequence[Attempt]) -> int:
    """Counts the attempts at the end of ``tried`` that were refused in one zone with one remedy."""
    kinds = [(attempt.zone, attempt.refusal and attempt.refusal.remedy) for attempt in reversed(tried)]
    return len(list(takewhile(lambda kind: kind[1] is not None and kind == kinds[0], kinds)))


def _pause(attempt: Attempt, times: int, now: float, why: str) -> Wait | None:
    """The rest of the pause after ``attempt``, the last of so many that were refused; None: it is over."""
    left = attempt.at + BACKOFF_S[min(max(times, 1), len(BACKOFF_S)) - 1] - now
    return Wait(left, why) if left > 0 else None


def _fatal(what: str, refusal: Refusal) -> Fail:
    """A refusal that no waiting cures, with what cures it."""
    return Fail(refusal.problem, what, refusal.message, refusal.hint)
