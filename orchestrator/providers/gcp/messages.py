"""Converts Google's messages: instances and operations to our types, a machine to create to an ``Instance``.

The messages are typed ``Any``: their classes are created at run time, and importing them takes over a second."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from orchestrator.base.errors import AuthError, CloudError
from orchestrator.machines.cloud import (
    BillableResource,
    Disk,
    Machine,
    MachineSpec,
    Operation,
    OperationState,
    Quota,
    Refusal,
    Remedy,
    region_of,
)
from orchestrator.machines.targets import GcpTarget, Provisioning
from orchestrator.providers.gcp import refusals
from orchestrator.providers.gcp.api import Api

#: The scope of the target's service account, which its roles restrict.
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
BOOT_DEVICE = "boot"
_MODELS: Mapping[Provisioning, str] = {"on_demand": "STANDARD", "spot": "SPOT"}


def last(url: str) -> str:
    """The name that a URL of a resource ends with."""
    return url.rstrip("/").rsplit("/", 1)[-1]


def moment(text: str) -> float | None:
    """Epoch seconds of an RFC 3339 time; None where there is none."""
    try:
        return datetime.fromisoformat(text.upper()).timestamp()
    except ValueError:
        return None


# -------------------------------------------------------------------------------------------------- what the cloud says
def machine(raw: Any, project: str) -> Machine:
    """An ``Instance``."""
    scheduling = raw.scheduling
    limit = int(scheduling.max_run_duration.seconds) or None
    running = raw.status == "RUNNING"
    started, stopped = moment(raw.last_start_timestamp), moment(raw.last_stop_timestamp)
    created = moment(raw.creation_timestamp)
    if started is None and created is not None and running:  # some services leave it out
        started = max(created, stopped or 0.0)
    deadline = moment(getattr(raw.resource_status.scheduling, "termination_timestamp", ""))  # older libraries lack it
    if deadline is None and limit is not None and started is not None:
        deadline = started + limit
    interfaces = list(raw.network_interfaces)
    return Machine(
        project=project,
        zone=last(raw.zone),
        name=raw.name,
        id=str(raw.id),
        status=raw.status,
        machine_type=last(raw.machine_type),
        accelerators={last(a.accelerator_type): int(a.accelerator_count) for a in raw.guest_accelerators},
        labels=dict(raw.labels),
        label_fingerprint=raw.label_fingerprint,
        metadata={item.key: item.value for item in raw.metadata.items},
        metadata_fingerprint=raw.metadata.fingerprint,
        spot=scheduling.provisioning_model == "SPOT" or bool(scheduling.preemptible),
        internal_ip=next((i.network_i_p for i in interfaces if i.network_i_p), None),
        external_ip=next((a.nat_i_p for i in interfaces for a in i.access_configs if a.nat_i_p), None),
        external=any(i.access_configs for i in interfaces),
        disks=tuple(_disk(disk) for disk in raw.disks),
        created=created,
        started=started,
        stopped=stopped,
        max_run_s=limit,
        termination_action=scheduling.instance_termination_action or None,
        deadline=deadline if running else None,
    )


def _disk(raw: Any) -> Disk:
    scratch = "local-ssd" if raw.type_ == "SCRATCH" else ""
    size, auto_delete = int(raw.disk_size_gb), bool(raw.auto_delete)
    return Disk(last(raw.source), raw.device_name, bool(raw.boot), size, auto_delete, scratch)


_STATES: Mapping[str, OperationState] = {"PENDING": "PENDING", "RUNNING": "RUNNING", "DONE": "DONE"}


def operation(raw: Any) -> Operation:
    """An ``Operation``. A DONE one has failed if it names an error, whatever its HTTP status says or leaves out."""
    state = _STATES.get(getattr(raw.status, "name", str(raw.status)), "RUNNING")
    started = moment(raw.start_time) or moment(raw.insert_time)
    return Operation(
        name=raw.name,
        zone=last(raw.zone) or None,
        type=raw.operation_type,
        target=last(raw.target_link),
        state=state,
        refusal=_refusal(raw) if state == "DONE" else None,
        started=started,
        finished=moment(raw.end_time) or (started if state == "DONE" else None),
        target_id=str(int(raw.target_id) or ""),
        collection=last(raw.target_link.rstrip("/").rpartition("/")[0]),  # .../zones/us-west1-c/instances/vm
        user=str(raw.user)[:200],
        request_id=str(raw.client_operation_id)[:64],
    )


def _refusal(raw: Any) -> Refusal | None:
    status = int(raw.http_error_status_code) or None
    creating = raw.operation_type in ("insert", "bulkInsert") and "/instances/" in raw.target_link
    where = re.search(r"projects/([^/]+)/(?:zones/([^/]+))?", raw.target_link)
    project, zone = (where[1], where[2]) if where else ("PROJECT", None)
    classify = partial(
        refusals.classify, project=project, region=region_of(zone) if zone else None, http_status=status,
        creating=creating,
    )  # fmt: skip
    errors = list(raw.error.errors)
    if not errors:
        return None if status is None or status < 400 else classify("", raw.http_error_message)
    refused = [classify(error.code, error.message, details=list(map(_detail, error.error_details))) for error in errors]
    # Of several errors a FATAL one decides.
    return next((one for one in refused if one.remedy is Remedy.FATAL), refused[0])


def _detail(raw: Any) -> refusals.ErrorDetail:
    return refusals.ErrorDetail(
        reason=raw.error_info.reason,
        metadata=dict(raw.error_info.metadatas),
        quota_metric=raw.quota_info.metric_name,
        quota_dimensions=dict(raw.quota_info.dimensions),
    )


def quotas(raw: Any, region: str | None) -> list[Quota]:
    """The ``quotas`` of a ``Region`` or a ``Project``."""
    return [Quota(row.metric, region, float(row.limit), float(row.usage)) for row in raw.quotas]


# ------------------------------------------------------------------------------------------------------- what is sent
def instance(spec: MachineSpec, zone: str) -> dict[str, Any]:
    """The ``Instance`` that makes a machine, as the fields of a message."""
    target = spec.target
    if not isinstance(target, GcpTarget):
        raise TypeError(f"{target.name} is not a Compute Engine machine")
    source = (
        {"source_snapshot": f"global/snapshots/{spec.snapshot}"}
        if spec.snapshot
        else {"source_image": f"projects/{target.image_project}/global/images/family/{target.image_family}"}
    )
    return {
        "name": spec.name,
        "machine_type": f"zones/{zone}/machineTypes/{target.machine_type}",
        "labels": dict(spec.labels),
        "metadata": {"items": items(spec.metadata)},
        "scheduling": scheduling(spec),
        "disks": [
            {
                "boot": True,
                "auto_delete": True,  # the deadline stops a machine and never deletes it
                "device_name": BOOT_DEVICE,
                "initialize_params": {
                    "disk_size_gb": target.disk_gb,
                    "disk_type": f"zones/{zone}/diskTypes/{target.disk_type}",
                    "labels": dict(spec.labels),
                    **source,
                },
            }
        ],
        "network_interfaces": [_interface(target, zone)],
        "service_accounts": [{"email": target.service_account, "scopes": [_SCOPE]}] if target.service_account else [],
        "guest_accelerators": [
            {"accelerator_type": f"zones/{zone}/acceleratorTypes/{kind}", "accelerator_count": count}
            for kind, count in target.accelerators.items()
        ],
    }


def items(metadata: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in metadata.items()]


def scheduling(spec: MachineSpec) -> dict[str, Any]:
    """The max run duration from the first start on; and what a machine with a GPU needs."""
    return {
        "provisioning_model": _MODELS[spec.way],
        "on_host_maintenance": "TERMINATE",
        "automatic_restart": False,
        **limit(spec.max_run_s),
    }


def limit(seconds: int) -> dict[str, Any]:
    """The part of a ``Scheduling`` that stops the machine, and keeps it."""
    return {"max_run_duration": {"seconds": seconds}, "instance_termination_action": "STOP"}


def limited(raw: Any, seconds: int) -> Any:
    """A copy of an ``Instance``'s ``Scheduling`` with a max run duration in place of any other end."""
    changed = type(raw.scheduling)(raw.scheduling)
    for field, value in {"on_host_maintenance": "TERMINATE", "automatic_restart": False, **limit(seconds)}.items():
        setattr(changed, field, value)
    changed.termination_time = None
    if any(disk.type_ == "SCRATCH" for disk in raw.disks):  # local SSDs, whose loss the service wants confirmed
        changed.on_instance_stop_action = {"discard_local_ssd": True}
    return changed


def _interface(target: GcpTarget, zone: str) -> dict[str, Any]:
    """Bare names are of this project; ``projects/HOST/...`` is a shared network."""
    network, subnetwork = target.network or "default", target.subnetwork
    values: dict[str, Any] = {"network": network if "/" in network else f"global/networks/{network}"}
    if subnetwork:
        within = subnetwork if "/" in subnetwork else f"regions/{region_of(zone)}/subnetworks/{subnetwork}"
        values = {"subnetwork": within, **(values if target.network else {})}
    if target.has_address:
        values["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    return values


#: Warnings of a list that may lack something.
_INCOMPLETE = ("UNREACHABLE", "PARTIAL_SUCCESS")
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


def scopes(
    api: Api, service: str, request: str, what: str, unasked: set[str], **fields: Any
) -> Iterator[tuple[str, Any]]:
    """(place, what is there) of an aggregated list; adds the places that could not be asked to ``unasked``."""
    for page in api.pages(service, "aggregated_list", request, what, **fields):
        unasked.update(last(scope) for scope in page.unreachables)
        unasked.update([what] if page.warning.code in _INCOMPLETE else [])
        for scope, scoped in page.items.items():
            if scoped.warning.code in _INCOMPLETE:
                unasked.add(last(scope))
            yield last(scope), scoped


def _disks(api: Api, unasked: set[str]) -> Iterator[BillableResource]:
    for place, scoped in scopes(api, "Disks", "AggregatedListDisksRequest", "disks", unasked):
        for raw in scoped.disks:
            yield disk(raw, api.project, place)


def disk(raw: Any, project: str, place: str) -> BillableResource:
    """A ``Disk``."""
    return BillableResource(
        "disk", project, place, raw.name, int(raw.size_gb), last(raw.type_), dict(raw.labels),
        tuple(map(last, raw.users)), last(raw.source_snapshot), moment(raw.creation_timestamp),
    )  # fmt: skip


def _snapshots(api: Api, unasked: set[str]) -> Iterator[BillableResource]:
    for page in api.pages("Snapshots", "list", "ListSnapshotsRequest", "snapshots"):
        unasked.update(["snapshots"] if page.warning.code in _INCOMPLETE else [])
        for raw in page.items:
            place = next(iter(raw.storage_locations), "global")
            # Billed by stored size, which is known after a while; until then by the disk's size.
            stored = -(-int(raw.storage_bytes) // _GIB) or int(raw.disk_size_gb)
            yield BillableResource(
                "snapshot", api.project, place, raw.name, max(1, stored), labels=dict(raw.labels),
                source=last(raw.source_disk), created=moment(raw.creation_timestamp),
            )  # fmt: skip


def _addresses(api: Api, unasked: set[str]) -> Iterator[BillableResource]:
    for place, scoped in scopes(api, "Addresses", "AggregatedListAddressesRequest", "addresses", unasked):
        for raw in scoped.addresses:
            if raw.address_type != "INTERNAL":
                yield BillableResource(
                    "address", api.project, place, raw.name, labels=dict(raw.labels),
                    users=tuple(map(last, raw.users)), created=moment(raw.creation_timestamp),
                )  # fmt: skip


#: Where IAP's tunnels come from (Google's documentation, "Using IAP for TCP forwarding").
IAP_RANGE = ipaddress.IPv4Network("35.235.240.0/20")
SSH_PORT = 22
_TCP = ("tcp", "6", "all")


def allows_iap(rules: Iterable[Any], network: str) -> bool:
    """Whether the rules of ``network`` let it in, as the service evaluates them.

    The lowest priority number decides, and deny before allow among equals; without a matching rule nothing is let in.
    Rules for tags or service accounts do not count: a machine of fcctl's has neither.
    """
    fitting = [rule for rule in rules if _fits(rule, network)]
    fitting.sort(key=lambda rule: (rule.priority, not rule.denied))
    return bool(fitting) and not fitting[0].denied


def _fits(rule: Any, network: str) -> bool:
    if rule.disabled or rule.direction == "EGRESS" or rule.target_tags or rule.target_service_accounts:
        return False
    if last(rule.network) != last(network):
        return False
    return any(map(_covers_iap, rule.source_ranges)) and any(map(_covers_ssh, [*rule.allowed, *rule.denied]))


def _covers_iap(text: str) -> bool:
    try:
        given = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return isinstance(given, ipaddress.IPv4Network) and IAP_RANGE.subnet_of(given)


def _covers_ssh(entry: Any) -> bool:
    return entry.I_p_protocol.lower() in _TCP and (not entry.ports or any(map(_holds_ssh, entry.ports)))


def _holds_ssh(text: str) -> bool:
    first, _, end = text.partition("-")
    return first.isdecimal() and (end or first).isdecimal() and int(first) <= SSH_PORT <= int(end or first)
