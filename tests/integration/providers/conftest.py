"""An emulated cloud behind the real adapter, in a time that passes only when somebody waits for it."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import Latency, Scenario
from orchestrator.machines.cloud import Machine, MachineSpec, Operation
from orchestrator.machines.interfaces import Login
from orchestrator.machines.provision.endpoint import HOST_KEYS_PATH, endpoint, login_items, parse_host_keys
from orchestrator.machines.targets import GcpTarget
from orchestrator.providers.gcp.cloud import GcpCloud
from orchestrator.providers.registry import ProviderClouds
from tests.support.virtual_cloud import VirtualClock

PROJECT, ZONE = "proj-one", "us-central1-a"


class EmulatedTime(VirtualClock):
    """Sleeping moves the emulator's time instead of taking any."""

    def __init__(self, emulator: Emulator) -> None:
        super().__init__(emulator)
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._emulator.advance(seconds)


class World:
    """An emulator, the adapter in front of it, and what a target would be."""

    def __init__(self, emulator: Emulator, **options: Any) -> None:
        self.emulator = emulator
        self.clock = EmulatedTime(emulator)
        self.cloud = GcpCloud(PROJECT, emulator.url, self.clock, **options)
        self.target = GcpTarget(
            name="l4", project=PROJECT, instance="vm", zones=[ZONE, "us-central1-b"], api_endpoint=emulator.url
        )
        self.clouds = ProviderClouds(self.clock)

    def login(self) -> Login:
        return self.clouds.login(self.target)

    def spec(self, name: str = "vm", **changes: Any) -> MachineSpec:
        login = self.login()
        metadata = login_items({}, user=login.user, public_key=login.public_key, os_login=False)
        fields = {"way", "max_run_s", "labels", "metadata", "snapshot"}
        of_target = {key: changes.pop(key) for key in list(changes) if key not in fields}
        target = self.target.model_copy(update={"instance": name, **of_target})
        values: dict[str, Any] = {
            "target": target, "way": "on_demand", "max_run_s": 3600, "metadata": metadata,
            "labels": {"fcctl": "x", "fcctl-workspace": "w"}, **changes,
        }  # fmt: skip
        return MachineSpec(**values)

    def made(self, name: str = "vm", zone: str = ZONE, **changes: Any) -> Machine:
        """A running machine."""
        self.ok(self.cloud.create(zone, self.spec(name, **changes), rid()))
        return self.get(name, zone)

    def stopped(self, name: str = "vm", zone: str = ZONE, **changes: Any) -> Machine:
        self.ok(self.cloud.stop(self.made(name, zone, **changes), rid()))
        return self.get(name, zone)

    def get(self, name: str = "vm", zone: str = ZONE) -> Machine:
        found = self.cloud.machine(zone, name)
        assert found is not None
        return found

    def ok(self, operation: Operation) -> Operation:
        """See it through, without a refusal."""
        ended = self.cloud.wait(operation, 600)
        assert (ended.done, ended.refusal) == (True, None)
        return ended

    def endpoint(self, machine: Machine) -> Any:
        keys = parse_host_keys(self.cloud.guest_attributes(machine, HOST_KEYS_PATH))
        login = self.login()
        return endpoint(
            machine, keys, user=login.user, identity_file=str(login.identity_file), target=self.target,
            now=self.clock.now(),
        )  # fmt: skip

    def requests(self, action: str) -> int:
        """How many changes of a kind the emulated cloud has carried out or begun."""
        with self.emulator.world.lock:
            return sum(row.resource["operationType"] == action for row in self.emulator.world.operations.values())


def rid() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def world(private_home: Path) -> Iterator[Callable[..., World]]:
    """``world(stock={...}, latency=Latency(...))``: a cloud like that; its ``wait`` answers at once, so time flies."""
    running: list[Emulator] = []

    def started(*, page_size: int = 500, **scenario: Any) -> World:
        scenario.setdefault("wait_limit_s", 0.05)
        scenario.setdefault("latency", Latency())
        emulator = Emulator(scenario=Scenario(**scenario)).start()
        running.append(emulator)
        return World(emulator, page_size=page_size)

    yield started
    for emulator in running:
        emulator.stop()


class Reply(BaseHTTPRequestHandler):
    """Says one thing to whatever is asked."""

    status, kind, body = 200, "application/json", b"{}"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def says() -> Iterator[Callable[..., str]]:
    """``says(403, {...})``: the URL of a server that says so."""
    servers: list[HTTPServer] = []

    def started(status: int, body: Any, kind: str = "application/json") -> str:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler = type("Says", (Reply,), {"status": status, "body": text, "kind": kind})
        server = HTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()
