"""Errors of the API, and what names, labels, links and fingerprints of resources may be."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from dataclasses import dataclass, field
from http.client import responses
from typing import Any

_HELP = "https://cloud.google.com/compute/docs/resource-error"
#: Reason -> HTTP status, domain and, where the API sends one, google.rpc status; first the usual one of each status.
REASONS: dict[str, tuple[int, str, str | None]] = {
    "badRequest": (400, "global", None),
    "invalid": (400, "global", None),
    "required": (400, "global", None),
    "resourceNotReady": (400, "global", None),
    "resourceInUseByAnotherResource": (400, "global", None),
    "authError": (401, "global", "UNAUTHENTICATED"),
    "forbidden": (403, "global", "PERMISSION_DENIED"),
    "accessNotConfigured": (403, "usageLimits", "PERMISSION_DENIED"),
    "quotaExceeded": (403, "usageLimits", None),
    "rateLimitExceeded": (403, "usageLimits", "PERMISSION_DENIED"),
    "notFound": (404, "global", None),
    "methodNotAllowed": (405, "global", None),
    "conflict": (409, "global", None),
    "alreadyExists": (409, "global", None),
    "conditionNotMet": (412, "global", None),
    "internalError": (500, "global", "INTERNAL"),
    "backendError": (503, "global", "UNAVAILABLE"),
}


class ApiError(Exception):
    """A request that is refused: becomes the HTTP error body the real service sends."""

    def __init__(self, reason: str, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        known, domain, rpc = REASONS.get(reason, (status or 400, "global", None))
        self.reason, self.message, self.status = reason, message, status or known
        self._domain, self._rpc = domain, rpc

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "errors": [{"message": self.message, "domain": self._domain, "reason": self.reason}],
        }
        if self._rpc is not None:
            error["status"] = self._rpc
        if self.reason == "rateLimitExceeded":
            error["details"] = [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "RATE_LIMIT_EXCEEDED",
                    "domain": "googleapis.com",
                    "metadata": {"service": "compute.googleapis.com"},
                }
            ]
        return {"error": error}


@dataclass
class OperationError(Exception):
    """The error of an operation. ``http`` None leaves ``httpErrorStatusCode`` out, as the service sometimes does."""

    code: str
    message: str
    http: int | None = 400
    details: list[dict[str, Any]] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        """The fields it adds to the operation."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.details:
            error["errorDetails"] = self.details
        fields: dict[str, Any] = {"error": {"errors": [error]}}
        if self.http is not None:
            fields["httpErrorStatusCode"] = self.http
            fields["httpErrorMessage"] = responses.get(self.http, "error").upper()
        return fields


def not_found(path: str) -> ApiError:
    """``path`` begins with ``projects/``."""
    return ApiError("notFound", f"The resource '{path}' was not found")


def not_ready(path: str) -> ApiError:
    return ApiError("resourceNotReady", f"The resource '{path}' is not ready")


def invalid(field_name: str, value: object, why: str) -> ApiError:
    return ApiError("invalid", f"Invalid value for field '{field_name}': '{value}'. {why}")


def stockout(
    zone_path: str, machine_type: str, accelerator: tuple[str, int] | None, zones: list[str], *, detailed: bool = True
) -> OperationError:
    """No machines left in a zone. ``zones`` are those that would have one; ``accelerator`` is (type, count)."""
    code = "ZONE_RESOURCE_POOL_EXHAUSTED"
    message = f"The zone '{zone_path}' does not have enough resources available to fulfill the request."
    if not detailed:
        return OperationError(code, f"{message}  Try a different zone, or try again later.", 503)
    zone = zone_path.rsplit("/", 1)[-1]
    attachment = f" with {accelerator[1]} {accelerator[0]} accelerator(s)" if accelerator else ""
    metadatas = {"vmType": machine_type, "zone": zone, "zonesAvailable": ",".join(zones)}
    if accelerator:
        metadatas["attachment"] = f"{accelerator[0]}:{accelerator[1]}"
    text = (
        f"A {machine_type} VM instance{attachment} is currently unavailable in the {zone} zone. Consider trying your "
        "request in other zones, or try again later. For more information, see the troubleshooting documentation."
    )
    details: list[dict[str, Any]] = [
        {"help": {"links": [{"description": "Troubleshooting documentation", "url": _HELP}]}},
        {"localizedMessage": {"locale": "en-US", "message": text}},
        {"errorInfo": {"reason": "resource_availability", "domain": "compute.googleapis.com", "metadatas": metadatas}},
    ]
    return OperationError(f"{code}_WITH_DETAILS", f"{message}  '(resource type:compute)'.", 503, details)


def quota_exceeded(metric: str, limit: float, region: str | None) -> OperationError:
    """A quota that would be exceeded; ``region`` None means the whole project."""
    name = metric.replace("_", "-")
    info = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{name}-per-project-region" if region else f"{name}-per-project",
        "dimensions": {"region": region or "global"},
        "limit": limit,
    }
    message = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {f'in region {region}' if region else 'globally'}."
    return OperationError("QUOTA_EXCEEDED", message, 403, [{"quotaInfo": info}])


ROOT = "https://www.googleapis.com/compute/v1/"
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def link(path: str) -> str:
    """The selfLink of ``projects/...``."""
    return ROOT + path


def path_of(url: str) -> str:
    """``projects/...`` of a full or partial URL."""
    return url[url.index("projects/") :] if "projects/" in url else url


def last(url: str) -> str:
    """The name a URL ends with."""
    return url.rstrip("/").rsplit("/", 1)[-1]


def new_id(rng: random.Random) -> str:
    """A fresh unsigned 64-bit id, as JSON carries it."""
    return str(rng.getrandbits(62) + 2**60)


def fingerprint(value: Any) -> str:
    """Base64 that changes with the value; clients decode it."""
    text = json.dumps(value, sort_keys=True)
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:9]).decode()


def check_fingerprint(given: Any, current: str, message: str) -> None:
    """Raises ApiError (412) unless ``given`` is ``current``, in either alphabet of base64."""
    if str(given or "").replace("-", "+").replace("_", "/") != current:
        raise ApiError("conditionNotMet", message)


def check_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid("resource.name", name, f"Must be a match of regex '{_NAME.pattern}'")
    return name


def labelled(given: dict[str, Any], before: str | None = None) -> dict[str, Any]:
    """The labels that a request has, and their fingerprint; ``before``: that of the labels they replace. Raises
    ApiError: the request knows other labels than these (412), or its own cannot be."""
    if before is not None:
        message = "Labels fingerprint either invalid or resource labels have changed"
        check_fingerprint(given.get("labelFingerprint"), before, message)
    labels = check_labels(given.get("labels") or {})
    return {"labels": labels, "labelFingerprint": fingerprint(labels)}


def check_labels(labels: Any) -> dict[str, str]:
    if not isinstance(labels, dict):
        raise invalid("labels", labels, "Must be a map of strings.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
            raise invalid(f"labels.{key}", value, "Label keys and values are lower-case letters, digits, _ and -.")
    return dict(labels)


def check_metadata(metadata: Any) -> list[dict[str, str]]:
    """The items of a Metadata message, keys unique."""
    items = (metadata or {}).get("items", [])
    keys = [item.get("key") for item in items]
    if len(set(keys)) != len(keys) or not all(isinstance(key, str) and key for key in keys):
        raise invalid("metadata", keys, "Metadata keys are unique and not empty.")
    return [{"key": item["key"], "value": str(item.get("value", ""))} for item in items]


def seconds_of(duration: Any, field: str) -> int:
    """Whole seconds of a Duration message, whose int64 may be a string."""
    try:
        return int(duration.get("seconds", 0))
    except (AttributeError, TypeError, ValueError):
        raise invalid(field, duration, "Must be a Duration.") from None
