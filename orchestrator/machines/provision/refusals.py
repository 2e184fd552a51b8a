"""What a cloud's refusal means: a pure table from its codes to what to do next.

The codes are Compute Engine's: an operation's ``error.errors[].code`` (``QUOTA_EXCEEDED``) or the ``reason`` of an HTTP
error (``quotaExceeded``). Both spellings of one thing are one row here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.machines.cloud import Refusal, Remedy

#: Where a person asks for more; one page for all quotas of a project.
QUOTA_PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"

_ZONE_SHAPE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_METRIC = re.compile(r"Quota '(?:compute\.googleapis\.com/)?([A-Za-z0-9_]+)' exceeded")
_PERMISSION = re.compile(r"'((?:compute|iam|iap|serviceusage|resourcemanager)\.[A-Za-z.]+)'")
_WITH_DETAILS = "_WITH_DETAILS"

#: Codes by their letters alone: ``QUOTA_EXCEEDED`` and ``quotaExceeded`` are the same word.
_TABLE: dict[str, Remedy] = {
    # No machines left here.
    "zoneresourcepoolexhausted": Remedy.NEXT_ZONE,
    "resourcepoolexhausted": Remedy.NEXT_ZONE,
    "insufficientcapacity": Remedy.NEXT_ZONE,
    "stockout": Remedy.NEXT_ZONE,
    # A limit of the region; one of the whole project is told apart by its metric.
    "quotaexceeded": Remedy.NEXT_REGION,
    "limitexceeded": Remedy.NEXT_REGION,
    # The same machine, a little later.
    "resourcenotready": Remedy.NOT_READY,
    "resourceinusebyanotherresource": Remedy.NOT_READY,
    # Passing trouble.
    "resourceoperationrateexceeded": Remedy.RETRY,
    "operationratelimitexceeded": Remedy.RETRY,
    "concurrentoperationsquotaexceeded": Remedy.RETRY,  # too much at once, not too much at all
    "ratelimitexceeded": Remedy.RETRY,
    "userratelimitexceeded": Remedy.RETRY,
    "toomanyrequests": Remedy.RETRY,
    "backenderror": Remedy.RETRY,
    "internalerror": Remedy.RETRY,
    "internal": Remedy.RETRY,
    "unavailable": Remedy.RETRY,
    "serviceunavailable": Remedy.RETRY,
    "servicetimeout": Remedy.RETRY,
    # The world is not as it was when the request was made.
    "alreadyexists": Remedy.LOOK_AGAIN,
    "resourcealreadyexists": Remedy.LOOK_AGAIN,
    "duplicate": Remedy.LOOK_AGAIN,
    "conflict": Remedy.LOOK_AGAIN,
    "conditionnotmet": Remedy.LOOK_AGAIN,
    # Nothing that waiting or another place would mend.
    "invalid": Remedy.FATAL,
    "invalidusage": Remedy.FATAL,
    "invalidfieldvalue": Remedy.FATAL,
    "required": Remedy.FATAL,
    "badrequest": Remedy.FATAL,
    "forbidden": Remedy.FATAL,
    "iampermissiondenied": Remedy.FATAL,
    "permissionserror": Remedy.FATAL,
    "permissiondenied": Remedy.FATAL,
    "vpcnotfound": Remedy.FATAL,
    "accessnotconfigured": Remedy.FATAL,
    "operationcancelledbyuser": Remedy.FATAL,
}
_NOT_FOUND = ("notfound", "resourcenotfound")
_UNSUPPORTED = "unsupportedoperation"


@dataclass(frozen=True)
class ErrorDetail:
    """One of an operation error's ``errorDetails``: an ``errorInfo`` or a ``quotaInfo``, whichever was filled in."""

    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    quota_metric: str = ""  # compute.googleapis.com/nvidia_l4_gpus
    quota_dimensions: Mapping[str, str] = field(default_factory=dict)
    quota_limit: float | None = None


def classify(
    code: str,
    message: str,
    *,
    http_status: int | None = None,
    details: Sequence[ErrorDetail] = (),
    creating: bool = False,
) -> Refusal:
    """What to do about ``code``.

    Args:
        http_status: of the answer, or what the operation says (``httpErrorStatusCode``), which may be missing.
        creating: the request was to make a machine. Then an unsupported operation is one that was preempted while it
            was made, and something that was not found is something the request named.
    """
    remedy = _remedy(code, message, http_status, details, creating=creating)
    return Refusal(code or f"HTTP {http_status}", message, remedy, http_status, _zones_available(details))


def is_passing(code: str, http_status: int | None) -> bool:
    """Whether an HTTP answer means that the same request may succeed in a while, with the same request id."""
    known = _TABLE.get(_letters(code))
    if known is not None:
        return known is Remedy.RETRY
    return http_status == 429 or (http_status or 0) >= 500


def quota_metric(refusal: Refusal) -> str | None:
    """The limit that a message of a quota names: ``NVIDIA_L4_GPUS``."""
    found = _METRIC.search(refusal.message)
    return found[1].upper() if found else None


def quota_hint(metric: str, project: str, region: str | None) -> str:
    """What to do about a limit that is too low."""
    where = f" in {region}" if region else ""
    return f"ask for more of {metric}{where} at {QUOTA_PAGE.format(project=project)}"


def hint(refusal: Refusal, *, project: str, region: str | None = None) -> str:
    """One thing to do about a refusal, for the message that ends the attempt."""
    metric = quota_metric(refusal)
    if metric is not None:
        return quota_hint(metric, project, None if _is_of_the_project(refusal.message, metric) else region)
    permission = missing_permission(refusal.message)
    if permission is not None:
        return permission_hint(permission, project)
    if refusal.remedy is Remedy.NEXT_ZONE and refusal.zones_available:
        return f"the cloud has some in {', '.join(refusal.zones_available)}: add it to `zones` of the target"
    return _HINTS[refusal.remedy]


_HINTS = {
    Remedy.NEXT_ZONE: "add zones to `zones` of the target, or try again later",
    Remedy.NEXT_REGION: "add zones of another region to `zones` of the target",
    Remedy.NOT_READY: "the machine is on its way from one state to another: try again in a minute",
    Remedy.RETRY: "try again in a minute; the state of the service: https://status.cloud.google.com",
    Remedy.LOOK_AGAIN: "something else changed the machine meanwhile: try again",
    Remedy.FATAL: "check the keys of the target: fcctl doctor --on TARGET",
}


def missing_permission(message: str) -> str | None:
    """The permission that a message says is lacking: ``compute.instances.start``."""
    found = _PERMISSION.search(message)
    return found[1] if found and "ermission" in message else None


#: Which predefined role holds a permission, by its beginning; the first that fits.
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


def role_for(permission: str) -> str:
    """The predefined role to ask for; for what is only read, the viewer's."""
    return next((role for start, role in _ROLES if permission.startswith(start)), "roles/compute.viewer")


def permission_hint(permission: str, project: str) -> str:
    """The command that grants it; an owner of the project runs it."""
    return (
        f"an owner of the project runs: gcloud projects add-iam-policy-binding {project} "
        f"--member=user:YOUR_ACCOUNT --role={role_for(permission)}"
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
    """Whether a limit holds for all regions, so that no other region helps."""
    for detail in details:
        if detail.quota_metric.lower().endswith("_all_regions") or detail.quota_dimensions.get("region") == "global":
            return True
    found = _METRIC.search(message)
    return _is_of_the_project(message, found[1] if found else "")


def _is_of_the_project(message: str, metric: str) -> bool:
    return "ALL_REGIONS" in metric.upper() or "ALL_REGIONS" in message or "globally" in message


def _zones_available(details: Sequence[ErrorDetail]) -> tuple[str, ...]:
    """Zones that the cloud says have stock; a hint, and only what looks like a zone."""
    named = ",".join(detail.metadata.get("zonesAvailable", "") for detail in details)
    return tuple(dict.fromkeys(zone for zone in map(str.strip, named.split(",")) if _ZONE_SHAPE.fullmatch(zone)))
