"""The providers, by the kind of their targets, and their clouds, which record usage: whatever a workflow sees of a
target's machine is written into the book. If the book cannot be written, machines can be looked at and stopped, but not
started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from orchestrator.base.files import disk_errors, make_folders, user_folder, write_atomic
from orchestrator.machines.targets import CloudTarget, SandboxTarget

if TYPE_CHECKING:
    from orchestrator.base.clock import Clock
    from orchestrator.base.installation import Finding
    from orchestrator.machines.cloud import BillableResource, Machine, Operation
    from orchestrator.machines.interfaces import Cloud, Clouds, Login, MachineCache
    from orchestrator.money.prices.table import PriceTable
    from orchestrator.money.usage_recorder import UsageRecorder


class ProviderClient(Protocol):
    """The clouds of one provider: see :class:`~orchestrator.machines.interfaces.Clouds`."""

    def open(self, target: CloudTarget) -> Cloud: ...

    def login(self, target: CloudTarget) -> Login: ...


class Checkup(Protocol):
    """The checks of ``fcctl doctor --on`` for a target, without starting its machine."""

    #: The target's machine, set by ``findings``; None if there is none.
    machine: Machine | None

    def findings(self) -> Iterator[Finding]: ...


@dataclass(frozen=True)
class Provider:
    client: Callable[[Clock], ProviderClient]
    checkup: Callable[[CloudTarget, Clouds, MachineCache], Checkup]


def _gcp_client(clock: Clock) -> ProviderClient:
    from orchestrator.providers.gcp.clouds import GcpClouds

    return GcpClouds(clock)


def _gcp_checkup(target: CloudTarget, clouds: Clouds, book: MachineCache) -> Checkup:
    from orchestrator.providers.gcp.doctor import CloudCheckup

    return CloudCheckup(target, clouds, book)


#: By kind of target. Another provider adds itself here, and its kind to ``targets.KINDS``.
PROVIDERS: dict[str, Provider] = {"gcp": Provider(_gcp_client, _gcp_checkup)}


class ProviderClouds:
    """The clouds of all targets. A provider is imported when a target needs it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[str, ProviderClient] = {}

    def resolve(self, target: CloudTarget | SandboxTarget) -> CloudTarget:
        """The target itself; for the sandbox its machine, whose emulator is started if necessary."""
        if isinstance(target, CloudTarget):
            return target
        from orchestrator.machines.sandbox import Sandbox

        return Sandbox().resolve(target)

    def if_there(self, target: CloudTarget | SandboxTarget) -> CloudTarget | None:
        if isinstance(target, CloudTarget):
            return target
        from orchestrator.machines.sandbox import Sandbox

        sandbox = Sandbox()
        return None if sandbox.running() is None else sandbox.resolve(target)

    def open(self, target: CloudTarget) -> Cloud:
        return self._client(target).open(target)

    def login(self, target: CloudTarget) -> Login:
        return self._client(target).login(target)

    def _client(self, target: CloudTarget) -> ProviderClient:
        if target.kind not in self._clients:
            self._clients[target.kind] = PROVIDERS[target.kind].client(self._clock)
        return self._clients[target.kind]


class RecordingClouds:
    """Any :class:`~orchestrator.machines.interfaces.Clouds` that records usage. Both are made on first use."""

    def __init__(self, clouds: Callable[[], Clouds], recorder: Callable[[], UsageRecorder]) -> None:
        self._clouds, self._recorder = cache(clouds), cache(recorder)

    def resolve(self, target: CloudTarget | SandboxTarget) -> CloudTarget:
        return self._clouds().resolve(target)

    def if_there(self, target: CloudTarget | SandboxTarget) -> CloudTarget | None:
        return self._clouds().if_there(target)

    def open(self, target: CloudTarget) -> Cloud:
        return cast("Cloud", _RecordingCloud(self._clouds().open(target), target, self._recorder))

    def login(self, target: CloudTarget) -> Login:
        return self._clouds().login(target)


class _RecordingCloud:
    """A cloud that records what it shows of the target's machine, and starts none whose usage cannot be recorded."""

    def __init__(self, cloud: Cloud, target: CloudTarget, recorder: Callable[[], UsageRecorder]) -> None:
        self._cloud, self._target, self._recorder = cloud, target, recorder

    def machine(self, zone: str, name: str) -> Machine | None:
        machine = self._cloud.machine(zone, name)
        self._record([machine] if machine is not None else [])
        return machine

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        machines, unasked = self._cloud.machines(labels)
        self._record(machines)
        return machines, unasked

    def disks(self, machine: Machine) -> list[BillableResource]:
        disks = self._cloud.disks(machine)
        if machine.name == self._target.instance:
            self._recorder().record_disks(self._target, machine, disks)
        return disks

    def operations(self, zone: str, name: str) -> list[Operation]:
        operations = self._cloud.operations(zone, name)
        if name == self._target.instance:
            self._recorder().record_operations(self._target, zone, operations)
        return operations

    def _record(self, machines: list[Machine]) -> None:
        for machine in machines:
            if machine.name == self._target.instance:
                self._recorder().record_machine(self._target, machine)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cloud, name)
        if name not in ("create", "start"):
            return method

        def start(*args: Any) -> Any:
            self._recorder().check()
            return method(*args)

        return start


def price_table(*, refresh: bool = False) -> PriceTable:
    """The price list in force: the one that the user fetched, if it is newer than this version's; with ``refresh``,
    fetches today's and stores it. Raises FcctlError."""
    from orchestrator.providers.gcp.list_prices import LIST_PRICES

    if refresh:
        from orchestrator.providers.gcp.prices import fetch

        write_prices(fetch(LIST_PRICES))
    return fetched_prices(LIST_PRICES) or LIST_PRICES


#: The price list that the user fetched, in the state folder.
PRICES = "prices.json"
_MAX_BYTES = 1024 * 1024


def fetched_prices(own: PriceTable) -> PriceTable | None:
    """None if there are none, if they cannot be read, or if the ``own`` ones are newer."""
    path = user_folder("state") / PRICES
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    from orchestrator.money.prices.table import from_json

    try:
        table = from_json(text, own)
    except ValueError:
        return None
    return table if table.date > own.date else None


def write_prices(table: PriceTable) -> Path:
    """Stores the list for later commands. Raises FcctlError if the folder cannot be written."""
    from orchestrator.money.prices.table import to_json

    folder = user_folder("state")
    with disk_errors("store the price list", folder):
        make_folders(folder, 0o700)
        write_atomic(folder, PRICES, to_json(table).encode())
    return folder / PRICES
