"""The providers, by the kind of their targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.machines.targets import CloudTarget, SandboxTarget

if TYPE_CHECKING:
    from orchestrator.base.clock import Clock
    from orchestrator.base.installation import Finding
    from orchestrator.machines.cloud import Machine
    from orchestrator.machines.cloud_api import Cloud, Clouds, Login, MachineCache
    from orchestrator.money.prices.table import PriceTable


class ProviderClient(Protocol):
    """The clouds of one provider: see :class:`~orchestrator.machines.cloud_api.Clouds`."""

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


def price_table(*, refresh: bool = False) -> PriceTable:
    """The price list in force; with ``refresh``, fetches today's and stores it. Raises FcctlError."""
    from orchestrator.money.prices import file as price_file
    from orchestrator.providers.gcp.list_prices import LIST_PRICES

    if refresh:
        from orchestrator.providers.gcp.prices import fetch

        price_file.write(fetch(LIST_PRICES))
    return price_file.read(lambda: LIST_PRICES) or LIST_PRICES
