"""Validates scheduling and reservations of a request; computes the deadline that the cloud enforces."""

from __future__ import annotations

from typing import Any

from orchestrator.emulator.call import Call
from orchestrator.emulator.clock import parse_timestamp
from orchestrator.emulator.refusals import invalid, last, seconds_of
from orchestrator.emulator.scenario import RESERVATION_KEY
from orchestrator.emulator.world import Machine

#: Ranges in seconds: maxRunDuration, the same with FLEX_START, the wait of a FLEX_START request.
RUN_S, FLEX_RUN_S, FLEX_WAIT_S = (30, 120 * 24 * 3600), (600, 7 * 24 * 3600), (90, 7200)
MODELS = ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND")
_AFFINITIES = ("ANY_RESERVATION", "SPECIFIC_RESERVATION", "NO_RESERVATION")


def checked(given: dict[str, Any] | None, *, gpus: int) -> dict[str, Any]:
    """The whole message with defaults; earlier values are not kept. Raises ApiError: an invalid combination."""
    given = dict(given or {})
    spot = given.get("provisioningModel") == "SPOT" or bool(given.get("preemptible"))
    model = "SPOT" if spot else given.get("provisioningModel") or "STANDARD"
    if model not in MODELS:
        raise invalid("scheduling.provisioningModel", model, f"One of {', '.join(MODELS)}.")
    scheduling = {
        "onHostMaintenance": "MIGRATE" if model == "STANDARD" else "TERMINATE",
        "automaticRestart": model in ("STANDARD", "RESERVATION_BOUND"),
        "preemptible": spot,
        "provisioningModel": model,
        **{key: value for key, value in given.items() if value is not None},
    }
    seconds = _run_s(scheduling)
    if model == "FLEX_START" and not gpus:
        raise invalid("scheduling.provisioningModel", model, "Needs a machine type with GPUs.")
    if model in ("SPOT", "FLEX_START") and scheduling["automaticRestart"]:
        raise invalid("scheduling.automaticRestart", True, f"{model} cannot be restarted automatically.")
    if (gpus or spot) and scheduling["onHostMaintenance"] != "TERMINATE":
        who = "Spot instances" if spot else "Instances with guest accelerators"
        raise invalid("scheduling.onHostMaintenance", scheduling["onHostMaintenance"], f"{who} need TERMINATE.")
    if model == "FLEX_START" and not FLEX_RUN_S[0] <= (seconds or 0) <= FLEX_RUN_S[1]:
        raise invalid("scheduling.maxRunDuration", seconds, "With FLEX_START between 10 minutes and 7 days.")
    # Preemption and the end of a reservation also end an instance.
    _check_action(scheduling, seconds, ends=model in ("SPOT", "RESERVATION_BOUND"))
    if seconds is not None:
        scheduling["maxRunDuration"] = {"seconds": str(seconds)}
    return scheduling


def _run_s(scheduling: dict[str, Any]) -> int | None:
    if "maxRunDuration" not in scheduling:
        return None
    seconds = seconds_of(scheduling["maxRunDuration"], "scheduling.maxRunDuration")
    if not RUN_S[0] <= seconds <= RUN_S[1]:
        raise invalid("scheduling.maxRunDuration", seconds, "Must be between 30 seconds and 120 days.")
    return seconds


def _check_action(scheduling: dict[str, Any], seconds: int | None, *, ends: bool) -> None:
    time, action = scheduling.get("terminationTime"), scheduling.get("instanceTerminationAction")
    if time is not None:
        try:
            parse_timestamp(str(time))
        except ValueError:
            raise invalid("scheduling.terminationTime", time, "Must be RFC 3339.") from None
        if seconds is not None:
            raise invalid("scheduling.terminationTime", time, "Not with maxRunDuration.")
    limited = time is not None or seconds is not None
    if action not in (None, "STOP", "DELETE"):
        raise invalid("scheduling.instanceTerminationAction", action, "Must be STOP or DELETE.")
    if limited and action is None:
        raise invalid("scheduling.instanceTerminationAction", "", "Needed with maxRunDuration or terminationTime.")
    if action is not None and not limited and not ends:
        raise invalid("scheduling.instanceTerminationAction", action, "Needs maxRunDuration, or a Spot instance.")


def deadline(machine: Machine, running_since: float) -> float | None:
    """When the cloud ends this run, counted from the entry into RUNNING; None for never."""
    scheduling = machine.resource["scheduling"]
    if "maxRunDuration" in scheduling:
        return running_since + seconds_of(scheduling["maxRunDuration"], "scheduling.maxRunDuration")
    if "terminationTime" in scheduling:
        return parse_timestamp(str(scheduling["terminationTime"]))
    return None


# ------------------------------------------------------------------------------------------------------- reservations
def checked_affinity(call: Call, given: dict[str, Any] | None, model: str) -> dict[str, Any]:
    """The ReservationAffinity of a new instance with its default filled in. Raises ApiError: there is no such
    reservation, or the provisioning model cannot have it."""
    affinity = {"consumeReservationType": "ANY_RESERVATION", **(given or {})}
    kind, name = affinity["consumeReservationType"], "resource.reservationAffinity"
    if kind not in _AFFINITIES:
        raise invalid(f"{name}.consumeReservationType", kind, f"One of {', '.join(_AFFINITIES)}.")
    needed = {"FLEX_START": "NO_RESERVATION", "RESERVATION_BOUND": "SPECIFIC_RESERVATION"}.get(model, kind)
    if kind != needed:
        raise invalid(name, kind, f"{model} needs {needed}.")
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
    """How long the request of an instance waits for stock, seconds. Raises ApiError: the service takes no such wait."""
    if not params or "requestValidForDuration" not in params:
        return 0
    name = "params.requestValidForDuration"
    seconds = seconds_of(params["requestValidForDuration"], name)
    if model != "FLEX_START":
        raise invalid(name, seconds, "Only with FLEX_START.")
    if seconds and not FLEX_WAIT_S[0] <= seconds <= FLEX_WAIT_S[1]:
        raise invalid(name, seconds, "Must be 0, or between 90 seconds and 2 hours.")
    return seconds
