"""One project of Google's cloud, through Google's own library.

Operations are awaited in a loop of our own: the library's ``result()`` polls the public endpoint whatever endpoint was
given, and calls an operation a success that failed without an HTTP status. Its retries are off too: it never repeats a
mutation, which is the one thing that has to be repeated, with the same request id.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from orchestrator.base.clock import Clock
from orchestrator.base.errors import CloudError, FcctlError, NotFoundError
from orchestrator.machines.cloud import (
    SNAPSHOT_LABEL,
    STALE_S,
    BillableResource,
    Machine,
    MachineSpec,
    Operation,
    Power,
    Quota,
    Refusal,
    Remedy,
    power,
    shows,
)
from orchestrator.providers.gcp import messages
from orchestrator.providers.gcp.api import Api
from orchestrator.providers.gcp.failures import Answer, PermissionDenied, Refused, Unanswered, pause
from orchestrator.providers.gcp.messages import billable_resources, disk

#: The service answers a ``wait`` within two minutes, done or not.
WAIT_TIMEOUT_S = 125.0
#: How long :meth:`GcpCloud.set_max_run` waits for a change that takes seconds.
CHANGE_TIMEOUT_S = 120.0
#: The interval between reads of a machine that are behind its last change, seconds.
AGAIN_S = 1.0


class GcpCloud:
    """The ``Cloud``. Threads may share it; nothing is sent before the first request."""

    def __init__(self, project: str, api_endpoint: str | None, clock: Clock, *, page_size: int = 500) -> None:
        self.project = project
        self._clock = clock
        self._api = Api(project, api_endpoint, clock, page_size)
        #: By zone and name: the last change of a machine's power that was seen DONE, and until when reads may lack it.
        self._changed: dict[tuple[str, str], tuple[Operation, float]] = {}

    # ------------------------------------------------------------------------------------------------------- reading
    def ahead_s(self) -> float | None:
        return self._api.ahead_s

    def machine(self, zone: str, name: str) -> Machine | None:
        raw = self._instance(zone, name)
        return None if raw is None else messages.machine(raw, self.project)

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        wanted = " ".join(f"(labels.{k}:*)" if v is None else f'(labels.{k}="{v}")' for k, v in labels.items())
        machines: list[Machine] = []
        unreachable: set[str] = set()
        request = "AggregatedListInstancesRequest"
        for _, scoped in messages.scopes(self._api, "Instances", request, "instances", unreachable, filter=wanted):
            machines += [messages.machine(raw, self.project) for raw in scoped.instances]
        # A service that does not know the filter lists machines of others, too.
        machines = [m for m in machines if all(k in m.labels and v in (None, m.labels[k]) for k, v in labels.items())]
        return sorted(machines, key=lambda one: (one.name, one.zone)), sorted(unreachable)

    def operations(self, zone: str, name: str) -> list[Operation]:
        # A boot disk has its machine's name and its own operations.
        mine = [raw for raw in self._history(zone, name) if raw.target_link.endswith(f"/instances/{name}")]
        rows = map(messages.operation, mine)
        return sorted(rows, key=lambda row: row.started or 0.0, reverse=True)

    def guest_attributes(self, machine: Machine, path: str) -> dict[str, str]:
        try:
            raw = self._of(
                machine, "get_guest_attributes", "GetGuestAttributesInstanceRequest", "the guest attributes of {}",
                absent=lambda answer: answer.status in (404, 412), query_path=path,
            )  # fmt: skip
        except PermissionDenied as denied:
            if "disabled" in (denied.cause or ""):  # a machine made without guest attributes
                return {}
            raise
        entries = raw.query_value.items if raw is not None else []
        return {i.key: i.value for i in entries if f"{i.namespace}/{i.key}".startswith(path)}

    def serial_output(self, machine: Machine) -> str:
        raw = self._of(
            machine, "get_serial_port_output", "GetSerialPortOutputInstanceRequest", "the serial output of {}"
        )
        return str(raw.contents)

    def has_snapshot(self, name: str) -> bool:
        raw = self._api.read(
            "Snapshots", "get", "GetSnapshotRequest", f"snapshot {name}", absent=_is_404, snapshot=name
        )
        return raw is not None and bool(raw.status == "READY")

    def disks(self, machine: Machine) -> list[BillableResource]:
        disks = []
        for name in (one.name for one in machine.disks if one.name):
            with suppress(PermissionDenied):
                # A regional disk, or one just deleted, is left out.
                raw = self._api.read(
                    "Disks", "get", "GetDiskRequest", f"disk {name}", absent=lambda _: True, zone=machine.zone,
                    disk=name,
                )  # fmt: skip
                disks += [disk(raw, self.project, machine.zone)] if raw is not None else []
        return disks

    def billable_resources(self) -> tuple[list[BillableResource], list[str]]:
        return billable_resources(self._api)

    def quotas(self, region: str) -> list[Quota]:
        row = self._api.read("Regions", "get", "GetRegionRequest", f"the quotas of {region}", region=region)
        whole = self._api.read("Projects", "get", "GetProjectRequest", f"the quotas of {self.project}")
        return [*messages.quotas(row, region), *messages.quotas(whole, None)]

    def firewall_allows_iap(self, network_name: str) -> bool | None:
        pages = self._api.pages("Firewalls", "list", "ListFirewallsRequest", "firewall rules")
        try:
            rules = [rule for page in pages for rule in page.items]
        except PermissionDenied:
            return None
        return messages.allows_iap(rules, network_name)

    def missing_permissions(self, machine: Machine, permissions: Sequence[str]) -> list[str]:
        raw = self._api.read(
            "Instances", "test_iam_permissions", "TestIamPermissionsInstanceRequest",
            f"the permissions on {machine.name}", zone=machine.zone, resource=machine.name,
            test_permissions_request_resource={"permissions": list(permissions)},
        )  # fmt: skip
        granted = set(raw.permissions) if raw is not None else set()
        return [one for one in permissions if one not in granted]

    # ------------------------------------------------------------------------------------------------------ changing
    def create(self, zone: str, spec: MachineSpec, request_id: str) -> Operation:
        return self._change("insert", zone, spec.name, request_id, instance_resource=messages.instance(spec, zone))

    def start(self, machine: Machine, request_id: str) -> Operation:
        return self._change_instance("start", machine, request_id)

    def stop(self, machine: Machine, request_id: str) -> Operation:
        has_scratch = any(disk.type == "local-ssd" for disk in machine.disks)
        return self._change_instance(
            "stop", machine, request_id, **({"discard_local_ssd": True} if has_scratch else {})
        )

    def delete(self, machine: Machine, request_id: str) -> Operation:
        return self._change_instance("delete", machine, request_id)

    def set_max_run(self, machine: Machine, seconds: int, request_id: str) -> Operation:
        raw = self._instance(machine.zone, machine.name)
        if raw is None:
            gone = Refusal("notFound", f"{machine.name} is not in {machine.zone} any more", Remedy.LOOK_AGAIN, 404)
            return _refused("setScheduling", machine, gone)
        state = power(raw.status)
        if state is not Power.STOPPED:
            remedy = Remedy.NOT_READY if state is Power.STOPPING else Remedy.LOOK_AGAIN
            why = f"the time limit can be set only while the machine is stopped; it is {raw.status}"
            return _refused("setScheduling", machine, Refusal("resourceNotReady", why, remedy))
        # The service replaces the whole message.
        limited = messages.limited(raw, seconds)
        change = self._change_instance("setScheduling", machine, request_id, scheduling_resource=limited)
        change = self.wait(change, CHANGE_TIMEOUT_S)
        if change.refusal is None:
            self._check_max_run(machine, seconds, done=change.done)
        return change

    def _check_max_run(self, machine: Machine, seconds: int, *, done: bool) -> None:
        until = self._clock.monotonic() + (STALE_S if done else 0.0)
        while (now := self.machine(machine.zone, machine.name)) is not None:
            if (now.max_run_s, now.termination_action) == (seconds, "STOP"):
                return
            if self._clock.monotonic() >= until:
                break
            self._clock.sleep(AGAIN_S)  # reads may be behind the change
        if now is None:
            raise NotFoundError(
                f"{machine.name} disappeared while fcctl set its time limit", hint="see the machines: fcctl hosts ls"
            )
        raise CloudError(
            f"the cloud did not store the time limit of {machine.name}, so fcctl does not start it",
            cause=f"fcctl set {seconds} s, then STOP; the cloud shows "
            + (f"{now.max_run_s} s, then {now.termination_action}" if now.max_run_s else "nothing")
            + ("" if done else f"; the change was not finished after {CHANGE_TIMEOUT_S:.0f} s"),
            hint="run the command again; if this repeats, see the state of the service: "
            "https://status.cloud.google.com",
        )

    def set_labels(self, machine: Machine, labels: Mapping[str, str], request_id: str) -> Operation:
        body = {"labels": {**machine.labels, **labels}, "label_fingerprint": machine.label_fingerprint}
        return self._change_instance("setLabels", machine, request_id, instances_set_labels_request_resource=body)

    def set_metadata(self, machine: Machine, items: Mapping[str, str], request_id: str) -> Operation:
        body = {"items": messages.items({**machine.metadata, **items}), "fingerprint": machine.metadata_fingerprint}
        return self._change_instance("setMetadata", machine, request_id, metadata_resource=body)

    def snapshot(self, machine: Machine, name: str, request_id: str) -> Operation:
        boot = next((disk for disk in machine.disks if disk.boot), None)
        if boot is None:
            raise NotFoundError(
                f"{machine.name} has no boot disk, so fcctl cannot make a snapshot",
                hint='set on_stockout = "wait" in the target',
            )
        labels = {**machine.labels, SNAPSHOT_LABEL: "yes"}
        return self._change(
            "createSnapshot", machine.zone, boot.name, request_id, service="Disks", disk=boot.name,
            snapshot_resource={"name": name, "labels": labels},
        )  # fmt: skip

    def delete_snapshot(self, name: str, request_id: str) -> Operation:
        request = self._api.message("DeleteSnapshotRequest", snapshot=name, request_id=str(uuid.UUID(request_id)))
        try:
            raw = self._api.calls(
                f"delete of snapshot {name}", lambda: self._api.send("Snapshots", "delete_unary", request)
            )
        except Refused as refused:  # already deleted
            gone = _is_404(refused.answer)
            return Operation("", None, "delete", name, "DONE", None if gone else refused.answer.refusal(self.project))
        return messages.operation(raw)

    def wait(self, operation: Operation, timeout_s: float) -> Operation:
        deadline = self._clock.monotonic() + timeout_s
        trouble: str | None = None
        waits, asked = 0, 0.0
        while not operation.done and (left := deadline - self._clock.monotonic()) > 0:
            try:
                operation, trouble, asked = self._await(operation, left), None, 0.0
            except (Refused, Unanswered) as failed:
                trouble = str(failed)
                asked = failed.answer.retry_after_s if isinstance(failed, Refused) else 0.0
            if not operation.done:  # the service may answer without waiting
                left = deadline - self._clock.monotonic()
                self._clock.sleep(max(0.0, min(max(pause(waits), asked), left)))
                waits += 1
        self._remember(operation)
        if trouble is not None and waits > 1:
            raise CloudError(
                f"the cloud sent no reply about the {operation.type} of {operation.target} for {timeout_s:.0f} s",
                cause=trouble, hint="check that this computer is online; see the machine's state: fcctl hosts ls",
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
            # The wait was interrupted: read the operation.
            ask = self._api.message(f"Get{kind}Request", operation=operation.name, **scope)
            raw = self._api.calls.once(lambda: self._api.send(service, "get", ask))
        except Refused as refused:
            if refused.answer.passing:
                raise
            return replace(operation, state="DONE", refusal=refused.answer.refusal(self.project, operation.zone))
        return messages.operation(raw)

    # ------------------------------------------------------------------------------------------------------ plumbing
    def _instance(self, zone: str, name: str) -> Any | None:
        """As the service shows it once it shows the last change that is DONE, or :data:`STALE_S` later."""
        while True:
            raw = self._read_instance(zone, name)
            change, until = self._changed.get((zone, name), (None, 0.0))
            left = until - self._clock.monotonic()
            if change is None or left <= 0:
                self._changed.pop((zone, name), None)
                return raw
            if shows(None if raw is None else messages.machine(raw, self.project), change):
                return raw
            self._clock.sleep(min(AGAIN_S, left))

    def _remember(self, operation: Operation) -> None:
        is_power = operation.collection == "instances" and operation.type in ("insert", "start", "stop", "delete")
        if is_power and operation.done and operation.refusal is None and operation.zone:
            self._changed[operation.zone, operation.target] = operation, self._clock.monotonic() + STALE_S

    def _read_instance(self, zone: str, name: str) -> Any | None:
        return self._api.read(
            "Instances", "get", "GetInstanceRequest", f"instance {name} in {zone}", zone=zone, instance=name,
            absent=lambda answer: _is_404(answer) and _is_about(answer, f"/instances/{name}'"),
        )  # fmt: skip

    def _of(self, machine: Machine, method: str, request: str, what: str, **fields: Any) -> Any:
        fields |= {"zone": machine.zone, "instance": machine.name}
        return self._api.read("Instances", method, request, what.format(machine.name), **fields)

    def _change_instance(self, kind: str, machine: Machine, request_id: str, **fields: Any) -> Operation:
        return self._change(kind, machine.zone, machine.name, request_id, instance=machine.name, **fields)

    def _change(
        self, kind: str, zone: str, target: str, request_id: str, *, service: str = "Instances", **fields: Any
    ) -> Operation:
        """Ask for a change: its operation, or one that says why there is none. ``kind`` is as operations have it."""
        name = f"{kind[0].upper()}{kind[1:]}{service.removesuffix('s')}Request"
        method = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", kind) + "_unary"
        request = self._api.message(name, zone=zone, request_id=str(uuid.UUID(request_id)), **fields)
        sent = 0

        def send() -> Any:
            nonlocal sent
            sent += 1
            return self._api.send(service, method, request)

        try:
            raw = self._api.calls(f"{kind} of {target}", send)
        except Refused as refused:
            asked_before = sent > 1 or refused.answer.status == 409
            if asked_before and (before := self._taken_before(zone, target, request.request_id)):
                return before
            refusal = refused.answer.refusal(self.project, zone, creating=kind == "insert")
            return Operation("", zone, kind, target, "DONE", refusal)
        operation = messages.operation(raw)
        self._remember(operation)
        return operation

    def _taken_before(self, zone: str, target: str, request_id: str) -> Operation | None:
        """The operation of an earlier request with this id whose reply was lost.

        A service may refuse the second one, for the id was used or the world has changed by the first (the machine is
        there, is gone, has another fingerprint), where it could have repeated its first answer. None also if operations
        cannot be listed: the caller reads the machine then.
        """
        with suppress(FcctlError):
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


def _is_about(answer: Answer, resource: str) -> bool:
    """Whether it is the ``resource`` that was not found, and not its zone or project, or a page that is no API's."""
    return resource in answer.message or (answer.reason == "notFound" and "resource '" not in answer.message)


def _is_404(answer: Answer) -> bool:
    return answer.status == 404
