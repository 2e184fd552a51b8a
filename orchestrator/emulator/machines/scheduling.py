"""The Scheduling message: what is allowed in it, and the deadline that the cloud itself enforces."""

from __future__ import annotations

from typing import Any

from orchestrator.emulator.core.clock import parse_timestamp
from orchestrator.emulator.core.refusals import invalid
from orchestrator.emulator.core.resources import seconds_of
from orchestrator.emulator.core.world import Machine

MIN_RUN_S = 30
MAX_RUN_S = 120 * 24 * 3600
FLEX_RUN_S = (600, 7 * 24 * 3600)
MODELS = ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND")


def checked(given: dict[str, Any] | None, *, gpus: int) -> dict[str, Any]:
    """The whole message with defaults filled in: what is left out of a request is not kept from before.

    Raises:
        ApiError: a combination the service refuses.
    """
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
    if model == "FLEX_START":
        _check_flex_start(scheduling, gpus)
    if spot and scheduling["automaticRestart"]:
        raise invalid("scheduling.automaticRestart", True, "Spot instances cannot be restarted automatically.")
    if (spot or gpus) and scheduling["onHostMaintenance"] != "TERMINATE":
        who = "Spot instances" if spot else "Instances with guest accelerators"
        raise invalid("scheduling.onHostMaintenance", scheduling["onHostMaintenance"], f"{who} need TERMINATE.")
    _check_limits(scheduling, ends=model in ("SPOT", "RESERVATION_BOUND"))
    return scheduling


def _check_flex_start(scheduling: dict[str, Any], gpus: int) -> None:
    if not gpus:
        raise invalid("scheduling.provisioningModel", "FLEX_START", "Needs a machine type with GPUs.")
    if scheduling["automaticRestart"]:
        raise invalid("scheduling.automaticRestart", True, "FLEX_START cannot be restarted automatically.")
    if scheduling["onHostMaintenance"] != "TERMINATE":
        raise invalid("scheduling.onHostMaintenance", scheduling["onHostMaintenance"], "FLEX_START needs TERMINATE.")
    limit = scheduling.get("maxRunDuration")
    seconds = 0 if limit is None else seconds_of(limit, "scheduling.maxRunDuration")
    if not FLEX_RUN_S[0] <= seconds <= FLEX_RUN_S[1]:
        raise invalid("scheduling.maxRunDuration", seconds, "With FLEX_START between 10 minutes and 7 days.")


def _check_limits(scheduling: dict[str, Any], *, ends: bool) -> None:
    """``ends``: the machine has an end without a limit, too: preemption, or its reservation's."""
    limited = False
    if "maxRunDuration" in scheduling:
        seconds = seconds_of(scheduling["maxRunDuration"], "scheduling.maxRunDuration")
        if not MIN_RUN_S <= seconds <= MAX_RUN_S:
            raise invalid("scheduling.maxRunDuration", seconds, "Must be between 30 seconds and 120 days.")
        scheduling["maxRunDuration"] = {"seconds": str(seconds)}
        limited = True
    if "terminationTime" in scheduling:
        try:
            parse_timestamp(str(scheduling["terminationTime"]))
        except ValueError:
            raise invalid("scheduling.terminationTime", scheduling["terminationTime"], "Must be RFC 3339.") from None
        if "maxRunDuration" in scheduling:
            raise invalid("scheduling.terminationTime", scheduling["terminationTime"], "Not with maxRunDuration.")
        limited = True
    action = scheduling.get("instanceTerminationAction")
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
