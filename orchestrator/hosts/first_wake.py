"""Prepares a machine that fcctl started for the first time, as ``hosts prepare`` does, and waits for its driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.base.clock import Clock
from orchestrator.base.errors import FcctlError, HostUnreachable, LinkLost
from orchestrator.base.observer import Observer
from orchestrator.hosts.prepare import Preparation, preparation
from orchestrator.machines.targets import CloudTarget, Target

if TYPE_CHECKING:
    from orchestrator.machines.connect.ssh.fabric_connection import Connection

#: How long a driver may take to be installed, and a machine to restart, seconds.
DRIVER_LIMIT_S, RESTART_LIMIT_S = 300.0, 180.0
#: The pause between looks, seconds.
LOOK_AGAIN_S = 5.0


class FirstWake:
    """The preparation of one machine; ``limit_s`` seconds at most, all of them billed as its start."""

    def __init__(
        self, target: CloudTarget, connect: Callable[[Target], Connection], clock: Clock, observer: Observer,
        limit_s: float,
    ) -> None:  # fmt: skip
        self._target, self._connect, self._clock, self._observer = target, connect, clock, observer
        self._until = clock.monotonic() + limit_s
        self._away_since: float | None = None
        #: The boot that a reboot was asked in.
        self._ended_boot: str | None = None

    def carry_out(self) -> None:
        """Prints a line for each step that changed something, and for what could not be done: the run's own checks
        decide whether the machine is good enough."""
        while True:
            try:
                with preparation(self._target, self._connect, self._clock, self._show, self._until) as machine:
                    self._away_since = None
                    if self._is_done(machine):
                        return
            except (LinkLost, HostUnreachable) as error:
                if not self._may_come_back(error):
                    return
            except FcctlError as error:
                self._observer.note(f"{self._target.name} could not be prepared: {error.message}")
                return
            self._clock.sleep(LOOK_AGAIN_S)

    def _is_done(self, machine: Preparation) -> bool:
        """Whether all is done; False: the machine restarts."""
        if self._ended_boot is not None and machine.boot_id() == self._ended_boot:
            return self._left_s() <= 0
        self._wait_for_driver(machine)
        self._show("checking programs, GPU performance counters and memory")
        waiting = False
        for one in machine.change(machine.look()):
            waiting |= one.state == "at_reboot"
            if one.change is not None:
                self._observer.note(f"{self._target.name}: {one.line}")
        if not waiting or self._ended_boot is not None or self._left_s() < RESTART_LIMIT_S:
            return True
        self._ended_boot = machine.boot_id()
        machine.reboot()
        self._observer.note(f"{self._target.name} reboots once to apply these changes")
        return False

    def _wait_for_driver(self, machine: Preparation) -> None:
        began = self._clock.monotonic()
        while not machine.has_driver():
            waited = self._clock.monotonic() - began
            if waited > DRIVER_LIMIT_S or self._left_s() <= 0:
                self._observer.note(
                    f"{self._target.name}: nvidia-smi still fails after {waited:.0f} s; see why: fcctl hosts ssh "
                    f"{self._target.name} -- nvidia-smi"
                )
                return
            self._show(f"waiting for the installation of its NVIDIA driver, {waited:.0f} s so far")
            self._clock.sleep(LOOK_AGAIN_S)

    def _may_come_back(self, error: FcctlError) -> bool:
        now = self._clock.monotonic()
        self._away_since = self._away_since or now
        if self._left_s() <= 0 or now - self._away_since > RESTART_LIMIT_S:
            self._observer.note(f"{self._target.name} could not be prepared: {error.message}")
            return False
        self._show("no answer; it probably restarts after the installation of its driver")
        return True

    def _left_s(self) -> float:
        return self._until - self._clock.monotonic()

    def _show(self, text: str) -> None:
        self._observer.phase("wake", f"{self._target.name}: {text}")
