"""The states of an instance: PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED; SUSPENDING, SUSPENDED; REPAIRING.

Requests and events of the cloud use the same steps, so that a preempted machine ends in the same state as a stopped
one. The cloud's deadline is computed from the scheduling, which requests may set as the service allows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from orchestrator.emulator import disks
from orchestrator.emulator.call import admit
from orchestrator.emulator.clock import parse_timestamp, timestamp
from orchestrator.emulator.refusals import OperationError, invalid, path_of, seconds_of
from orchestrator.emulator.world import BilledTime, Machine, Operation, Plan, World, begin, step, supersede

_LOG = logging.getLogger(__name__)


def starting(world: World, created: Sequence[str] = ()) -> Plan:
    """``created``: disks created for this instance, deleted again if no machine is available."""
    latency = world.scenario.latency
    return [
        (0.0, "mark", {"status": "PROVISIONING"}),
        (latency.provisioning, "allocate", {"created": list(created)}),
        (0.0, "transit", {"status": "STAGING"}),
        (latency.staging, "enter_running", {}),
    ]


def stopping(world: World) -> Plan:
    return [
        (0.0, "mark", {"status": "STOPPING"}),
        (0.0, "shut_down", {}),
        (world.scenario.latency.stop, "switch_off", {}),
    ]


def deleting(world: World) -> Plan:
    return [
        (0.0, "mark", {"status": "STOPPING"}),
        (0.0, "shut_down", {}),
        (world.scenario.latency.delete, "forget", {}),
    ]


def suspending(world: World) -> Plan:
    return [(0.0, "mark", {"status": "SUSPENDING"}), (world.scenario.latency.suspend, "freeze", {})]


def resuming(world: World) -> Plan:
    return [
        (0.0, "mark", {"status": "STAGING"}),
        (0.0, "allocate", {"otherwise": "SUSPENDED"}),
        (world.scenario.latency.resume, "thaw", {}),
    ]


# ----------------------------------------------------------------------------------------------------------- steps
def instance_step(effect: Callable[..., None]) -> Callable[..., None]:
    """A step ``effect(world, operation, machine, **args)``, for the instance of the operation, if it is there still."""

    @wraps(effect)
    def carried_out(world: World, operation: Operation, **args: Any) -> None:
        machine = world.machines.get(operation.target)
        if machine is not None:
            effect(world, operation, machine, **args)

    return step(carried_out)


@instance_step
def mark(_world: World, _operation: Operation, machine: Machine, status: str) -> None:
    machine.resource["status"] = status


@instance_step
def transit(_world: World, _operation: Operation, machine: Machine, status: str) -> None:
    """An intermediate status, which an operation that never finishes does not reach."""
    machine.resource["status"] = status


@instance_step
def allocate(
    world: World, operation: Operation, machine: Machine, otherwise: str = "TERMINATED", created: Sequence[str] = ()
) -> None:
    """Allocates a machine, or sets the instance back to ``otherwise``; a new one is removed."""
    try:
        admit(world, machine)
    except OperationError:
        if operation.resource["operationType"] == "insert":
            forget(world, operation, created=created)
        else:
            machine.resource["status"] = otherwise
        raise


@instance_step
def enter_running(world: World, operation: Operation, machine: Machine) -> None:
    """RUNNING: the cloud bills from here, its deadline counts from here, and the system boots."""
    now = world.now()
    machine.life += 1
    machine.resource.update(status="RUNNING", lastStartTimestamp=timestamp(now))
    _bill(world, operation, machine)
    for interface in machine.resource["networkInterfaces"]:
        for access in interface.get("accessConfigs", []):
            access["natIP"] = "127.0.0.1"
    arm(world, machine, deadline(machine, now))
    _after(world, world.scenario.latency.boot, partial(boot, world, machine.path, machine.life))


def _bill(world: World, operation: Operation, machine: Machine) -> None:
    resource = machine.resource
    world.billed.append(BilledTime(resource["id"], resource["name"], operation.resource["name"], world.now()))


def _after(world: World, delay: float, event: Callable[[], None]) -> None:
    """Without a delay it is called now."""
    if delay:
        world.later(delay, event)
    else:
        event()


def arm(world: World, machine: Machine, deadline: float | None) -> None:
    """Sets the cloud's deadline and its event."""
    if deadline is None:
        machine.resource.pop("resourceStatus", None)
        return
    machine.resource["resourceStatus"] = {"scheduling": {"terminationTimestamp": timestamp(deadline)}}
    world.timeline.at(deadline + world.lateness(), partial(_expire, world, machine.path, machine.life))


@instance_step
def shut_down(world: World, operation: Operation, machine: Machine) -> None:
    supersede(world, operation.target, operation)
    world.hypervisor.shut_down(machine)


@instance_step
def switch_off(world: World, _operation: Operation, machine: Machine) -> None:
    power_off(world, machine)


def power_off(world: World, machine: Machine, status: str = "TERMINATED") -> None:
    """Cuts the power: what is not on a disk is lost."""
    world.hypervisor.power_off(machine)
    world.end_billing(machine)
    machine.life += 1
    machine.timers.clear()
    machine.resource.pop("resourceStatus", None)
    machine.resource.update(status=status, lastStopTimestamp=timestamp(world.now()))
    for interface in machine.resource["networkInterfaces"]:
        for access in interface.get("accessConfigs", []):
            access.pop("natIP", None)


@instance_step
def forget(world: World, operation: Operation, machine: Machine, created: Sequence[str] = ()) -> None:
    """Removes the instance with its auto-delete disks, and the disks of ``created``."""
    supersede(world, operation.target, operation)
    power_off(world, machine)
    del world.machines[machine.path]
    for attached in machine.resource["disks"]:
        path = path_of(attached["source"])
        disk = world.disks.get(path)
        if disk is not None:
            disk["users"] = [user for user in disk.get("users", []) if path_of(user) != machine.path]
            if attached.get("autoDelete") or path in created:
                disks.delete_disk(world, operation, path)


@instance_step
def freeze(world: World, _operation: Operation, machine: Machine) -> None:
    world.hypervisor.freeze(machine)
    world.end_billing(machine)
    machine.life += 1
    machine.resource.pop("resourceStatus", None)
    machine.resource.update(status="SUSPENDED", lastSuspendedTimestamp=timestamp(world.now()))


@instance_step
def thaw(world: World, operation: Operation, machine: Machine) -> None:
    if not world.hypervisor.thaw(machine):  # the emulator was restarted
        enter_running(world, operation)
        return
    _bill(world, operation, machine)
    machine.life += 1
    machine.resource.update(status="RUNNING", lastStartTimestamp=timestamp(world.now()))
    arm(world, machine, deadline(machine, world.now()))
    for unit, due in machine.timers.items():
        set_timer(world, machine, unit, due)


# ------------------------------------------------------------------------------------------------------- the inside
def _running(world: World, path: str, life: int) -> Machine | None:
    """The instance, if it is still in the life that an event is for."""
    machine = world.machines.get(path)
    return machine if machine is not None and machine.life == life and machine.status == "RUNNING" else None


def boot(world: World, path: str, life: int) -> None:
    """Boots the system; publishes host keys at the first boot; permits logins when the guest agent is up."""
    machine = _running(world, path, life)
    if machine is None:
        return
    try:
        world.hypervisor.boot(machine, world.disks[path_of(machine.resource["disks"][0]["source"])])
    except OSError as error:
        _LOG.exception("instance %s does not boot", path)
        machine.boot_error = f"the system does not boot: {error}\n"
        return
    machine.boot_error = ""
    _after(world, world.scenario.latency.login, partial(_guest_agent, world, path, life))


def _guest_agent(world: World, path: str, life: int) -> None:
    machine = _running(world, path, life)
    if machine is None:
        return
    if not machine.booted and machine.metadata().get("enable-guest-attributes", "").upper() == "TRUE":
        keys = world.hypervisor.host_keys(machine)
        machine.guest_attributes.update({f"hostkeys/{kind}": key for kind, key in keys.items()})
    machine.booted = True
    world.hypervisor.authorize(machine)


def set_timer(world: World, machine: Machine, unit: str, due: float, *, reboot: bool = False) -> None:
    """The guest's own timer: power off (or reboot) at ``due``."""
    machine.timers[unit] = due
    world.timeline.at(due, partial(_timer, world, machine.path, machine.life, unit, due, reboot))


def _timer(world: World, path: str, life: int, unit: str, due: float, reboot: bool) -> None:
    machine = _running(world, path, life)
    if machine is None or machine.timers.get(unit) != due:
        return
    if reboot:
        restart(world, machine)
    else:
        happen(world, machine, "compute.instances.guestTerminate")


def restart(world: World, machine: Machine) -> None:
    """Of its system: power and deadline stay; what is not on a disk is lost."""
    world.hypervisor.power_off(machine)
    machine.timers.clear()
    _after(world, world.scenario.latency.boot, partial(boot, world, machine.path, machine.life))


# ----------------------------------------------------------------------------------------------- what the cloud does
def _expire(world: World, path: str, life: int) -> None:
    machine = _running(world, path, life)
    if machine is None:
        return
    delete = machine.resource["scheduling"].get("instanceTerminationAction") == "DELETE"
    happen(world, machine, "compute.instances.deferredDelete" if delete else "compute.instances.deferredStop")


def happen(world: World, machine: Machine, kind: str) -> Operation:
    """Stops the machine without a client's request: guestTerminate, deferredStop, preempted, hostError, ..."""
    short = kind.rsplit(".", 1)[-1]
    delete = machine.resource["scheduling"].get("instanceTerminationAction") == "DELETE"
    supersede(world, machine.path)
    if short == "hostError":
        return _host_error(world, machine, kind)
    machine.resource["status"] = "STOPPING"
    plan = stopping(world)
    if short == "preempted":
        plan = [*plan[:1], (world.scenario.latency.preemption_notice, "shut_down", {}), *plan[2:]]
    if short == "deferredDelete" or (short == "preempted" and delete):
        plan = deleting(world)
    return begin(world, kind, machine.path, plan, target_id=machine.resource["id"], user="system")


def _host_error(world: World, machine: Machine, kind: str) -> Operation:
    """The host fails without a shutdown. Restarted only if the instance asks for it."""
    restart = bool(machine.resource["scheduling"].get("automaticRestart"))
    power_off(world, machine, "REPAIRING" if restart else "TERMINATED")
    plan: Plan = [(world.scenario.latency.staging, "enter_running", {})] if restart else []
    return begin(world, kind, machine.path, plan, target_id=machine.resource["id"], user="system")


#: The range of maxRunDuration, seconds.
RUN_S = (30, 120 * 24 * 3600)
MODELS = ("STANDARD", "SPOT")


def checked_scheduling(given: dict[str, Any] | None, *, gpus: int) -> dict[str, Any]:
    """The whole message with defaults; earlier values are not kept. Raises ApiError: an invalid combination."""
    given = dict(given or {})
    spot = given.get("provisioningModel") == "SPOT" or bool(given.get("preemptible"))
    model = "SPOT" if spot else given.get("provisioningModel") or "STANDARD"
    if model not in MODELS:
        raise invalid("scheduling.provisioningModel", model, f"One of {', '.join(MODELS)}.")
    scheduling = {
        "onHostMaintenance": "MIGRATE" if model == "STANDARD" else "TERMINATE",
        "automaticRestart": not spot,
        "preemptible": spot,
        "provisioningModel": model,
        **{key: value for key, value in given.items() if value is not None},
    }
    seconds = _run_s(scheduling)
    if spot and scheduling["automaticRestart"]:
        raise invalid("scheduling.automaticRestart", True, f"{model} cannot be restarted automatically.")
    if (gpus or spot) and scheduling["onHostMaintenance"] != "TERMINATE":
        who = "Spot instances" if spot else "Instances with guest accelerators"
        raise invalid("scheduling.onHostMaintenance", scheduling["onHostMaintenance"], f"{who} need TERMINATE.")
    _check_action(scheduling, seconds, ends=spot)  # preemption also ends an instance
    if seconds is not None:
        scheduling["maxRunDuration"] = {"seconds": str(seconds)}
    return scheduling


def _run_s(scheduling: dict[str, Any]) -> int | None:
    if "maxRunDuration" not in scheduling:
        return None
    seconds = seconds_of(scheduling["maxRunDuration"], "scheduling.maxRunDuration")
    if not RUN_S[0] <= seconds <= RUN_S[1]:
        raise invalid("scheduling.maxRunDuration", seconds, "Must be between 30 seconds and 120 days.")
    return seconds


def _check_action(scheduling: dict[str, Any], seconds: int | None, *, ends: bool) -> None:
    time, action = scheduling.get("terminationTime"), scheduling.get("instanceTerminationAction")
    if time is not None:
        try:
            parse_timestamp(str(time))
        except ValueError:
            raise invalid("scheduling.terminationTime", time, "Must be RFC 3339.") from None
        if seconds is not None:
            raise invalid("scheduling.terminationTime", time, "Not with maxRunDuration.")
    limited = time is not None or seconds is not None
    if action not in (None, "STOP", "DELETE"):
        raise invalid("scheduling.instanceTerminationAction", action, "Must be STOP or DELETE.")
    if limited and action is None:
        raise invalid("scheduling.instanceTerminationAction", "", "Needed with maxRunDuration or terminationTime.")
    if action is not None and not limited and not ends:
        raise invalid("scheduling.instanceTerminationAction", action, "Needs maxRunDuration, or a Spot instance.")


def deadline(machine: Machine, running_since: float) -> float | None:
    """When the cloud ends this run, counted from the entry into RUNNING; None for never."""
    scheduling = machine.resource["scheduling"]
    if "maxRunDuration" in scheduling:
        return running_since + seconds_of(scheduling["maxRunDuration"], "scheduling.maxRunDuration")
    if "terminationTime" in scheduling:
        return parse_timestamp(str(scheduling["terminationTime"]))
    return None
