"""The states of an instance: PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED; SUSPENDING, SUSPENDED; REPAIRING.

Requests and events of the cloud use the same steps, so that a preempted machine ends in the same state as a stopped
one. The cloud's deadline is computed from the scheduling, which requests may set as the service allows."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from orchestrator.emulator import disks
from orchestrator.emulator.call import admit
from orchestrator.emulator.clock import parse_timestamp, timestamp
from orchestrator.emulator.guest import Guest, host_keys, login_name
from orchestrator.emulator.refusals import OperationError, invalid, path_of, seconds_of
from orchestrator.emulator.world import Machine, Operation, Plan, World, begin, step, supersede

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
def enter_running(world: World, _operation: Operation, machine: Machine) -> None:
    """RUNNING: the cloud's deadline counts from here, and the system boots."""
    now = world.now()
    machine.life += 1
    machine.resource.update(status="RUNNING", lastStartTimestamp=timestamp(now))
    for interface in machine.resource["networkInterfaces"]:
        for access in interface.get("accessConfigs", []):
            access["natIP"] = "127.0.0.1"
    arm(world, machine, deadline(machine, now))
    life = machine.life
    if world.scenario.latency.boot:
        world.later(world.scenario.latency.boot, partial(boot, world, machine.path, life))
    else:
        boot(world, machine.path, life)


def arm(world: World, machine: Machine, deadline: float | None) -> None:
    """Sets the cloud's deadline and its event."""
    if deadline is None:
        machine.resource.pop("resourceStatus", None)
        return
    machine.resource["resourceStatus"] = {"scheduling": {"terminationTimestamp": timestamp(deadline)}}
    lateness = world.scenario.latency.expiry_lateness
    world.timeline.at(deadline + lateness, partial(_expire, world, machine.path, machine.life))


@step
def shut_down(world: World, operation: Operation) -> None:
    supersede(world, operation.target, operation)
    guest = world.running.get(operation.target)
    if guest is not None:
        guest.shut_down()


@instance_step
def switch_off(world: World, _operation: Operation, machine: Machine) -> None:
    power_off(world, machine)


def power_off(world: World, machine: Machine, status: str = "TERMINATED") -> None:
    """Cuts the power: what is not on a disk is lost."""
    guest = world.running.pop(machine.path, None)
    if guest is not None:
        guest.power_off()
    world.guests = {token: path for token, path in world.guests.items() if path != machine.path}
    machine.life += 1
    machine.timers.clear()
    machine.volatile = None
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
def freeze(world: World, operation: Operation, machine: Machine) -> None:
    if operation.target in world.running:
        world.running[operation.target].freeze()
    machine.life += 1
    machine.resource.pop("resourceStatus", None)
    machine.resource.update(status="SUSPENDED", lastSuspendedTimestamp=timestamp(world.now()))


@instance_step
def thaw(world: World, operation: Operation, machine: Machine) -> None:
    if operation.target not in world.running:  # the emulator was restarted
        enter_running(world, operation)
        return
    world.running[operation.target].thaw()
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
    """Starts sshd; publishes host keys at the first boot; permits logins when the guest agent is up."""
    machine = _running(world, path, life)
    if machine is None:
        return
    token = secrets.token_urlsafe(16)
    folder = disks.folder_of(world, world.disks[path_of(machine.resource["disks"][0]["source"])])
    try:
        guest = Guest.boot(
            folder,
            instance_id=machine.resource["id"],
            port=machine.port,
            url=world.url,
            token=token,
            path=world.scenario.guest_path,
            make_disk=world.make_disk,
            announce=world.guardian.announce,
        )
    except OSError as error:
        _LOG.exception("instance %s does not boot", path)
        machine.volatile, machine.boot_error = None, f"the system does not boot: {error}\n"
        return
    world.guests[token] = path
    world.running[path] = guest
    machine.port, machine.volatile, machine.boot_error = guest.port, str(guest.volatile), ""
    if world.scenario.latency.login:
        world.later(world.scenario.latency.login, partial(_guest_agent, world, path, life))
    else:
        _guest_agent(world, path, life)


def _guest_agent(world: World, path: str, life: int) -> None:
    machine = _running(world, path, life)
    if machine is None:
        return
    if not machine.booted and machine.metadata().get("enable-guest-attributes", "").upper() == "TRUE":
        machine.guest_attributes.update(
            {f"hostkeys/{kind}": blob for kind, blob in host_keys(world.running[path].disk).items()}
        )
    machine.booted = True
    authorize(world, machine)


def authorize(world: World, machine: Machine) -> None:
    """Gives sshd the metadata's keys for the one user; none with OS Login, as on real machines."""
    guest = world.running.get(machine.path)
    if guest is None:
        return
    metadata = machine.metadata()
    entries = [line.partition(":") for line in metadata.get("ssh-keys", "").splitlines()]
    keys = [key.strip() for user, _, key in entries if user.strip() == login_name()]
    guest.authorize([] if metadata.get("enable-oslogin", "").upper() == "TRUE" else keys)


def set_timer(world: World, machine: Machine, unit: str, due: float, *, reboot: bool = False) -> None:
    """The guest's own timer: power off (or reboot) at ``due``."""
    machine.timers[unit] = due
    world.timeline.at(due, partial(_timer, world, machine.path, machine.life, unit, due, reboot))


def _timer(world: World, path: str, life: int, unit: str, due: float, reboot: bool) -> None:
    machine = _running(world, path, life)
    if machine is None or machine.timers.get(unit) != due:
        return
    if reboot:
        _reboot(world, machine)
    else:
        happen(world, machine, "compute.instances.guestTerminate")


def _reboot(world: World, machine: Machine) -> None:
    """Reboots: power and deadline stay; what is not on a disk is lost."""
    guest = world.running.pop(machine.path, None)
    if guest is not None:
        guest.power_off()
    machine.timers.clear()
    boot(world, machine.path, machine.life)


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
