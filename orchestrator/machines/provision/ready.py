"""A target's machine in its cloud: found, changed, and waited for until the host program answers on it: login key,
pinned host keys, login."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from orchestrator.base.clock import Clock, in_thread
from orchestrator.base.errors import (
    AuthError,
    CapacityError,
    CloudError,
    ConfigError,
    FcctlError,
    HostUnreachable,
    LinkLost,
)
from orchestrator.base.sanitize import clean
from orchestrator.machines.cloud import MANAGED_LABEL, Endpoint, Machine, Operation, Power, Remedy
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.interfaces import Cloud, MachineParts
from orchestrator.machines.provision.actions import Action
from orchestrator.machines.provision.endpoint import (
    EMULATOR_PORT_ITEM,
    GUEST_ATTRIBUTES_ITEM,
    HOST_KEYS_PATH,
    OS_LOGIN_ITEM,
    endpoint,
    login_items,
    on_loopback,
    parse_host_keys,
)
from orchestrator.machines.targets import CloudTarget, SandboxTarget, Target

#: The limit of a stop, after which the time limits have to end the machine; a shutdown that hangs takes minutes.
STOP_LIMIT_S = 600.0
#: Labels, metadata, limits: they take a second or two.
CHANGE_LIMIT_S = 120.0


class Log(Protocol):
    """Appends a line to a journal; synced before it returns, unless it is about a stop and the disk is full."""

    def __call__(self, kind: str, **data: object) -> object: ...


def find_machine(parts: MachineParts, target: Target) -> CloudTarget | None:
    """The cloud machine of ``target``; None if the target is no cloud machine."""
    return parts.clouds.resolve(target) if isinstance(target, CloudTarget | SandboxTarget) else None


def find_machines(cloud: Cloud, target: CloudTarget, *, everywhere: bool = False) -> list[Machine]:
    """Every machine of the target's name: in its zones, and any that fcctl made in another one.

    Args:
        everywhere: look into other zones even if one is found in the target's own.

    Raises CloudError: a zone did not answer, so it is unknown whether it has a machine.
    """
    machines = [machine for zone in dict.fromkeys(target.zones) if (machine := cloud.machine(zone, target.instance))]
    if everywhere or not machines:
        labelled, _unanswered = cloud.machines({MANAGED_LABEL: None})
        places = {machine.zone for machine in machines}
        machines += [m for m in labelled if m.name == target.instance and m.zone not in places]
    return machines


def with_disk_types(cloud: Cloud, machine: Machine) -> Machine:
    """The same machine with the types of its disks, as far as the cloud says them in the disks' own entries."""
    types = {disk.name: disk.type for disk in cloud.disks(machine)} if machine.disks else {}
    disks = tuple(replace(disk, type=disk.type or types.get(disk.name, "")) for disk in machine.disks)
    return replace(machine, disks=disks)


def query_in_thread(parts: MachineParts, target: CloudTarget, zone: str) -> Future[Machine | None]:
    """Queries the machine in the background, because importing the cloud's library takes seconds."""
    return in_thread(lambda: parts.clouds.open(target).machine(zone, target.instance), "fcctl-cloud")


@dataclass
class Changes:
    """The cloud's mutations on one target's machine."""

    cloud: Cloud
    clock: Clock
    log: Log
    name: str
    #: How much the cloud's clock is ahead of this one, once an operation has shown it.
    cloud_ahead_s: float | None = None

    def make(self, action: Action | str, zone: str, change: Callable[[str], Operation], limit_s: float) -> Operation:
        """Requests a change and waits for it; the operation may be refused, or not done after ``limit_s``."""
        request_id = new_request_id()
        self.log("cloud", action=str(action), zone=zone, name=self.name, request_id=request_id)
        requested = self.clock.now()
        try:
            operation = change(request_id)
        except AuthError:
            self.log("refused", request_id=request_id)
            raise
        if operation.refusal is not None and not operation.name:  # else the cloud lists it, perhaps not at once
            self.log("refused", request_id=request_id)
        if operation.started is not None:
            self.cloud_ahead_s = operation.started - requested
        deadline = self.clock.monotonic() + limit_s
        while not operation.done and self.clock.monotonic() < deadline:
            operation = self.cloud.wait(operation, max(1.0, deadline - self.clock.monotonic()))
        return operation


# -------------------------------------------------------------------------------------------------------- request ids
# Compute Engine shows a request's ``requestId`` as its operation's ``clientOperationId``: so the list of operations
# tells whether an fcctl, of any workspace and computer, or a person requested it.
def new_request_id() -> str:
    """A random UUID whose second half is a digest of its first."""
    return _completed(uuid.uuid4().bytes[:8])


def is_fcctls(request_id: str) -> bool:
    """Whether an fcctl created it. Another UUID passes once in 2^62."""
    try:
        return request_id.lower() == _completed(uuid.UUID(request_id).bytes[:8])
    except ValueError:
        return False


def _completed(half: bytes) -> str:
    digest = hashlib.sha256(b"fcctl request\0" + half).digest()[:8]
    return str(uuid.UUID(bytes=half + digest, version=4))


#: The interval between login attempts while the system boots, seconds.
KNOCK_S = 1.0
#: The guest publishes its host keys within a few seconds of its first boot; after this limit it never will.
HOST_KEYS_LIMIT_S = 90.0
#: A login refused for so long after sshd's first answer is refused because of the key, not the boot.
LOGIN_LIMIT_S = 120.0
#: What the machine still does, by the reason why a login fails.
_BOOTING = {
    "login": "waiting for its guest agent to install the login key",
    "port": "waiting for its sshd",
    "timeout": "waiting for an answer",
}
#: While the login fails: the interval between reads of the machine's state, seconds.
LOOK_EVERY_S = 3.0
#: Attempts, because another process may change the metadata at the same time.
_LET_IN_ATTEMPTS = 4


class StoppedDuringStart(CapacityError):
    """It stopped before a command ran on it."""


def add_login_key(parts: MachineParts, target: CloudTarget, changes: Changes, machine: Machine) -> Machine:
    """Adds the user's key to the machine's metadata and keeps other keys. Returns the machine as read then. Raises
    ConfigError: the machine uses OS Login, and the target does not; AuthError, CloudError: the metadata cannot be
    changed."""
    cloud, login = parts.clouds.open(target), parts.clouds.login(target)
    has_os_login = machine.metadata.get(OS_LOGIN_ITEM, "").upper() == "TRUE"
    if has_os_login and not target.os_login and MANAGED_LABEL not in machine.labels:
        # Turning OS Login off would lock out the users of somebody else's machine.
        raise ConfigError(
            f"{machine.name} accepts OS Login only",
            cause=f"its metadata has {OS_LOGIN_ITEM} = TRUE, so it ignores keys in the metadata",
            hint=f'set login = "os_login" in [targets.{target.name}]',
        )
    for attempt in range(_LET_IN_ATTEMPTS):
        items = login_items(machine.metadata, user=login.user, public_key=login.public_key, os_login=target.os_login)
        if not items:
            return machine
        change = partial(changes.cloud.set_metadata, machine, items)
        refusal = changes.make("metadata", machine.zone, change, CHANGE_LIMIT_S).refusal
        if refusal is not None and refusal.remedy is Remedy.FATAL:
            raise AuthError(
                f"the login key cannot be added to {machine.name}",
                cause=refusal.message,
                hint=refusal.hint or f"fcctl doctor --on {target.name}",
            )
        parts.clock.sleep(attempt)
        machine = cloud.machine(machine.zone, machine.name) or machine
    raise CloudError(
        f"the login key could not be added to {machine.name}",
        cause="another program changes its metadata again and again",
        hint="run the command again in a minute",
    )


def make_ready(
    parts: MachineParts, target: CloudTarget, machine: Machine, link: ReconnectingHost, log: Log
) -> Endpoint:
    """Waits until the host program answers over ``link``, which stays open, and caches the machine's endpoint. Raises
    HostUnreachable: another host key than the pinned one, a refused login, or ``wake_timeout_s`` passed;
    StoppedDuringStart: it stopped; ConfigError: no host key is known that could be pinned."""
    changes = Changes(parts.clouds.open(target), parts.clock, log, machine.name)
    return _Login(parts, target, link, add_login_key(parts, target, changes, machine), machine).carry_out()


class _Login:
    def __init__(
        self, parts: MachineParts, target: CloudTarget, link: ReconnectingHost, machine: Machine, acquired: Machine
    ) -> None:
        self._parts, self._clock, self._target, self._link = parts, parts.clock, target, link
        self._cloud = parts.clouds.open(target)
        self._machine = machine
        self._hardware = acquired.hardware  # with the types of its disks
        self._began = self._looked = parts.clock.monotonic()
        self._refused_since: float | None = None

    def carry_out(self) -> Endpoint:
        keys = self._host_keys()
        self._parts.observer.phase("wake", f"waiting for {self._machine.name} to answer")
        known: Endpoint | None = None
        while True:
            known = self._endpoint(keys, known)
            if known is not None and self._answers():
                boot_id = self._link.session().hello.boot_id
                known = replace(known, boot_id=boot_id, hardware=self._hardware)
                self._parts.book.remember(known)
                return known
            self._clock.sleep(KNOCK_S)
            self._look()

    def _endpoint(self, keys: tuple[str, ...], before: Endpoint | None) -> Endpoint | None:
        """The endpoint as the cloud has it now; None while an emulated machine has no port."""
        if on_loopback(self._target.api_endpoint) and EMULATOR_PORT_ITEM not in self._machine.metadata:
            return None
        login = self._parts.clouds.login(self._target)
        now = endpoint(
            self._machine, keys, user=login.user, identity_file=str(login.identity_file), target=self._target,
            now=self._clock.now(),
        )  # fmt: skip
        if before is None or (before.address, before.port) != (now.address, now.port):
            self._parts.book.remember(now)
        return now

    def _host_keys(self) -> tuple[str, ...]:
        """The keys that the guest published (if it was created with guest attributes, as by fcctl); else those pinned
        before for this instance."""
        machine, book = self._machine, self._parts.book
        allowed = machine.metadata.get(GUEST_ATTRIBUTES_ITEM, "").upper() == "TRUE" and MANAGED_LABEL in machine.labels
        while True:
            keys = parse_host_keys(self._cloud.guest_attributes(machine, HOST_KEYS_PATH))
            if not keys and (known := book.known(machine.project, machine.name)) is not None:
                keys = known.host_keys if known.instance_id == machine.id else ()
            keys = keys or book.pinned_elsewhere(machine.id)
            if keys:
                return keys
            if not allowed or self._clock.monotonic() - self._began > HOST_KEYS_LIMIT_S:
                raise ConfigError(
                    f"{machine.name} did not publish its host keys, and fcctl has none stored",
                    cause=f"it was not made with {GUEST_ATTRIBUTES_ITEM} = TRUE; fcctl trusts only a key that the "
                    f"cloud or you confirmed",
                    hint=f"log in once with: {self._target.by_hand('ssh', machine.name, machine.zone)}; fcctl then "
                    f"uses the key that this login stores",
                )
            self._parts.observer.phase("wake", f"{machine.name}: waiting for its guest agent to publish its host keys")
            self._clock.sleep(KNOCK_S)
            self._look()

    # ------------------------------------------------------------------------------------------------------ knocking
    def _answers(self) -> bool:
        try:
            self._link.session()
        except LinkLost:
            self._link.close()
        except HostUnreachable as error:
            self._link.close()
            self._raise_if_lasting(error)
        else:
            return True
        return False

    def _raise_if_lasting(self, error: HostUnreachable) -> None:
        """Raises an error that waiting does not resolve."""
        now = self._clock.monotonic()
        if error.reason in _BOOTING:
            self._parts.observer.phase("wake", f"{self._machine.name}: {_BOOTING[error.reason]}")
        if error.reason == "login":
            self._refused_since = self._refused_since or now
            if now - self._refused_since > LOGIN_LIMIT_S:
                raise error
        if error.reason in ("key", "config") or now - self._began > self._target.wake_timeout_s:
            raise error

    def _look(self) -> None:
        """Checks every few seconds that the same machine still runs, and that the limit has not passed."""
        now, machine = self._clock.monotonic(), self._machine
        if now - self._began > self._target.wake_timeout_s:
            hint = "restart the emulated machine: fcctl emulator --stop"
            if self._target.api_endpoint is None:
                hint = f"see its console: {self._target.by_hand('console', machine.name, machine.zone)}"
            raise HostUnreachable(
                f"{machine.name} runs, but executed no command within {self._target.wake_timeout_s:.0f} s",
                reason="timeout",
                cause=self._console(),
                hint=hint,
            )
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        seen = self._cloud.machine(machine.zone, machine.name)
        if seen is None or seen.id != machine.id or seen.power is not Power.RUNNING:
            raise StoppedDuringStart(
                f"{machine.name} was stopped during its start",
                cause=f"its state is {seen.status} now" if seen is not None else "it does not exist any more",
                hint="see the reason: fcctl hosts ls; then run the command again",
            )
        self._machine = seen

    def _console(self) -> str | None:
        """The last line of its serial output, if there is one and it may be read."""
        try:
            lines = self._cloud.serial_output(self._machine).split("\n")
        except FcctlError:
            return None
        return next((f"its console ends with: {clean(line)}" for line in reversed(lines) if line.strip()), None)
