"""The interfaces to find a machine, start it, log in to it and stop it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.base.clock import Clock
    from orchestrator.base.observer import Observer
    from orchestrator.machines.cloud import Hardware
    from orchestrator.machines.cloud_api import Clouds, HourlyPrice, MachineCache
    from orchestrator.machines.host_api import HostConnector
    from orchestrator.machines.targets import CloudTarget


@dataclass(frozen=True, kw_only=True)
class MachineParts:
    """The interfaces that a machine is reached and changed through."""

    clock: Clock
    hosts: HostConnector
    observer: Observer
    clouds: Clouds
    #: What this computer remembers of machines.
    book: MachineCache
    #: The price of a machine of a target; raises ConfigError if none is known.
    price: Callable[[CloudTarget, Hardware], HourlyPrice]
