"""Another provider, small and fake: its own words, billed by the second, and no time limit of its own.

Servers are rented by name in a region. Each change is done when the call returns, and is done once for a token. What
stands in for a time limit is a tag: the reaper of the provider turns off what is on for longer than its tag says.
Machines of an emulator stand behind it, so that the whole of fcctl can run on it: SSH, the host program, the timer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.base.clock import Clock
from orchestrator.base.installation import Finding
from orchestrator.emulator.daemon import seed
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.guest import login_name
from orchestrator.machines.cloud import (
    BillableResource,
    Disk,
    Machine,
    MachineSpec,
    Operation,
    Quota,
    Refusal,
    Remedy,
)
from orchestrator.machines.interfaces import Login
from orchestrator.machines.provision.endpoint import EMULATOR_PORT_ITEM, EMULATOR_USER_ITEM
from orchestrator.machines.targets import ByHand, CloudTarget
from tests.support.sshd import generate_key

REGIONS = {"north": "us-west1-c", "south": "us-east1-b"}
EXPIRES = "off-after-seconds"
#: The provider's own state of a server, and what fcctl calls it.
STATES = {"off": "TERMINATED", "on": "RUNNING"}


class SoldOut(Exception):
    """The region has no server of that size."""


class RentalTarget(CloudTarget):
    kind: Literal["rental"] = "rental"
    machine_type: str = "one-l4"
    disk_type: str = "nvme"

    def by_hand(self, what: ByHand, name: str, zone: str) -> str:
        return f"rental {what} {zone}/{name}"


@dataclass
class Server:
    """As the provider has it."""

    number: int
    region: str
    name: str
    tags: dict[str, str]
    rented: float
    #: (on, off), epoch seconds; no off while it is on.
    spans: list[tuple[float, float | None]] = field(default_factory=list)

    @property
    def state(self) -> str:
        return "on" if self.spans and self.spans[-1][1] is None else "off"


class Rental:
    """The provider: one account's servers, its books, and its reaper."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.servers: dict[tuple[str, str], Server] = {}
        self.sold_out: set[str] = set()
        self.log: list[tuple[str, Server, float, str]] = []  # (verb, server, when, token)
        self.ahead_s = 0.0
        #: Which accounts were asked.
        self.accounts: list[str] = []

    def now(self) -> float:
        return time.time() + self.ahead_s

    def pass_time(self, seconds: float) -> None:
        self.ahead_s += seconds
        self.emulator.advance(seconds)
        self.reap()

    def reap(self) -> None:
        for server in list(self.servers.values()):
            limit = server.tags.get(EXPIRES)
            if server.state == "on" and limit is not None and self.now() > server.spans[-1][0] + int(limit):
                self.turn("off", server, "reaper")

    def seconds_billed(self) -> float:
        """By the second, without a minimum."""
        return sum((off or self.now()) - on for server in self.servers.values() for on, off in server.spans)

    # ------------------------------------------------------------------------------------------------------ its calls
    def rent(self, region: str, name: str, tags: Mapping[str, str], metadata: Mapping[str, str], token: str) -> Server:
        self.reap()
        if region in self.sold_out:
            raise SoldOut
        if self.done(token) is None:
            server = Server(len(self.servers) + 1, region, name, dict(tags), self.now())
            self.servers[region, name] = server
            place = {"project": "rental", "zone": REGIONS[region], "name": name, "machine_type": "e2-small"}
            seed(self.emulator, {**place, "image": "projects/debian-cloud/global/images/family/debian-12"})
            self.put_metadata(server, metadata)
            self.log.append(("rent", server, self.now(), token))
        return self.servers[region, name]

    def turn(self, state: str, server: Server, token: str) -> None:
        if self.done(token) is not None and token != "reaper":
            return
        if server.state != state:
            self.emulator.request("POST", f"{self._path(server)}/{'start' if state == 'on' else 'stop'}", {})
            self._settled(server, STATES[state])
            if state == "on":
                server.spans.append((self.now(), None))
            else:
                server.spans[-1] = (server.spans[-1][0], self.now())
        self.log.append((f"turn {state}", server, self.now(), token))

    def drop(self, server: Server, token: str) -> None:
        self.turn("off", server, f"{token}-off")
        self.emulator.request("DELETE", self._path(server), {})
        self.servers.pop((server.region, server.name), None)
        self.log.append(("drop", server, self.now(), token))

    def tag(self, server: Server, tags: Mapping[str, str], token: str) -> None:
        server.tags.update(tags)
        self.log.append(("tag", server, self.now(), token))

    def done(self, token: str) -> Server | None:
        return next((server for _, server, _, used in self.log if used == token), None)

    # ------------------------------------------------------------------------------------------------- the data centre
    def _path(self, server: Server) -> str:
        return f"projects/rental/zones/{REGIONS[server.region]}/instances/{server.name}"

    def _settled(self, server: Server, status: str) -> None:
        while not (self.emulator.world.machines[self._path(server)].status == status and self.emulator.all_done()):
            time.sleep(0.01)

    def metadata(self, server: Server) -> dict[str, str]:
        machine = self.emulator.world.machines[self._path(server)]
        port = {EMULATOR_PORT_ITEM: str(machine.port), EMULATOR_USER_ITEM: login_name()} if machine.port else {}
        return {**machine.metadata(), **port}

    def put_metadata(self, server: Server, items: Mapping[str, str]) -> None:
        body = self.emulator.request("GET", self._path(server), {})["metadata"]
        kept = {item["key"]: item["value"] for item in body["items"]} | dict(items)
        rows = [{"key": key, "value": value} for key, value in kept.items()]
        self.emulator.request("POST", f"{self._path(server)}/setMetadata", {**body, "items": rows})
        self._settled(server, STATES[server.state])

    def host_keys(self, server: Server) -> dict[str, str]:
        found = self.emulator.world.machines[self._path(server)].guest_attributes
        return {key.removeprefix("hostkeys/"): blob for key, blob in found.items()}


class RentalCloud:
    """:class:`orchestrator.machines.interfaces.Cloud` in front of it."""

    def __init__(self, rental: Rental) -> None:
        self._rental = rental

    def ahead_s(self) -> None:
        return None

    def machine(self, zone: str, name: str) -> Machine | None:
        self._rental.reap()
        server = self._rental.servers.get((zone, name))
        return None if server is None else self._machine(server)

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        self._rental.reap()
        return [
            self._machine(one) for one in self._rental.servers.values()
            if all(key in one.tags and value in (None, one.tags[key]) for key, value in labels.items())
        ], []  # fmt: skip

    def _machine(self, server: Server) -> Machine:
        on, off = server.spans[-1] if server.spans else (None, None)
        limit = int(server.tags[EXPIRES]) if EXPIRES in server.tags else None
        is_on = server.state == "on"
        return Machine(
            "rental-account", server.region, server.name, str(server.number), STATES[server.state], "one-l4",
            labels=server.tags, metadata=self._rental.metadata(server), external_ip="127.0.0.1" if is_on else None,
            external=True, disks=(Disk(server.name, "boot", True, 100, True, "nvme"),), created=server.rented,
            started=on, stopped=off, max_run_s=limit, termination_action="STOP" if limit else None,
            deadline=on + limit if is_on and on is not None and limit is not None else None,
        )  # fmt: skip

    def _change(self, kind: str, zone: str, name: str, token: str, change: Callable[[Server], object]) -> Operation:
        server = self._rental.servers.get((zone, name))
        if server is None:
            return Operation("", zone, kind, name, "DONE", Refusal("gone", f"no {name}", Remedy.LOOK_AGAIN))
        change(server)
        now = self._rental.now()
        return Operation(token, zone, kind, name, "DONE", None, now, now, str(server.number), request_id=token)

    def create(self, zone: str, spec: MachineSpec, request_id: str) -> Operation:
        tags = {**spec.labels, EXPIRES: str(spec.max_run_s)}
        try:
            self._rental.rent(zone, spec.name, tags, spec.metadata, f"{request_id}-rent")
        except SoldOut:
            refusal = Refusal("sold-out", f"{zone} is sold out", Remedy.NEXT_ZONE, hint="rental regions lists others")
            return Operation("", zone, "insert", spec.name, "DONE", refusal)
        return self._change("insert", zone, spec.name, request_id, lambda s: self._rental.turn("on", s, request_id))

    def start(self, machine: Machine, request_id: str) -> Operation:
        if machine.zone in self._rental.sold_out:
            refusal = Refusal("sold-out", f"{machine.zone} is sold out", Remedy.NEXT_ZONE)
            return Operation("", machine.zone, "start", machine.name, "DONE", refusal)
        return self._of("start", machine, request_id, lambda s: self._rental.turn("on", s, request_id))

    def stop(self, machine: Machine, request_id: str) -> Operation:
        return self._of("stop", machine, request_id, lambda s: self._rental.turn("off", s, request_id))

    def delete(self, machine: Machine, request_id: str) -> Operation:
        return self._of("delete", machine, request_id, lambda s: self._rental.drop(s, request_id))

    def set_max_run(self, machine: Machine, seconds: int, request_id: str) -> Operation:
        return self._of(
            "setLimit", machine, request_id, lambda s: self._rental.tag(s, {EXPIRES: str(seconds)}, request_id)
        )

    def set_labels(self, machine: Machine, labels: Mapping[str, str], request_id: str) -> Operation:
        return self._of("setLabels", machine, request_id, lambda s: self._rental.tag(s, labels, request_id))

    def set_metadata(self, machine: Machine, items: Mapping[str, str], request_id: str) -> Operation:
        return self._of("setMetadata", machine, request_id, lambda s: self._rental.put_metadata(s, items))

    def _of(self, kind: str, machine: Machine, request_id: str, change: Callable[[Server], object]) -> Operation:
        return self._change(kind, machine.zone, machine.name, request_id, change)

    def wait(self, operation: Operation, timeout_s: float) -> Operation:
        del timeout_s
        return operation

    def operations(self, zone: str, name: str) -> list[Operation]:
        kinds = {"rent": "insert", "turn on": "start", "turn off": "stop", "drop": "delete", "tag": "setLabels"}
        rows = [(verb, server, at, token) for verb, server, at, token in self._rental.log if server.name == name]
        return [
            Operation(token, zone, "deferredStop" if token == "reaper" else kinds[verb], name, "DONE", None, at, at,
                      str(server.number), user="rental" if token == "reaper" else "me", request_id=token)
            for verb, server, at, token in reversed(rows)
            if server.region == zone and verb != "rent"
        ]  # fmt: skip

    def guest_attributes(self, machine: Machine, path: str) -> dict[str, str]:
        del path
        return self._rental.host_keys(self._rental.servers[machine.zone, machine.name])

    def disks(self, machine: Machine) -> list[BillableResource]:
        return [one for one in self.billable_resources()[0] if one.users == (machine.name,)]

    def billable_resources(self) -> tuple[list[BillableResource], list[str]]:
        return [
            BillableResource("disk", "rental-account", one.region, one.name, 100, "nvme", one.tags, (one.name,),
                             created=one.rented)
            for one in self._rental.servers.values()
        ], []  # fmt: skip

    # -------------------------------------------------------------------------------- what this provider does not have
    def _lacks(self, kind: str, machine: Machine) -> Operation:
        refusal = Refusal("not-offered", f"rental has no {kind}", Remedy.FATAL)
        return Operation("", machine.zone, kind, machine.name, "DONE", refusal)

    def snapshot(self, machine: Machine, name: str, request_id: str) -> Operation:
        del name, request_id
        return self._lacks("snapshot", machine)

    def delete_snapshot(self, name: str, request_id: str) -> Operation:
        return Operation(request_id, None, "delete", name, "DONE")

    def has_snapshot(self, name: str) -> bool:
        del name
        return False

    def serial_output(self, machine: Machine) -> str:
        return f"{machine.name} has no console"

    def quotas(self, region: str) -> list[Quota]:
        del region
        return []

    def firewall_allows_iap(self, network: str) -> bool | None:
        del network

    def missing_permissions(self, machine: Machine, permissions: Sequence[str]) -> list[str]:
        del machine, permissions
        return []


class RentalClient:
    """:class:`orchestrator.providers.registry.ProviderClient`."""

    def __init__(self, rental: Rental, clock: Clock) -> None:
        del clock
        self._rental = rental

    def open(self, target: CloudTarget) -> RentalCloud:
        self._rental.accounts.append(target.project)
        return RentalCloud(self._rental)

    def login(self, target: CloudTarget) -> Login:
        key = Path(str(target.identity_file))
        if not key.exists():
            generate_key(key)
        return Login(login_name(), key, " ".join(Path(f"{key}.pub").read_text().split()[:2]))


@dataclass
class RentalCheckup:
    """:class:`orchestrator.providers.registry.Checkup`."""

    target: CloudTarget
    rental: Rental
    machine: Machine | None = None

    def findings(self) -> Iterator[Finding]:
        for zone in self.target.zones:
            self.machine = self.machine or RentalCloud(self.rental).machine(zone, self.target.instance)
            yield Finding(
                f"target {self.target.name}", zone, "warn" if zone in self.rental.sold_out else "ok", "rental"
            )
