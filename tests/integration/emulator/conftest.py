"""The emulator, Google's own client library in front of it, and a key to log in with."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.guest import login_name
from tests.support.sshd import generate_key

try:
    from google.cloud import compute_v1 as compute
except ImportError:  # every module here is skipped then
    compute = None

PROJECT = "proj"
ZONE = "us-central1-a"
IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"


class Gce:
    """Google's library, aimed at one emulator, and there at one machine unless another is named.

    Waits for operations through ZoneOperationsClient.wait.
    """

    def __init__(self, url: str, key: Path, project: str = PROJECT, zone: str = ZONE, name: str = "vm") -> None:
        from google.auth.credentials import AnonymousCredentials

        given: dict[str, Any] = {"credentials": AnonymousCredentials(), "client_options": {"api_endpoint": url}}
        self.instances = compute.InstancesClient(**given)
        self.operations = compute.ZoneOperationsClient(**given)
        self.disks = compute.DisksClient(**given)
        self.snapshots = compute.SnapshotsClient(**given)
        self.regions = compute.RegionsClient(**given)
        self.projects = compute.ProjectsClient(**given)
        self.images = compute.ImagesClient(**given)
        self.firewalls = compute.FirewallsClient(**given)
        self.machine_types = compute.MachineTypesClient(**given)
        self.accelerator_types = compute.AcceleratorTypesClient(**given)
        self.key, self.project, self.zone, self.name = key, project, zone, name

    def where(self, name: str | None = None, zone: str | None = None) -> dict[str, str]:
        return {"project": self.project, "zone": zone or self.zone, "instance": name or self.name}

    def spec(self, name: str = "vm", zone: str = ZONE, *, source: dict[str, Any] | None = None, **changes: Any) -> Any:
        """An L4 machine, as fcctl would ask for it."""
        metadata = {
            "ssh-keys": f"{login_name()}:{Path(f'{self.key}.pub').read_text().strip()}",
            "enable-guest-attributes": "TRUE",
            "enable-oslogin": "FALSE",
            **changes.pop("metadata", {}),
        }
        values: dict[str, Any] = {
            "name": name,
            "machine_type": f"zones/{zone}/machineTypes/g2-standard-4",
            "disks": [{"boot": True, "auto_delete": True, "initialize_params": source or {"source_image": IMAGE}}],
            "network_interfaces": [{"access_configs": [{"name": "External NAT"}]}],
            "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
            "labels": {"fcctl": "yes"},
            "scheduling": scheduling(),
            **changes,
        }
        return compute.Instance(values)

    def insert(self, name: str = "vm", zone: str = ZONE, **changes: Any) -> Any:
        """The operation, DONE or not; errors are for the test to look at."""
        request_id = changes.pop("request_id", str(uuid.uuid4()))
        request = compute.InsertInstanceRequest(
            project=PROJECT, zone=zone, instance_resource=self.spec(name, zone, **changes), request_id=request_id
        )
        return self.instances.insert_unary(request=request)

    def create(self, name: str = "vm", zone: str = ZONE, **changes: Any) -> Any:
        """A running instance."""
        self.done(self.insert(name, zone, **changes), zone)
        return self.get(name, zone)

    def call(self, verb: str, name: str | None = None, zone: str | None = None, **given: Any) -> Any:
        """``start``, ``stop``, ...: the operation as it is answered."""
        method = getattr(self.instances, f"{verb}_unary")
        return method(request={**self.where(name, zone), **given})

    def do(self, verb: str, name: str | None = None, zone: str | None = None, **given: Any) -> Any:
        """The same, and wait until it is DONE without an error."""
        return self.done(self.call(verb, name, zone, **given), zone)

    def get(self, name: str | None = None, zone: str | None = None) -> Any:
        return self.instances.get(**self.where(name, zone))

    def status(self, name: str | None = None, zone: str | None = None) -> str:
        return str(self.get(name, zone).status)

    def wait(self, operation: Any, zone: str | None = None) -> Any:
        return self.operations.wait(project=self.project, zone=zone or self.zone, operation=operation.name)

    def done(self, operation: Any, zone: str | None = None) -> Any:
        ended = self.wait(operation, zone)
        assert ended.status == compute.Operation.Status.DONE
        assert not ended.error.errors, ended.error.errors
        return ended

    def history(self, zone: str | None = None) -> list[str]:
        """The types of the zone's operations, oldest first."""
        rows = sorted(
            self.operations.list(project=self.project, zone=zone or self.zone), key=lambda row: row.insert_time
        )
        return [row.operation_type.removeprefix("compute.instances.") for row in rows]

    # ------------------------------------------------------------------------------------------------------- inside
    def metadata(self, name: str | None = None, zone: str | None = None) -> dict[str, str]:
        return {item.key: item.value for item in self.get(name, zone).metadata.items}

    def host_keys(self, name: str | None = None, zone: str | None = None) -> dict[str, str]:
        found = self.instances.get_guest_attributes(request={**self.where(name, zone), "query_path": "hostkeys/"})
        return {item.key: item.value for item in found.query_value.items}

    def ssh_argv(self, *command: str, name: str | None = None, zone: str | None = None) -> list[str]:
        """OpenSSH, with nothing trusted but the host keys that the instance published."""
        metadata = self.metadata(name, zone)
        port = metadata["fcctl-emulator-ssh-port"]
        known = self.key.parent / f"known-{name or self.name}-{port}"
        known.write_text("".join(f"alias {kind} {blob}\n" for kind, blob in self.host_keys(name, zone).items()))
        options = {
            "UserKnownHostsFile": known, "GlobalKnownHostsFile": "/dev/null", "HostKeyAlias": "alias",
            "StrictHostKeyChecking": "yes", "BatchMode": "yes", "IdentitiesOnly": "yes", "ConnectTimeout": "60",
        }  # fmt: skip
        flags = [flag for key, value in options.items() for flag in ("-o", f"{key}={value}")]
        user = metadata["fcctl-emulator-ssh-user"]
        return ["ssh", "-F", "none", *flags, "-i", str(self.key), "-p", port, f"{user}@127.0.0.1", *command]

    def ssh(self, command: str, name: str | None = None, zone: str | None = None) -> subprocess.CompletedProcess[str]:
        argv = self.ssh_argv(command, name=name, zone=zone)
        return subprocess.run(argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def scheduling(seconds: int | None = 3600, **changes: Any) -> dict[str, Any]:
    """What a GPU machine needs, with the cloud's own deadline."""
    values: dict[str, Any] = {"on_host_maintenance": "TERMINATE", "automatic_restart": False, **changes}
    if seconds is not None:
        values |= {"max_run_duration": {"seconds": seconds}, "instance_termination_action": "STOP"}
    return values


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate_key(tmp_path_factory.mktemp("key") / "id")


@pytest.fixture
def start(key: Path) -> Iterator[Callable[..., tuple[Emulator, Gce]]]:
    """``start(...)``: an emulator with these arguments and a client; stopped afterwards."""
    running: list[Emulator] = []

    def started(*args: Any, **given: Any) -> tuple[Emulator, Gce]:
        emulator = Emulator(*args, **given).start()
        running.append(emulator)
        return emulator, Gce(emulator.url, key)

    yield started
    for emulator in running:
        emulator.stop()


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """An emulator in which nothing is short."""
    with Emulator() as started:
        yield started


@pytest.fixture
def gce(emulator: Emulator, key: Path) -> Gce:
    """A client of that emulator."""
    return Gce(emulator.url, key)
