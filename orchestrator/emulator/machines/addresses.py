"""Static external addresses of regions: reserved, listed and released. They are numbers only; nothing answers there."""

from __future__ import annotations

import copy
from typing import Any

from orchestrator.emulator.core import catalog, listing
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.core.clock import timestamp
from orchestrator.emulator.core.operations import Plan, step
from orchestrator.emulator.core.refusals import ApiError, not_found
from orchestrator.emulator.core.resources import check_labels, check_name, fingerprint, last, link, new_id
from orchestrator.emulator.core.world import Operation, World


def insert(call: Call) -> dict[str, Any]:
    name, region = check_name(call.body.get("name")), call.at["region"]
    place = f"{call.project}/regions/{region}"
    path = f"{place}/addresses/{name}"
    if region not in catalog.regions(call.world.scenario.zones):
        raise not_found(place)
    if path in call.world.addresses:
        raise ApiError("alreadyExists", f"The resource '{path}' already exists")
    labels = check_labels(call.body.get("labels") or {})
    call.world.addresses[path] = {
        "kind": "compute#address",
        "id": new_id(),
        "name": name,
        "region": link(place),
        "selfLink": link(path),
        "status": "RESERVED",
        "address": f"203.0.113.{len(call.world.addresses) % 254 + 1}",  # RFC 5737: for documentation
        "addressType": "EXTERNAL",
        "networkTier": "PREMIUM",
        "creationTimestamp": timestamp(call.world.now()),
        "labels": labels,
        "labelFingerprint": fingerprint(labels),
    }
    return call.begin("insert", path, [], target_id=call.world.addresses[path]["id"])


def delete(call: Call) -> dict[str, Any]:
    path = f"{call.project}/regions/{call.at['region']}/addresses/{call.at['name']}"
    found = call.world.addresses.get(path)
    if found is None:
        raise not_found(path)
    plan: Plan = [(call.world.scenario.latency.delete, "release_address", {"path": path})]
    return call.begin("delete", path, plan, target_id=found["id"])


@step
def release_address(world: World, operation: Operation, path: str) -> None:
    del operation
    world.addresses.pop(path, None)


def aggregated(call: Call) -> dict[str, Any]:
    rows = [row for path, row in call.world.addresses.items() if path.startswith(f"{call.project}/")]
    chosen, token = listing.chosen(call, copy.deepcopy(rows))
    items: dict[str, Any] = {}
    for region in catalog.regions(call.world.scenario.zones):
        here = [row for row in chosen if last(row["region"]) == region]
        scope = f"regions/{region}"
        items[scope] = {"addresses": here} if here else {"warning": listing.empty(scope)}
    path = f"{call.project}/aggregated/addresses"
    answer = {"kind": "compute#addressAggregatedList", "id": path, "items": items, "selfLink": link(path)}
    return {**answer, "nextPageToken": token} if token else answer
