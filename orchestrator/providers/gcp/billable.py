"""What is billed by the month: disks, snapshots and static addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.base.errors import AuthError, CloudError
from orchestrator.machines.cloud import BillableResource
from orchestrator.providers.gcp.api import Api
from orchestrator.providers.gcp.messages import last, moment

_UNREACHABLE = "UNREACHABLE"
_GIB = 1024**3


def billable_resources(api: Api) -> tuple[list[BillableResource], list[str]]:
    """All of them, and what could not be asked: zones, regions, or a whole kind for want of a permission."""
    resources: list[BillableResource] = []
    unasked: set[str] = set()
    kinds: tuple[tuple[str, Callable[[Api, set[str]], Iterator[BillableResource]]], ...] = (
        ("disks", _disks), ("snapshots", _snapshots), ("addresses", _addresses),
    )  # fmt: skip
    for what, read in kinds:
        try:
            resources += read(api, unasked)
        except (AuthError, CloudError) as error:
            unasked.add(f"{what} ({error.message})")
    return sorted(resources, key=lambda one: (one.kind, one.name, one.place)), sorted(unasked)


def _scopes(api: Api, service: str, request: str, what: str, unasked: set[str]) -> Iterator[tuple[str, Any]]:
    """(place, what is there) of an aggregated list."""
    for page in api.pages(service, "aggregated_list", request, what):
        unasked.update(last(scope) for scope in page.unreachables)
        for scope, scoped in page.items.items():
            if scoped.warning.code == _UNREACHABLE:
                unasked.add(last(scope))
            yield last(scope), scoped


def _disks(api: Api, unasked: set[str]) -> Iterator[BillableResource]:
    for place, scoped in _scopes(api, "Disks", "AggregatedListDisksRequest", "disks", unasked):
        for raw in scoped.disks:
            yield disk(raw, api.project, place)


def disk(raw: Any, project: str, place: str) -> BillableResource:
    """A ``Disk``."""
    return BillableResource(
        "disk", project, place, raw.name, int(raw.size_gb), last(raw.type_), dict(raw.labels),
        tuple(map(last, raw.users)), last(raw.source_snapshot), moment(raw.creation_timestamp),
    )  # fmt: skip


def _snapshots(api: Api, unasked: set[str]) -> Iterator[BillableResource]:
    del unasked  # they are global
    for page in api.pages("Snapshots", "list", "ListSnapshotsRequest", "snapshots"):
        for raw in page.items:
            place = next(iter(raw.storage_locations), "global")
            # Billed by stored size, which is known after a while; until then by the disk's size.
            stored = -(-int(raw.storage_bytes) // _GIB) or int(raw.disk_size_gb)
            yield BillableResource(
                "snapshot", api.project, place, raw.name, max(1, stored), labels=dict(raw.labels),
                source=last(raw.source_disk), created=moment(raw.creation_timestamp),
            )  # fmt: skip


def _addresses(api: Api, unasked: set[str]) -> Iterator[BillableResource]:
    for place, scoped in _scopes(api, "Addresses", "AggregatedListAddressesRequest", "addresses", unasked):
        for raw in scoped.addresses:
            if raw.address_type != "INTERNAL":
                yield BillableResource(
                    "address", api.project, place, raw.name, labels=dict(raw.labels),
                    users=tuple(map(last, raw.users)), created=moment(raw.creation_timestamp),
                )  # fmt: skip
