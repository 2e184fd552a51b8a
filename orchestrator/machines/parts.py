"""What it takes to find a machine, turn it on, log in to it and turn it off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.base.clock import Clock
    from orchestrator.base.observer import Observer
    from orchestrator.machines.cloud_api import Clouds, MachineBook
    from orchestrator.machines.host_api import HostConnector


@dataclass(frozen=True, kw_only=True)
class MachineParts:
    """The interfaces that a machine is reached and changed through."""

    clock: Clock
    hosts: HostConnector
    observer: Observer
    clouds: Clouds
    #: What this computer remembers of machines.
    book: MachineBook
