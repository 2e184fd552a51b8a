"""Controls beside the API: preempt, break and expire machines, advance time, change stock and quotas.

``POST <url>/emulator/...`` with JSON, answered with JSON; each is also a method of :class:`Emulator`.
"""

from __future__ import annotations

from typing import Any

from orchestrator.emulator.core.faults import Faults, FaultSyntax
from orchestrator.emulator.core.operations import supersede
from orchestrator.emulator.core.refusals import ApiError
from orchestrator.emulator.core.resources import path_of
from orchestrator.emulator.core.world import Machine, World
from orchestrator.emulator.machines import disks, guest, power

#: Events of a running machine, by their operation.
EVENTS = ("preempted", "hostError", "deferredStop", "guestTerminate", "terminateOnHostMaintenance")


class Control:
    """Events and settings. Machines are named; an ambiguous name is given as a path."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults

    def machine(self, name: str) -> Machine:
        """Raises LookupError: none, or several."""
        with self._world.lock:
            machines = [m for path, m in self._world.machines.items() if name in (path, path.rsplit("/", 1)[-1])]
        if len(machines) != 1:
            raise LookupError(f"{len(machines)} instances are called {name}")
        return machines[0]

    def happen(self, name: str, what: str) -> dict[str, Any]:
        """``what`` is one of :data:`EVENTS`; returns its operation. Raises LookupError: no such machine, or it does
        not run; ValueError: no such event."""
        if what not in EVENTS:
            raise ValueError(f"'{what}' does not happen; one of {', '.join(EVENTS)} does")
        with self._world.lock:
            machine = self.machine(name)
            if machine.status != "RUNNING":
                raise LookupError(f"{name} is {machine.status}")
            return dict(power.happen(self._world, machine, f"compute.instances.{what}").resource)

    def rotate_host_keys(self, name: str) -> None:
        """New host keys, as of another host; sshd restarts with them, and they are not published."""
        with self._world.lock:
            machine = self.machine(name)
            folder = disks.folder_of(self._world, self._world.disks[path_of(machine.resource["disks"][0]["source"])])
            guest.new_host_keys(folder)
            running = self._world.running.pop(machine.path, None)
            if running is not None:
                running.power_off()
                power.boot(self._world, machine.path, machine.life)

    def switch_all_off(self) -> None:
        """Sets every instance to TERMINATED, so that none is started with the next emulator of this state."""
        with self._world.lock:
            for machine in self._world.machines.values():
                if machine.status != "TERMINATED":
                    supersede(self._world, machine.path)
                    power.power_off(self._world, machine)
            self._world.save()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """``status``, ``instances/NAME/EVENT`` and ``/rotateHostKeys``, ``clock``, ``stock``, ``quotas``, ``faults``.
        Raises ApiError: unknown, or an invalid body."""
        try:
            return self._post(path.split("/"), body)
        except (LookupError, ValueError, TypeError, FaultSyntax) as error:
            raise ApiError("invalid", str(error)) from None

    def _post(self, parts: list[str], body: dict[str, Any]) -> dict[str, Any]:
        if parts[0] == "instances" and len(parts) == 3:
            if parts[2] == "rotateHostKeys":
                self.rotate_host_keys(parts[1])
                return {}
            return self.happen(parts[1], parts[2])
        if parts == ["status"]:
            with self._world.lock:
                return {"instances": {path: machine.status for path, machine in self._world.machines.items()}}
        if parts == ["clock"]:
            self._world.timeline.advance(float(body.get("advance", 0)))
            return {"now": self._world.now()}
        if parts == ["stock"]:
            self._world.scenario.stock.update({zone: int(count) for zone, count in body.items()})
            return {"stock": self._world.scenario.stock}
        if parts == ["quotas"]:
            for region, limits in body.items():
                self._world.scenario.quotas.setdefault(region, {}).update(limits)
            return {"quotas": self._world.scenario.quotas}
        if parts == ["faults"]:
            self._faults.clear()
            for entry in body.get("faults", []):
                self._faults.add(**{"for_s" if key == "for" else key: value for key, value in entry.items()})
            return {}
        raise ApiError("notFound", f"the emulator has no control '{'/'.join(parts)}'")


def guest_power(world: World, token: str, body: dict[str, Any]) -> dict[str, Any]:
    """Handles ``shutdown`` and similar commands inside an instance. Raises ApiError: no running instance has this
    token."""
    with world.lock:
        machine = world.machines.get(world.guests.get(token, ""))
        if machine is None:
            raise ApiError("notFound", "no such guest")
        unit, do = str(body.get("unit", "shutdown")), body.get("do")
        if do == "show":
            due = [moment - world.now() for moment in machine.timers.values()]
            return {"text": f"Shutdown scheduled in {min(due):.0f} s" if due else "No scheduled shutdown."}
        if do == "cancel":
            machine.timers.pop(unit, None)
        elif do in ("off", "reboot"):
            after = max(0.0, float(body.get("after_s", 0)))
            power.set_timer(world, machine, unit, world.now() + after, reboot=do == "reboot")
        world.save()
        return {}
