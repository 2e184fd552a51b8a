"""Whether a machine costs more than planned; then nothing is started. Pure."""

from __future__ import annotations

from orchestrator.machines.cloud import Hardware
from orchestrator.machines.cloud_api import HourlyPrice
from orchestrator.machines.provision.actions import Fail, MachineRequest

#: The rounding error of a sum of prices.
_SLIGHT_USD = 1e-6


def too_dear(name: str, hardware: Hardware, price: HourlyPrice, request: MachineRequest) -> Fail | None:
    """The failure if an hour of the machine costs more than planned; None if it does not, or nobody pays."""
    if request.planned is None:
        return None
    planned_rest = price.rest_usd if request.planned.rest_usd is None else request.planned.rest_usd
    planned, costs = request.planned.usd + planned_rest, price.usd + price.rest_usd
    if costs <= planned + _SLIGHT_USD:
        return None
    gib = sum(size for _, size in hardware.disks)
    rest = f"its disks ({gib} GiB){' and its address' if hardware.address else ''}"
    return Fail(
        "budget",
        f"{name} in {hardware.zone} costs ${costs:.3f} an hour, and at most ${planned:.3f} were planned",
        cause=f"it is a {hardware.text}: ${price.usd:.3f}, and ${price.rest_usd:.3f} for {rest}",
        hint="add --accept-price to plan with this price, which the caps then hold; fcctl hosts ls shows the machine",
    )
