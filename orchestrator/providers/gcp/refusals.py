"""What to do about an error code of Compute Engine. Pure.

A code is an operation's ``error.errors[].code`` (``QUOTA_EXCEEDED``) or the ``reason`` of an HTTP error
(``quotaExceeded``); both spellings are one entry here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.machines.cloud import Problem, Refusal, Remedy
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.prices.table import G2

#: The page to request quota.
QUOTA_PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"

_ZONE_SHAPE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_METRIC = re.compile(r"Quota '(?:compute\.googleapis\.com/)?([A-Za-z0-9_]+)' exceeded")
_PERMISSION = re.compile(r"'((?:compute|iam|iap|serviceusage|resourcemanager)\.[A-Za-z.]+)'")
_WITH_DETAILS = "_WITH_DETAILS"

#: Codes by their lower-case letters: ``QUOTA_EXCEEDED`` and ``quotaExceeded`` are equal.
_CODES = {
    # No stock in the zone.
    Remedy.NEXT_ZONE: "zoneresourcepoolexhausted resourcepoolexhausted insufficientcapacity stockout",
    # A quota of the region; one of the project is recognized by its metric.
    Remedy.NEXT_REGION: "quotaexceeded limitexceeded",
    # The same machine, later.
    Remedy.NOT_READY: "resourcenotready resourceinusebyanotherresource",
    # Transient, also a limit of concurrent operations.
    Remedy.RETRY: "resourceoperationrateexceeded operationratelimitexceeded concurrentoperationsquotaexceeded"
    " ratelimitexceeded userratelimitexceeded toomanyrequests backenderror internalerror internal unavailable"
    " serviceunavailable servicetimeout",
    # The state has changed since the request.
    Remedy.LOOK_AGAIN: "alreadyexists resourcealreadyexists duplicate conflict conditionnotmet",
    # Neither waiting nor another zone helps.
    Remedy.FATAL: "invalid invalidusage invalidfieldvalue required badrequest forbidden iampermissiondenied"
    " permissionserror permissiondenied vpcnotfound accessnotconfigured operationcancelledbyuser",
}
_TABLE = {code: remedy for remedy, codes in _CODES.items() for code in codes.split()}
_NOT_FOUND = ("notfound", "resourcenotfound")
_UNSUPPORTED = "unsupportedoperation"


@dataclass(frozen=True)
class ErrorDetail:
    """One of an operation error's ``errorDetails``: an ``errorInfo`` or a ``quotaInfo``, whichever was filled in."""

    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    quota_metric: str = ""  # compute.googleapis.com/nvidia_l4_gpus
    quota_dimensions: Mapping[str, str] = field(default_factory=dict)


def classify(
    code: str,
    message: str,
    *,
    project: str,
    region: str | None = None,
    http_status: int | None = None,
    details: Sequence[ErrorDetail] = (),
    creating: bool = False,
) -> Refusal:
    """What to do about ``code``.

    Args:
        region: where it was refused, for the hint.
        http_status: of the answer, or what the operation says (``httpErrorStatusCode``), which may be missing.
        creating: the request was to make a machine. Then an unsupported operation is one that was preempted while it
            was made, and something that was not found is something the request named.
    """
    remedy = _remedy(code, message, http_status, details, creating=creating)
    # Zones that the cloud names as having stock; anything else in that list is dropped.
    named = ",".join(detail.metadata.get("zonesAvailable", "") for detail in details).replace(" ", "").split(",")
    zones, code = tuple(dict.fromkeys(filter(_ZONE_SHAPE.fullmatch, named))), code or f"HTTP {http_status}"
    hint = _hint(remedy, message, zones, project, region)
    return Refusal(code, message, remedy, http_status, zones, hint, _problem(code, message, http_status))


def _problem(code: str, message: str, http_status: int | None) -> Problem:
    if "quota" in code.lower() or _METRIC.search(message):
        return "quota"
    return "denied" if http_status in (401, 403) or missing_permission(message) else "config"


def is_passing(code: str, http_status: int | None) -> bool:
    """Whether the same request may succeed later, with the same request id."""
    known = _TABLE.get(_letters(code))
    if known is not None and http_status != 429:
        return known is Remedy.RETRY
    return http_status in (408, 429) or (http_status or 0) >= 500


def quota_hint(metric: str, project: str, region: str | None) -> str:
    """The hint for a quota that is too low."""
    where = f" in {region}" if region else ""
    return f"request a higher quota {metric}{where}: {QUOTA_PAGE.format(project=project)}"


def _hint(remedy: Remedy, message: str, zones: Sequence[str], project: str, region: str | None) -> str:
    """The hint for a refusal."""
    metric = _METRIC.search(message)
    if metric is not None:
        name = metric[1].upper()
        return quota_hint(name, project, None if _is_of_the_project(message, name) else region)
    permission = missing_permission(message)
    if permission is not None:
        return permission_hint(permission, project)
    if remedy is Remedy.NEXT_ZONE and zones:
        return f"the cloud has free machines in {', '.join(zones)}: add to `zones` in the target"
    return _HINTS[remedy]


_HINTS = {
    Remedy.NEXT_ZONE: "add zones to `zones` in the target, or run the command again later",
    Remedy.NEXT_REGION: "add zones of another region to `zones` in the target",
    Remedy.NOT_READY: "the machine is changing its state: run the command again in a minute",
    Remedy.RETRY: "run the command again in a minute; state of the service: https://status.cloud.google.com",
    Remedy.LOOK_AGAIN: "another program changed the machine at the same time: run the command again",
    Remedy.FATAL: "check the settings of the target: fcctl doctor --on TARGET",
}


def missing_permission(message: str) -> str | None:
    """The permission that a message names as missing: ``compute.instances.start``."""
    match = _PERMISSION.search(message)
    return match[1] if match and "ermission" in message else None


#: The predefined role of a permission, by prefix; the first match.
_ROLES = (
    ("iam.serviceAccounts.", "roles/iam.serviceAccountUser"),
    ("iap.", "roles/iap.tunnelResourceAccessor"),
    ("serviceusage.", "roles/serviceusage.serviceUsageConsumer"),
    ("compute.instances.osAdminLogin", "roles/compute.osAdminLogin"),
    ("compute.instances.osLogin", "roles/compute.osLogin"),
    ("compute.instances.", "roles/compute.instanceAdmin.v1"),
    ("compute.disks.", "roles/compute.instanceAdmin.v1"),
    ("compute.snapshots.", "roles/compute.instanceAdmin.v1"),
    ("compute.zoneOperations.", "roles/compute.instanceAdmin.v1"),
    ("compute.globalOperations.", "roles/compute.instanceAdmin.v1"),
    ("compute.subnetworks.", "roles/compute.networkUser"),
    ("compute.networks.", "roles/compute.networkUser"),
    ("compute.images.", "roles/compute.imageUser"),
)


def permission_hint(permission: str, project: str) -> str:
    """The command that grants the predefined role with it; an owner of the project runs it."""
    role = next((role for start, role in _ROLES if permission.startswith(start)), "roles/compute.viewer")
    return (
        f"an owner of the project runs: gcloud projects add-iam-policy-binding {project} --member=user:YOUR_ACCOUNT "
        f"--role={role}"
    )


# ------------------------------------------------------------------------------------------------------------------
def _remedy(
    code: str, message: str, http_status: int | None, details: Sequence[ErrorDetail], *, creating: bool
) -> Remedy:
    letters = _letters(code)
    if any(detail.reason in ("resource_availability", "stockout") for detail in details):
        return Remedy.NEXT_ZONE
    if letters in _NOT_FOUND:
        return Remedy.FATAL if creating else Remedy.LOOK_AGAIN
    if letters == _UNSUPPORTED:
        return Remedy.NEXT_ZONE if creating else Remedy.FATAL
    known = _TABLE.get(letters)
    if known is Remedy.NEXT_REGION:
        return Remedy.FATAL if _of_the_project(message, details) else Remedy.NEXT_REGION
    if known is not None:
        return known
    if http_status in (409, 412):
        return Remedy.LOOK_AGAIN
    return Remedy.RETRY if is_passing(code, http_status) else Remedy.FATAL


def _letters(code: str) -> str:
    return code.removesuffix(_WITH_DETAILS).replace("_", "").lower()


def _of_the_project(message: str, details: Sequence[ErrorDetail]) -> bool:
    """Whether a quota applies to all regions."""
    for detail in details:
        if detail.quota_metric.lower().endswith("_all_regions") or detail.quota_dimensions.get("region") == "global":
            return True
    match = _METRIC.search(message)
    return _is_of_the_project(message, match[1] if match else "")


def _is_of_the_project(message: str, metric: str) -> bool:
    return "ALL_REGIONS" in metric.upper() or "ALL_REGIONS" in message or "globally" in message


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
