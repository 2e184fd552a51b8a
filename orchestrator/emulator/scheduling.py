"""Validates the scheduling of a request; computes the deadline that the cloud enforces."""

from __future__ import annotations

from typing import Any

from orchestrator.emulator.clock import parse_timestamp
from orchestrator.emulator.refusals import invalid, seconds_of
from orchestrator.emulator.world import Machine

#: The range of maxRunDuration, seconds.
RUN_S = (30, 120 * 24 * 3600)
MODELS = ("STANDARD", "SPOT")


def checked(given: dict[str, Any] | None, *, gpus: int) -> dict[str, Any]:
    """The whole message with defaults; earlier values are not kept. Raises ApiError: an invalid combination."""
    given = dict(given or {})
    spot = given.get("provisioningModel") == "SPOT" or bool(given.get("preemptible"))
    model = "SPOT" if spot else given.get("provisioningModel") or "STANDARD"
    if model not in MODELS:
        raise invalid("scheduling.provisioningModel", model, f"One of {', '.join(MODELS)}.")
    scheduling = {
        "onHostMaintenance": "MIGRATE" if model == "STANDARD" else "TERMINATE",
        "automaticRestart": not spot,
        "preemptible": spot,
        "provisioningModel": model,
        **{key: value for key, value in given.items() if value is not None},
    }
    seconds = _run_s(scheduling)
    if spot and scheduling["automaticRestart"]:
        raise invalid("scheduling.automaticRestart", True, f"{model} cannot be restarted automatically.")
    if (gpus or spot) and scheduling["onHostMaintenance"] != "TERMINATE":
        who = "Spot instances" if spot else "Instances with guest accelerators"
        raise invalid("scheduling.onHostMaintenance", scheduling["onHostMaintenance"], f"{who} need TERMINATE.")
    _check_action(scheduling, seconds, ends=spot)  # preemption also ends an instance
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
