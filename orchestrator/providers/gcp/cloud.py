"""One project of Google's cloud, through Google's own library.

Operations are awaited in a loop of our own: the library's ``result()`` polls the public endpoint whatever endpoint was
given, and calls an operation a success that failed without an HTTP status. Its retries are off too: it never repeats a
mutation, which is the one thing that has to be repeated, with the same request id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from orchestrator.base.clock import Clock
from orchestrator.base.errors import CloudError, ConfigError, NotFoundError
from orchestrator.machines.cloud import (
    SNAPSHOT_LABEL,
    BillableResource,
    Machine,
    MachineSpec,
    Operation,
    Power,
    Quota,
    Refusal,
    Remedy,
    power,
)
from orchestrator.providers.gcp import messages, network
from orchestrator.providers.gcp.failures import PermissionDenied
from orchestrator.providers.gcp.leftovers import disk, leftovers
from orchestrator.providers.gcp.requests import Api, unwelcome
from orchestrator.providers.gcp.retries import Refused, Unanswered, pause

#: The service answers a ``wait`` within two minutes, done or not.
WAIT_TIMEOUT_S = 125.0
#: How long :meth:`GcpCloud.set_max_run` waits for a change that takes seconds.
CHANGE_TIMEOUT_S = 120.0
_UNREACHABLE = "UNREACHABLE"


class GcpCloud:
    """The ``Cloud``. Threads may share it; nothing is sent before the first request."""

    def __init__(self, project: str, api_endpoint: str | None, clock: Clock, *, page_size: int = 500) -> None:
        self.project = project
        self._clock = clock
        self._api = Api(project, api_endpoint, clock, page_size)

    # ------------------------------------------------------------------------------------------------------- reading
    def machine(self, zone: str, name: str) -> Machine | None:
        raw = self._instance(zone, name)
        return None if raw is None else messages.machine(raw, self.project)

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        wanted = " ".join(f"(labels.{k}:*)" if v is None else f'(labels.{k}="{v}")' for k, v in labels.items())
        found: list[Machine] = []
        unreachable: set[str] = set()
        pages = self._api.pages(
            "Instances", "aggregated_list", "AggregatedListInstancesRequest", "instances", filter=wanted
        )
        for page in pages:
            unreachable.update(messages.last(scope) for scope in page.unreachables)
            for scope, scoped in page.items.items():
                found += [messages.machine(raw, self.project) for raw in scoped.instances]
                if scoped.warning.code == _UNREACHABLE:
                    unreachable.add(messages.last(scope))
        return sorted(found, key=lambda one: (one.name, one.zone)), sorted(unreachable)

    def operations(self, zone: str, name: str) -> list[Operation]:
        # A boot disk has its machine's name, and a history of its own.
        mine = [raw for raw in self._history(zone, name) if raw.target_link.endswith(f"/instances/{name}")]
        rows = map(messages.operation, mine)
        return sorted(rows, key=lambda row: row.started or 0.0, reverse=True)

    def guest_attributes(self, machine: Machine, path: str) -> dict[str, str]:
        request = self._about("GetGuestAttributesInstanceRequest", machine, query_path=path)
        try:
            raw = self._api.ask("Instances", "get_guest_attributes", request, f"guest attributes of {machine.name}")
        except Refused as refused:
            if refused.answer.status in (404, 412):
                return {}
            raise unwelcome(refused, f"cannot read what {machine.name} publishes", self.project) from None
        except PermissionDenied as forbidden:
            if "disabled" in (forbidden.cause or ""):  # a machine made without guest attributes
                return {}
            raise
        return {i.key: i.value for i in raw.query_value.items if f"{i.namespace}/{i.key}".startswith(path)}

    def serial_output(self, machine: Machine) -> str:
        request = self._about("GetSerialPortOutputInstanceRequest", machine)
        try:
            raw = self._api.ask("Instances", "get_serial_port_output", request, f"serial output of {machine.name}")
        except Refused as refused:
            raise unwelcome(refused, f"cannot read the serial output of {machine.name}", self.project) from None
        return str(raw.contents)

    def has_snapshot(self, name: str) -> bool:
        request = self._api.message("GetSnapshotRequest", snapshot=name)
        try:
            raw = self._api.ask("Snapshots", "get", request, f"snapshot {name}")
        except Refused as refused:
            if refused.answer.status == 404:
                return False
            raise unwelcome(refused, f"cannot read snapshot {name}", self.project) from None
        return bool(raw.status == "READY")

    def disks(self, machine: Machine) -> list[BillableResource]:
        found = []
        for name in (one.name for one in machine.disks if one.name):
            request = self._api.message("GetDiskRequest", zone=machine.zone, disk=name)
            with suppress(Refused, PermissionDenied):  # a disk of the region, one that has just gone, or nobody may ask
                raw = self._api.ask("Disks", "get", request, f"disk {name}")
                found.append(disk(raw, self.project, machine.zone))
        return found

    def leftovers(self) -> tuple[list[BillableResource], list[str]]:
        return leftovers(self._api)

    def quotas(self, region: str) -> list[Quota]:
        try:
            row = self._api.ask(
                "Regions", "get", self._api.message("GetRegionRequest", region=region), f"region {region}"
            )
            whole = self._api.ask("Projects", "get", self._api.message("GetProjectRequest"), f"project {self.project}")
        except Refused as refused:
            raise unwelcome(refused, f"cannot read the quotas of {region}", self.project) from None
        return [*messages.quotas(row, region), *messages.quotas(whole, None)]

    def firewall_allows_iap(self, network_name: str) -> bool | None:
        pages = self._api.pages("Firewalls", "list", "ListFirewallsRequest", "firewall rules")
        try:
            rules = [rule for page in pages for rule in page.items]
        except PermissionDenied:
            return None
        return network.allows_iap(rules, network_name)

    def missing_permissions(self, machine: Machine, permissions: Sequence[str]) -> list[str]:
        asked = {"permissions": list(permissions)}
        request = self._api.message(
            "TestIamPermissionsInstanceRequest",
            zone=machine.zone,
            resource=machine.name,
            test_permissions_request_resource=asked,
        )
        try:
            raw = self._api.ask("Instances", "test_iam_permissions", request, f"permissions on {machine.name}")
        except Refused as refused:
            raise unwelcome(refused, f"cannot ask for the permissions on {machine.name}", self.project) from None
        return [one for one in permissions if one not in set(raw.permissions)]

    # ------------------------------------------------------------------------------------------------------ changing
    def create(self, zone: str, spec: MachineSpec, request_id: str) -> Operation:
        fields = {"zone": zone, "instance_resource": messages.instance(spec, zone)}
        try:
            return self._change("insert", "Instances", "InsertInstanceRequest", zone, spec.name, request_id, fields)
        except ValueError as error:
            if spec.way != "flex_start":
                raise
            raise ConfigError(
                "the installed google-cloud-compute is too old to ask for flex start",
                cause=str(error)[:300], hint="python -m pip install --upgrade google-cloud-compute",
            ) from None  # fmt: skip

    def start(self, machine: Machine, request_id: str) -> Operation:
        return self._power("start", machine, request_id)

    def resume(self, machine: Machine, request_id: str) -> Operation:
        return self._power("resume", machine, request_id)

    def stop(self, machine: Machine, request_id: str) -> Operation:
        return self._power("stop", machine, request_id)

    def delete(self, machine: Machine, request_id: str) -> Operation:
        return self._power("delete", machine, request_id)

    def set_max_run(self, machine: Machine, seconds: int, request_id: str) -> Operation:
        raw = self._instance(machine.zone, machine.name)
        if raw is None:
            return _refused("setScheduling", machine, _gone(machine))
        state = power(raw.status)
        if state is not Power.STOPPED:
            return _refused("setScheduling", machine, _not_stopped(raw.status, state))
        # What is left out of this message is not kept from before, so it is sent whole.
        fields = {
            "zone": machine.zone,
            "instance": machine.name,
            "scheduling_resource": messages.limited(raw.scheduling, seconds),
        }
        changed = self.wait(
            self._change(
                "setScheduling", "Instances", "SetSchedulingInstanceRequest", machine.zone, machine.name, request_id,
                fields, method="set_scheduling_unary",
            ),
            CHANGE_TIMEOUT_S,
        )  # fmt: skip
        if changed.refusal is None:
            self._check_max_run(machine, seconds, done=changed.done)
        return changed

    def _check_max_run(self, machine: Machine, seconds: int, *, done: bool) -> None:
        now = self.machine(machine.zone, machine.name)
        if now is None:
            raise NotFoundError(f"{machine.name} went away while its deadline was set", hint="fcctl hosts ls")
        if (now.max_run_s, now.termination_action) != (seconds, "STOP"):
            raise CloudError(
                f"the cloud does not hold the deadline of {machine.name}, so it is not started",
                cause=f"asked to stop it after {seconds} s; it says "
                + (f"{now.max_run_s} s, then {now.termination_action}" if now.max_run_s else "nothing")
                + ("" if done else f", and the change is not done after {CHANGE_TIMEOUT_S:.0f} s"),
                hint="try again; if it stays so: https://status.cloud.google.com",
            )

    def set_labels(self, machine: Machine, labels: Mapping[str, str], request_id: str) -> Operation:
        body = {"labels": {**machine.labels, **labels}, "label_fingerprint": machine.label_fingerprint}
        fields = {"zone": machine.zone, "instance": machine.name, "instances_set_labels_request_resource": body}
        return self._change(
            "setLabels", "Instances", "SetLabelsInstanceRequest", machine.zone, machine.name, request_id, fields,
            method="set_labels_unary",
        )  # fmt: skip

    def set_metadata(self, machine: Machine, items: Mapping[str, str], request_id: str) -> Operation:
        body = {"items": messages.items({**machine.metadata, **items}), "fingerprint": machine.metadata_fingerprint}
        fields = {"zone": machine.zone, "instance": machine.name, "metadata_resource": body}
        return self._change(
            "setMetadata", "Instances", "SetMetadataInstanceRequest", machine.zone, machine.name, request_id, fields,
            method="set_metadata_unary",
        )  # fmt: skip

    def snapshot(self, machine: Machine, name: str, request_id: str) -> Operation:
        boot = next((disk for disk in machine.disks if disk.boot), None)
        if boot is None:
            raise NotFoundError(f"{machine.name} has no boot disk to take a snapshot of")
        fields = {
            "zone": machine.zone,
            "disk": boot.name,
            "snapshot_resource": {"name": name, "labels": {**machine.labels, SNAPSHOT_LABEL: "yes"}},
        }
        return self._change(
            "createSnapshot", "Disks", "CreateSnapshotDiskRequest", machine.zone, boot.name, request_id, fields,
            method="create_snapshot_unary",
        )  # fmt: skip

    def delete_snapshot(self, name: str, request_id: str) -> Operation:
        request = self._api.message("DeleteSnapshotRequest", snapshot=name, request_id=str(uuid.UUID(request_id)))
        try:
            raw = self._api.calls(
                f"delete of snapshot {name}", lambda: self._api.send("Snapshots", "delete_unary", request)
            )
        except Refused as refused:  # one that is gone is what was wanted, whoever's reply was lost
            gone = refused.answer.status == 404
            return Operation("", None, "delete", name, "DONE", None if gone else refused.answer.refusal())
        return messages.operation(raw)

    def wait(self, operation: Operation, timeout_s: float) -> Operation:
        deadline = self._clock.monotonic() + timeout_s
        trouble: str | None = None
        waits = 0
        while not operation.done and (left := deadline - self._clock.monotonic()) > 0:
            try:
                operation, trouble = self._await(operation, left), None
            except (Refused, Unanswered) as failed:
                trouble = str(failed)
            if not operation.done:  # also where the service does not wait: no hurry to ask again
                left = deadline - self._clock.monotonic()
                self._clock.sleep(max(0.0, min(pause(waits), left)))
                waits += 1
        if trouble is not None and waits > 1:
            raise CloudError(
                f"nothing was heard of the {operation.type} of {operation.target} for {timeout_s:.0f} s",
                cause=trouble, hint="is this computer online? fcctl hosts ls says how the machine is",
            )  # fmt: skip
        return operation

    def _await(self, operation: Operation, left_s: float) -> Operation:
        """One request, which the service holds until the operation is done or two minutes are over."""
        scope = {"zone": operation.zone} if operation.zone else {}
        service, kind = (
            ("ZoneOperations", "ZoneOperation") if operation.zone else ("GlobalOperations", "GlobalOperation")
        )
        request = self._api.message(f"Wait{kind}Request", operation=operation.name, **scope)
        seconds = max(1.0, min(left_s, WAIT_TIMEOUT_S))
        try:
            raw = self._api.calls.once(lambda: self._api.send(service, "wait", request, seconds))
        except Unanswered:
            if left_s > WAIT_TIMEOUT_S:
                raise
            # Cut short by our own impatience, or by the network: what is known without waiting?
            ask = self._api.message(f"Get{kind}Request", operation=operation.name, **scope)
            raw = self._api.calls.once(lambda: self._api.send(service, "get", ask))
        except Refused as refused:
            if refused.answer.passing:
                raise
            return _ended(operation, refused.answer.refusal())
        return messages.operation(raw)

    # ------------------------------------------------------------------------------------------------------ plumbing
    def _instance(self, zone: str, name: str) -> Any | None:
        request = self._api.message("GetInstanceRequest", zone=zone, instance=name)
        try:
            return self._api.ask("Instances", "get", request, f"instance {name}")
        except Refused as refused:
            if refused.answer.status == 404 and f"/instances/{name}'" in refused.answer.message:
                return None
            raise unwelcome(refused, f"cannot look at {name} in {zone}", self.project) from None

    def _about(self, request: str, machine: Machine, **fields: Any) -> Any:
        return self._api.message(request, zone=machine.zone, instance=machine.name, **fields)

    def _power(self, verb: str, machine: Machine, request_id: str) -> Operation:
        fields = {"zone": machine.zone, "instance": machine.name}
        request = f"{verb.capitalize()}InstanceRequest"
        return self._change(verb, "Instances", request, machine.zone, machine.name, request_id, fields)

    def _change(
        self, kind: str, service: str, request_name: str, zone: str, target: str, request_id: str,
        fields: Mapping[str, Any], *, method: str | None = None,
    ) -> Operation:  # fmt: skip
        """Ask for a change: its operation, or one that says why there is none."""
        request = self._api.message(request_name, request_id=str(uuid.UUID(request_id)), **fields)
        sent = 0

        def send() -> Any:
            nonlocal sent
            sent += 1
            return self._api.send(service, method or f"{kind}_unary", request)

        try:
            raw = self._api.calls(f"{kind} of {target}", send)
        except Refused as refused:
            asked_before = sent > 1 or refused.answer.status == 409
            if asked_before and (before := self._taken_before(zone, target, request.request_id)):
                return before
            return Operation("", zone, kind, target, "DONE", refused.answer.refusal(creating=kind == "insert"))
        return messages.operation(raw)

    def _taken_before(self, zone: str, target: str, request_id: str) -> Operation | None:
        """The operation of an earlier request with this id whose reply was lost.

        A service may refuse the second one, for the id was used or the world has changed by the first (the machine is
        there, is gone, has another fingerprint), where it could have repeated its first answer.
        """
        for raw in self._history(zone, target):
            if raw.client_operation_id.lower() == request_id.lower():
                return messages.operation(raw)
        return None

    def _history(self, zone: str, target: str) -> list[Any]:
        """The operations on a resource, as the service lists them."""
        pages = self._api.pages(
            "ZoneOperations", "list", "ListZoneOperationsRequest", f"operations on {target}",
            zone=zone, filter=f'targetLink eq ".*{target}"', order_by="creationTimestamp desc",
        )  # fmt: skip
        return [raw for page in pages for raw in page.items if messages.last(raw.target_link) == target]


def _refused(kind: str, machine: Machine, refusal: Refusal) -> Operation:
    return Operation("", machine.zone, kind, machine.name, "DONE", refusal)


def _ended(operation: Operation, refusal: Refusal) -> Operation:
    return Operation(operation.name, operation.zone, operation.type, operation.target, "DONE", refusal)


def _gone(machine: Machine) -> Refusal:
    return Refusal("notFound", f"{machine.name} is not in {machine.zone} any more", Remedy.LOOK_AGAIN, 404)


def _not_stopped(status: str, state: Power) -> Refusal:
    remedy = Remedy.NOT_READY if state is Power.STOPPING else Remedy.LOOK_AGAIN
    return Refusal("resourceNotReady", f"its deadline is set while it is stopped, and it is {status}", remedy)
