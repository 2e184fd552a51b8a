"""``fcctl hosts prepare``: makes a machine fit for GPU work, step by step, each shown before it is done. The same for a
machine that fcctl started for the first time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.base.clock import Clock
from orchestrator.base.errors import FcctlError, HostUnreachable, HostUnusable, LinkLost
from orchestrator.base.observer import Observer
from orchestrator.base.sanitize import clean
from orchestrator.hosts.prepare_steps import (
    AT_REBOOT,
    BOOT_ID,
    BUSY,
    HAS_DRIVER,
    IS_FREE,
    MARK,
    MAY_BE_ROOT,
    MISSING,
    NOT_HERE,
    PRELUDE,
    REBOOT,
    STEPS,
    PrepareStep,
)
from orchestrator.machines.connect.bootstrap import shell_path
from orchestrator.machines.targets import CloudTarget, LocalTarget, Target, TargetBase

if TYPE_CHECKING:
    from orchestrator.machines.connect.ssh.fabric_connection import Connection

#: What a look may take, seconds.
LOOK_S = 30.0
#: The pause before a step is tried again that another program keeps waiting, seconds.
BUSY_S = 5.0

State = Literal["fit", "missing", "not_here", "changed", "at_reboot", "denied", "failed"]


@dataclass(frozen=True)
class StepOutcome:
    """A step: what it found, and what it changed."""

    step: PrepareStep
    state: State
    found: str
    change: str | None = None

    @property
    def line(self) -> str:
        return f"{self.step.title}: {self.found}" + (f"; {self.change}" if self.change else "")

    @property
    def as_json(self) -> dict[str, Any]:
        return {"step": self.step.id, "state": self.state, "found": self.found, "change": self.change}


class Preparation:
    """The steps on one machine.

    Args:
        run: as of a Fabric connection, or of Invoke for this computer.
        as_command: makes a command of a POSIX shell script.
        waiting: called with what the step waits for.
        until: when all of it must have ended, by the clock's monotonic time.
    """

    def __init__(
        self, target: TargetBase, run: Callable[..., Any], as_command: Callable[[str], str], clock: Clock,
        waiting: Callable[[str], None], until: float = float("inf"),
    ) -> None:  # fmt: skip
        self._name, self._run, self._as_command = target.name, run, as_command
        self._clock, self._waiting, self._until = clock, waiting, until
        self._root = f"FCCTL_ROOT={shell_path(target.root)}\n"

    def look(self) -> list[StepOutcome]:
        """What each step finds; changes nothing. Raises LinkLost."""
        return [self._look(step) for step in STEPS]

    def change(self, found: list[StepOutcome]) -> Iterator[StepOutcome]:
        """Does what is missing, step by step. Raises LinkLost."""
        may_be_root = not any(one.state == "missing" for one in found) or self._shell(MAY_BE_ROOT, LOOK_S)[0] == 0
        for one in found:
            if one.state != "missing":
                yield one
            elif not may_be_root:
                yield StepOutcome(
                    one.step, "denied", one.found, "this needs root, and sudo asks for a password on that machine"
                )
            else:
                yield self._change(one)
        if may_be_root:
            self._shell(MARK, LOOK_S)

    def reboot(self) -> None:
        """Asks the machine to start again; the connection ends with it."""
        try:
            status, _, errors = self._shell(REBOOT, LOOK_S)
        except LinkLost:
            return
        if 0 < status < 126:  # else it, or the connection, was ended by the reboot
            raise HostUnusable(f"{self._name} did not reboot", cause=errors, hint="log in and reboot it: sudo reboot")

    def is_free(self) -> bool:
        """Whether no run is on the machine."""
        return self._shell(IS_FREE, LOOK_S)[0] == 0

    def boot_id(self) -> str:
        return self._shell(BOOT_ID, LOOK_S)[1]

    def has_driver(self) -> bool:
        """Whether the NVIDIA driver works, or the machine has no GPU for it."""
        return self._shell(HAS_DRIVER, LOOK_S)[0] == 0

    def _look(self, step: PrepareStep) -> StepOutcome:
        status, text, errors = self._shell(step.check, LOOK_S)
        states: dict[int, State] = {0: "fit", MISSING: "missing", NOT_HERE: "not_here"}
        return StepOutcome(step, states.get(status, "failed"), text or errors or f"exit code {status}")

    def _change(self, one: StepOutcome) -> StepOutcome:
        deadline = min(self._clock.monotonic() + one.step.limit_s, self._until)
        while True:
            status, text, errors = self._shell(one.step.change, one.step.limit_s)
            if status != BUSY or self._clock.monotonic() > deadline:
                break
            self._waiting(f"{one.step.title}: {text}")
            self._clock.sleep(BUSY_S)
        states: dict[int, State] = {0: "changed", AT_REBOOT: "at_reboot"}
        state = states.get(status, "failed")
        return StepOutcome(one.step, state, one.found, text if state != "failed" else f"failed: {errors or status}")

    def _shell(self, script: str, limit_s: float) -> tuple[int, str, str]:
        """Exit status, last line of the output and of the errors. Raises LinkLost."""
        status, output, errors = self.run(script, limit_s)
        return status, _last_line(output), _last_line(errors)

    def run(self, script: str, limit_s: float) -> tuple[int, str, str]:
        """Exit status, output and errors of a script, which has FCCTL_ROOT; 124 if it takes too long. Raises
        LinkLost."""
        from invoke.exceptions import CommandTimedOut, ThreadException
        from paramiko.ssh_exception import SSHException

        limit_s = max(1.0, min(limit_s, self._until - self._clock.monotonic()))
        command = self._as_command(PRELUDE + self._root + script)
        try:
            done = self._run(command, hide=True, warn=True, in_stream=False, timeout=limit_s)
        except CommandTimedOut:
            return 124, "", f"the command took longer than {limit_s:g} s"
        except (OSError, EOFError, SSHException, ThreadException) as error:
            raise LinkLost(
                f"the connection to {self._name} broke", cause=clean(error), hint="run the command again"
            ) from None
        return done.return_code, done.stdout, done.stderr


def _last_line(text: str) -> str:
    """The last line of a machine's output, safe to print."""
    return clean((text.strip().splitlines() or [""])[-1])


@contextmanager
def preparation(
    target: Target, connect: Callable[[Target], Connection], clock: Clock, waiting: Callable[[str], None],
    until: float = float("inf"),
) -> Iterator[Preparation]:  # fmt: skip
    """The steps on the target's machine. Raises HostUnreachable."""
    from orchestrator.machines.connect.ssh.fabric_connection import posix

    if isinstance(target, LocalTarget):
        from invoke.config import Config
        from invoke.context import Context

        yield Preparation(target, Context(Config(lazy=True)).run, posix, clock, waiting, until)
        return
    with connect(target) as connection:
        yield Preparation(target, connection.run, posix, clock, waiting, until)


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
