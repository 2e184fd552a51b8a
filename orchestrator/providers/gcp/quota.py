"""The quotas that a target's machine counts against. Pure.

Names of metrics: Compute Engine's documentation, "Allocation quotas", GPU quota. A Spot machine counts against the
preemptible metric; every GPU counts against the project's ``GPUS_ALL_REGIONS`` too.
"""

from __future__ import annotations

from orchestrator.machines.targets import GcpTarget
from orchestrator.money.prices.table import G2

OF_THE_PROJECT = "GPUS_ALL_REGIONS"


def gpus(target: GcpTarget) -> dict[str, int]:
    """Accelerator type -> how many the target's machine has."""
    if target.machine_type in G2:
        return {"nvidia-l4": G2[target.machine_type][1]}
    return dict(target.accelerators)


def metric(accelerator: str, *, spot: bool) -> str:
    """``NVIDIA_L4_GPUS`` of ``nvidia-l4``; ``NVIDIA_T4_GPUS`` of ``nvidia-tesla-t4``."""
    name = accelerator.replace("nvidia-tesla-", "nvidia-").replace("-", "_").upper() + "_GPUS"
    return f"PREEMPTIBLE_{name}" if spot else name


def models(target: GcpTarget) -> tuple[bool, ...]:
    """Whether preemptible, in the order in which the target wants its machine; flex start counts as that, too."""
    return tuple(dict.fromkeys(way in ("spot", "flex_start") for way in target.ways))
