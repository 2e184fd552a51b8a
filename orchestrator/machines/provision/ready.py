"""From a machine in RUNNING to one on which a command of ours has run: key in, host keys pinned, login."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.base.errors import AuthError, CapacityError, CloudError, ConfigError, HostUnreachable, LinkLost
from orchestrator.machines.cloud import MANAGED_LABEL, Endpoint, Machine, Operation, Power, Remedy
from orchestrator.machines.cloud_api import Cloud
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.parts import MachineParts
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
from orchestrator.machines.provision.find import CHANGE_LIMIT_S, Changes, Log
from orchestrator.machines.targets import GcpTarget

#: Between two attempts to get in while the system boots, seconds.
KNOCK_S = 1.0
#: The guest publishes its host keys within a few seconds of its first boot; one that has not by now never will.
HOST_KEYS_LIMIT_S = 90.0
#: A login that is refused for so long after sshd first answered is refused for good: the key, not the boot.
LOGIN_LIMIT_S = 120.0
#: While nobody lets us in: how often the cloud is asked whether the machine still runs, seconds.
LOOK_EVERY_S = 3.0
#: Somebody else may change the metadata at the same moment; then it is read again.
_LET_IN_ATTEMPTS = 4


class StoppedDuringStart(CapacityError):
    """It ran, and went off before a command had run on it."""


def let_in(parts: MachineParts, target: GcpTarget, changes: Changes, machine: Machine) -> Machine:
    """Make sure that the machine's metadata has the user's key, other people's kept. The machine as it is then.

    Raises:
        ConfigError: the machine is set to OS Login, and the target is not.
        AuthError, CloudError: the metadata cannot be changed.
    """
    cloud, login = parts.clouds.open(target), parts.clouds.login(target)
    _check_login_kind(target, machine)
    for attempt in range(_LET_IN_ATTEMPTS):
        os_login = target.login == "os_login"
        items = login_items(machine.metadata, user=login.user, public_key=login.public_key, os_login=os_login)
        if not items:
            return machine
        operation = _set_metadata(changes, cloud, machine, items)
        if operation.refusal is not None and operation.refusal.remedy is Remedy.FATAL:
            raise AuthError(
                f"the login key cannot be added to {machine.name}",
                cause=operation.refusal.message,
                hint="it takes roles/compute.instanceAdmin.v1: fcctl doctor --on " + target.name,
            )
        parts.clock.sleep(attempt)
        machine = cloud.machine(machine.zone, machine.name) or machine
    raise CloudError(
        f"the login key could not be added to {machine.name}",
        cause="its metadata is changed by somebody else all the time",
        hint="try again in a moment",
    )


def _set_metadata(changes: Changes, cloud: Cloud, machine: Machine, items: dict[str, str]) -> Operation:
    return changes.make(
        "metadata", machine.zone, lambda request: cloud.set_metadata(machine, items, request), CHANGE_LIMIT_S
    )


def _check_login_kind(target: GcpTarget, machine: Machine) -> None:
    """Never turn OS Login off on a machine that somebody else made: it would lock its users out."""
    os_login = machine.metadata.get(OS_LOGIN_ITEM, "").upper() == "TRUE"
    if os_login and target.login != "os_login" and MANAGED_LABEL not in machine.labels:
        raise ConfigError(
            f"{machine.name} takes OS Login only",
            cause=f"its metadata says {OS_LOGIN_ITEM} = TRUE, and keys in the metadata count for nothing then",
            hint=f'set login = "os_login" in [targets.{target.name}]',
        )


def make_ready(parts: MachineParts, target: GcpTarget, machine: Machine, link: ReconnectingHost, log: Log) -> Endpoint:
    """Wait until the host program answers over ``link``, which stays open. What is needed for that is remembered.

    Raises:
        HostUnreachable: it shows another host key than the one pinned, refuses the login, or ``wake_timeout_s`` passed.
        StoppedAgain: it stopped meanwhile.
        ConfigError: no host key is known that could be pinned.
    """
    return _Waking(parts, target, link, Changes(parts.clouds.open(target), parts.clock, log, machine.name),
                   machine).carry_out()  # fmt: skip


class _Waking:
    def __init__(
        self, parts: MachineParts, target: GcpTarget, link: ReconnectingHost, changes: Changes, machine: Machine
    ) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._target = target
        self._link = link
        self._cloud = parts.clouds.open(target)
        self._changes = changes
        self._machine = machine
        self._hardware = machine.hardware
        self._began = self._looked = parts.clock.monotonic()
        self._refused_since: float | None = None

    def carry_out(self) -> Endpoint:
        self._machine = let_in(self._parts, self._target, self._changes, self._machine)
        keys = self._host_keys()
        self._parts.observer.phase("wake", f"waiting for {self._machine.name} to answer")
        way: Endpoint | None = None
        while True:
            way = self._way(keys, way)
            if way is not None and self._answers():
                way = replace(way, boot_id=self._link.session().hello.boot_id, hardware=self._hardware)
                self._parts.book.remember(way)
                return way
            self._clock.sleep(KNOCK_S)
            self._look()

    def _way(self, keys: tuple[str, ...], before: Endpoint | None) -> Endpoint | None:
        """How to get in, as the cloud shows the machine now; None while an emulated one has no port yet."""
        if on_loopback(self._target.api_endpoint) and EMULATOR_PORT_ITEM not in self._machine.metadata:
            return None
        login = self._parts.clouds.login(self._target)
        way = endpoint(
            self._machine, keys, user=login.user, identity_file=str(login.identity_file), target=self._target,
            now=self._clock.now(),
        )  # fmt: skip
        if before is None or (before.address, before.port) != (way.address, way.port):
            self._parts.book.remember(way)
        return way

    # ---------------------------------------------------------------------------------------------------- host keys
    def _host_keys(self) -> tuple[str, ...]:
        """What the guest itself published; else what was pinned before, for this very instance."""
        while True:
            keys = parse_host_keys(self._cloud.guest_attributes(self._machine, HOST_KEYS_PATH))
            if keys:
                return keys
            known = self._parts.book.known(self._machine.project, self._machine.name)
            if known is not None and known.instance_id == self._machine.id and known.host_keys:
                return known.host_keys
            keys = self._parts.book.pinned_elsewhere(self._machine.id)
            if keys:
                return keys
            if not self._may_publish() or self._clock.monotonic() - self._began > HOST_KEYS_LIMIT_S:
                raise self._unknown_key()
            self._clock.sleep(KNOCK_S)
            self._look()

    def _may_publish(self) -> bool:
        """Only guests do that were allowed to when they were made: nobody but fcctl is known to have seen to that."""
        allowed = self._machine.metadata.get(GUEST_ATTRIBUTES_ITEM, "").upper() == "TRUE"
        return allowed and MANAGED_LABEL in self._machine.labels

    def _unknown_key(self) -> ConfigError:
        machine = self._machine
        return ConfigError(
            f"{machine.name} did not publish its host keys, and none is pinned",
            cause=f"it was not made with {GUEST_ATTRIBUTES_ITEM} = TRUE; a key that nobody vouches for is not trusted",
            hint=f"log in once with: gcloud compute ssh {machine.name} --zone {machine.zone} --project"
            f" {machine.project}; what that pins is used from then on",
        )

    # ------------------------------------------------------------------------------------------------------ knocking
    def _answers(self) -> bool:
        try:
            self._link.session()
        except LinkLost:
            self._link.close()
        except HostUnreachable as error:
            self._link.close()
            self._judge(error)
        else:
            return True
        return False

    def _where_to_look(self) -> str:
        machine = self._machine
        if self._target.api_endpoint is not None:
            return "it is an emulated one: fcctl emulator --stop, then try again; what sshd says is in its state folder"
        return (
            f"its console: gcloud compute instances get-serial-port-output {machine.name} --zone {machine.zone}"
            f" --project {machine.project}"
        )

    def _judge(self, error: HostUnreachable) -> None:
        """Raise what does not pass by waiting."""
        now = self._clock.monotonic()
        if error.reason == "login":
            self._refused_since = self._refused_since or now
            if now - self._refused_since > LOGIN_LIMIT_S:
                raise error
        elif error.reason in ("key", "config"):
            raise error
        if now - self._began > self._target.wake_timeout_s:
            raise error

    def _look(self) -> None:
        """Every few seconds: whether it is still the same machine, and still runs; and whether it takes too long."""
        if self._clock.monotonic() - self._began > self._target.wake_timeout_s:
            raise HostUnreachable(
                f"{self._machine.name} runs, and no command ran on it within {self._target.wake_timeout_s:.0f} s",
                reason="timeout",
                hint=self._where_to_look(),
            )
        if self._clock.monotonic() - self._looked < LOOK_EVERY_S:
            return
        self._looked = self._clock.monotonic()
        seen = self._cloud.machine(self._machine.zone, self._machine.name)
        if seen is None or seen.id != self._machine.id or seen.power is not Power.RUNNING:
            raise StoppedDuringStart(
                f"{self._machine.name} was stopped again while it was waking",
                cause=f"it is {seen.status} now" if seen is not None else "it is gone",
                hint="fcctl hosts ls tells why; then try again",
            )
        self._machine = seen
