"""Reserved capacity: which reservations there are, what an instance may use of them, and how long its request waits.

The scenario says which there are; nobody makes one through the API.
"""

from __future__ import annotations

from typing import Any

from orchestrator.emulator.core import listing
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.core.quota import in_use
from orchestrator.emulator.core.refusals import invalid, not_found
from orchestrator.emulator.core.resources import last, link, seconds_of
from orchestrator.emulator.core.scenario import RESERVATION_KEY, Reservation

#: What a request of a flex-start machine may wait, seconds; or not at all.
WAIT_S = (90, 7200)
_TYPES = ("ANY_RESERVATION", "SPECIFIC_RESERVATION", "NO_RESERVATION")


def checked_affinity(call: Call, given: dict[str, Any] | None, model: str) -> dict[str, Any]:
    """The ReservationAffinity of a new instance with its default filled in.

    Raises:
        ApiError: one that there is not, or that the provisioning model cannot have.
    """
    affinity = {"consumeReservationType": "ANY_RESERVATION", **(given or {})}
    kind, name = affinity["consumeReservationType"], "resource.reservationAffinity"
    if kind not in _TYPES:
        raise invalid(f"{name}.consumeReservationType", kind, f"One of {', '.join(_TYPES)}.")
    if model == "FLEX_START" and kind != "NO_RESERVATION":
        raise invalid(name, kind, "FLEX_START needs NO_RESERVATION.")
    if model == "RESERVATION_BOUND" and kind != "SPECIFIC_RESERVATION":
        raise invalid(name, kind, "RESERVATION_BOUND needs SPECIFIC_RESERVATION.")
    if kind != "SPECIFIC_RESERVATION":
        return affinity
    if model == "SPOT":
        raise invalid(name, kind, "Spot instances cannot consume reservations.")
    if affinity.get("key") != RESERVATION_KEY or len(affinity.get("values") or []) != 1:
        raise invalid(name, affinity.get("key"), f"Needs the key {RESERVATION_KEY} and one value.")
    if last(affinity["values"][0]) not in call.world.scenario.reservations.get(call.at["zone"], {}):
        raise invalid(f"{name}.values", affinity["values"][0], "The reservation was not found.")
    return affinity


def wait_s(params: dict[str, Any] | None, model: str) -> int:
    """How long the request waits for stock.

    Raises:
        ApiError: a wait that the service does not take.
    """
    if not params or "requestValidForDuration" not in params:
        return 0
    name = "params.requestValidForDuration"
    seconds = seconds_of(params["requestValidForDuration"], name)
    if model != "FLEX_START":
        raise invalid(name, seconds, "Only with FLEX_START.")
    if seconds and not WAIT_S[0] <= seconds <= WAIT_S[1]:
        raise invalid(name, seconds, "Must be 0, or between 90 seconds and 2 hours.")
    return seconds


# ----------------------------------------------------------------------------------------------------------- reading
def get(call: Call) -> dict[str, Any]:
    found = call.world.scenario.reservations.get(call.at["zone"], {}).get(call.at["name"])
    if found is None:
        raise not_found(call.path)
    return _view(call, call.at["zone"], call.at["name"], found)


def list_of_zone(call: Call) -> dict[str, Any]:
    rows = _rows(call, call.at["zone"])
    return listing.page(call, "compute#reservation", f"{call.zone}/reservations", rows)


def aggregated(call: Call) -> dict[str, Any]:
    rows = [row for zone in call.world.scenario.reservations for row in _rows(call, zone)]
    return listing.aggregated(call, "compute#reservation", "reservations", rows)


def _rows(call: Call, zone: str) -> list[dict[str, Any]]:
    return [_view(call, zone, name, one) for name, one in call.world.scenario.reservations.get(zone, {}).items()]


def _view(call: Call, zone: str, name: str, found: Reservation) -> dict[str, Any]:
    place = f"{call.project}/zones/{zone}"
    return {
        "kind": "compute#reservation",
        "name": name,
        "zone": link(place),
        "selfLink": link(f"{place}/reservations/{name}"),
        "status": "READY",
        "specificReservationRequired": found.specific,
        "specificReservation": {
            "count": str(found.count),
            "inUseCount": str(in_use(call.world, zone, name)),
            "instanceProperties": {"machineType": found.machine_type},
        },
    }
