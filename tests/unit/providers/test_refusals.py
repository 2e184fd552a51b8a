"""What to do about each thing a cloud says: the table, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.machines.cloud import Remedy
from orchestrator.providers.gcp import refusals
from orchestrator.providers.gcp.refusals import ErrorDetail

STOCKOUT = "The zone 'projects/p/zones/us-west1-c' does not have enough resources available to fulfill the request."
REGIONAL = "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region us-west1."
GLOBAL = "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."
ZONES = ErrorDetail("resource_availability", {"zonesAvailable": "us-west1-a, us-west1-b,us-west1-a,../etc"})


@pytest.mark.parametrize(
    ("code", "message", "http", "more", "remedy"),
    [
        # no machines left
        ("ZONE_RESOURCE_POOL_EXHAUSTED", STOCKOUT, 503, {}, Remedy.NEXT_ZONE),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", STOCKOUT, None, {}, Remedy.NEXT_ZONE),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", STOCKOUT, 503, {"details": [ZONES]}, Remedy.NEXT_ZONE),
        ("RESOURCE_POOL_EXHAUSTED", STOCKOUT, 503, {}, Remedy.NEXT_ZONE),
        ("insufficientCapacity", STOCKOUT, 503, {}, Remedy.NEXT_ZONE),
        ("INSUFFICIENT_CAPACITY_WITH_DETAILS", STOCKOUT, 503, {}, Remedy.NEXT_ZONE),
        ("SOMETHING_NEW", STOCKOUT, 503, {"details": [ZONES]}, Remedy.NEXT_ZONE),
        # quotas
        ("QUOTA_EXCEEDED", REGIONAL, 403, {}, Remedy.NEXT_REGION),
        ("QUOTA_EXCEEDED_WITH_DETAILS", REGIONAL, None, {}, Remedy.NEXT_REGION),
        ("quotaExceeded", REGIONAL, 403, {}, Remedy.NEXT_REGION),
        ("QUOTA_EXCEEDED", GLOBAL, 403, {}, Remedy.FATAL),
        ("quotaExceeded", GLOBAL, 403, {}, Remedy.FATAL),
        ("QUOTA_EXCEEDED", "Quota 'CPUS_ALL_REGIONS' exceeded.  Limit: 32.0 globally.", 403, {}, Remedy.FATAL),
        ("QUOTA_EXCEEDED", "exceeded", 403,
         {"details": [ErrorDetail(quota_metric="compute.googleapis.com/gpus_all_regions")]}, Remedy.FATAL),
        ("QUOTA_EXCEEDED", "exceeded", 403,
         {"details": [ErrorDetail(quota_metric="compute.googleapis.com/x", quota_dimensions={"region": "us-west1"})]},
         Remedy.NEXT_REGION),
        # on its way
        ("RESOURCE_NOT_READY", "The resource is not ready", 400, {}, Remedy.NOT_READY),
        ("resourceNotReady", "The resource is not ready", 400, {}, Remedy.NOT_READY),
        ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "The disk is used", 400, {}, Remedy.NOT_READY),
        # passing
        ("RESOURCE_OPERATION_RATE_EXCEEDED", "Operation rate exceeded", 403, {}, Remedy.RETRY),
        ("CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "Wait for other operations to be done", 403, {}, Remedy.RETRY),
        ("rateLimitExceeded", "Rate Limit Exceeded", 403, {}, Remedy.RETRY),
        ("userRateLimitExceeded", "User Rate Limit Exceeded", 403, {}, Remedy.RETRY),
        ("INTERNAL_ERROR", "Internal error. Please try again", 500, {}, Remedy.RETRY),
        ("INTERNAL_ERROR", "Internal error. Please try again", None, {}, Remedy.RETRY),
        ("backendError", "Backend Error", 503, {}, Remedy.RETRY),
        ("", "Too Many Requests", 429, {}, Remedy.RETRY),
        ("", "Request Timeout", 408, {}, Remedy.RETRY),
        ("", "Bad Gateway", 502, {}, Remedy.RETRY),
        ("SOMETHING_NEW", "?", 503, {}, Remedy.RETRY),
        # the world has changed
        ("alreadyExists", "The resource already exists", 409, {"creating": True}, Remedy.LOOK_AGAIN),
        ("RESOURCE_ALREADY_EXISTS", "The resource already exists", 409, {"creating": True}, Remedy.LOOK_AGAIN),
        ("conditionNotMet", "fingerprint", 412, {}, Remedy.LOOK_AGAIN),
        ("", "Precondition Failed", 412, {}, Remedy.LOOK_AGAIN),
        ("conflict", "requestId was used", 409, {}, Remedy.LOOK_AGAIN),
        ("notFound", "The resource '.../instances/vm' was not found", 404, {}, Remedy.LOOK_AGAIN),
        ("RESOURCE_NOT_FOUND", "The resource '.../instances/vm' was not found", 404, {}, Remedy.LOOK_AGAIN),
        # what a request to make a machine named is not there, or it was preempted while it was made
        ("notFound", "The resource '.../networks/n' was not found", 404, {"creating": True}, Remedy.FATAL),
        ("UNSUPPORTED_OPERATION", "Instance is being preempted", 400, {"creating": True}, Remedy.NEXT_ZONE),
        ("UNSUPPORTED_OPERATION", "not for this machine", 400, {}, Remedy.FATAL),
        # for good
        ("invalid", "Invalid value for field", 400, {}, Remedy.FATAL),
        ("badRequest", "Parse Error", 400, {}, Remedy.FATAL),
        ("INVALID_USAGE", "Invalid usage", 400, {}, Remedy.FATAL),
        ("IAM_PERMISSION_DENIED", "Required 'iam.serviceAccounts.actAs' permission", 403, {}, Remedy.FATAL),
        ("PERMISSIONS_ERROR", "Required 'compute.disks.create' permission", 403, {}, Remedy.FATAL),
        ("VPC_NOT_FOUND", "no network", 404, {"creating": True}, Remedy.FATAL),
        ("SOMETHING_NEW", "?", 400, {}, Remedy.FATAL),
        ("SOMETHING_NEW", "?", None, {}, Remedy.FATAL),
    ],
)  # fmt: skip
def test_each_code_has_its_remedy(
    code: str, message: str, http: int | None, more: dict[str, Any], remedy: Remedy
) -> None:
    found = refusals.classify(code, message, project="p", http_status=http, **more)
    assert found.remedy is remedy
    assert found.message == message
    assert found.code
    assert found.hint, "every remedy has something to do"


def test_the_zones_that_have_stock_are_only_zones() -> None:
    code = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    found = refusals.classify(code, STOCKOUT, project="p", http_status=503, details=[ZONES])
    assert found.zones_available == ("us-west1-a", "us-west1-b")
    assert found.hint == "the cloud has free machines in us-west1-a, us-west1-b: add to `zones` in the target"


@pytest.mark.parametrize(("message", "place"), [(REGIONAL, "NVIDIA_L4_GPUS in us-west1"), (GLOBAL, "GPUS_ALL_REGIONS")])
def test_a_quota_says_where_to_ask(message: str, place: str) -> None:
    found = refusals.classify("QUOTA_EXCEEDED", message, project="proj-one", region="us-west1")
    assert found.problem == "quota"
    assert (
        found.hint
        == f"request a higher quota {place}: https://console.cloud.google.com/iam-admin/quotas?project=proj-one"
    )


@pytest.mark.parametrize(
    ("permission", "role"),
    [
        ("compute.instances.start", "roles/compute.instanceAdmin.v1"),
        ("compute.instances.osLogin", "roles/compute.osLogin"),
        ("compute.instances.osAdminLogin", "roles/compute.osAdminLogin"),
        ("compute.disks.createSnapshot", "roles/compute.instanceAdmin.v1"),
        ("compute.firewalls.list", "roles/compute.viewer"),
        ("compute.subnetworks.useExternalIp", "roles/compute.networkUser"),
        ("iam.serviceAccounts.actAs", "roles/iam.serviceAccountUser"),
        ("iap.tunnelInstances.accessViaIAP", "roles/iap.tunnelResourceAccessor"),
    ],
)
def test_a_missing_permission_is_named_with_its_role(permission: str, role: str) -> None:
    message = f"Required '{permission}' permission for 'projects/p/zones/z/instances/vm'"
    assert refusals.missing_permission(message) == permission
    found = refusals.classify("IAM_PERMISSION_DENIED", message, project="p", http_status=403)
    assert found.problem == "denied"
    assert f"--role={role}" in (found.hint or "")


def test_a_message_without_a_permission_names_none() -> None:
    assert refusals.missing_permission("The resource 'compute.instances.x' is fine") is None
    assert refusals.missing_permission("Permission denied on 'projects/p'") is None
