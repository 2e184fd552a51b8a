"""What no API offers, asked for over HTTP as a test of another process would."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator

pytest.importorskip("google.cloud.compute_v1")
import requests

Cloud = tuple[Emulator, Any]


def post(emulator: Emulator, path: str, **body: Any) -> dict[str, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{emulator.url}/emulator/{path}", data=data, method="POST")
    with urllib.request.urlopen(request, timeout=240) as answer:
        return dict(json.load(answer))


@pytest.mark.parametrize("what", ["preempted", "hostError", "deferredStop", "terminateOnHostMaintenance"])
def test_a_machine_stops_by_itself(emulator: Emulator, gce: Any, what: str) -> None:
    gce.create()
    assert post(emulator, f"instances/vm/{what}")["operationType"] == f"compute.instances.{what}"
    post(emulator, "clock", advance=5)
    assert gce.status() == "TERMINATED"
    with pytest.raises(urllib.error.HTTPError) as error:
        post(emulator, f"instances/vm/{what}")
    error.value.close()


def test_another_host_key_than_the_published_one_answers(emulator: Emulator, gce: Any) -> None:
    gce.create()
    assert gce.ssh("true").returncode == 0
    post(emulator, "instances/vm/rotateHostKeys")
    refused = gce.ssh("true")
    assert refused.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in refused.stderr


def test_stock_quotas_and_faults_change_while_it_runs(emulator: Emulator, gce: Any) -> None:
    post(emulator, "stock", **{"us-central1-a": 0})
    post(emulator, "quotas", **{"us-west1": {"NVIDIA_L4_GPUS": 0}})
    assert gce.wait(gce.insert()).error.errors[0].code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert gce.wait(gce.insert(zone="us-west1-a"), "us-west1-a").error.errors[0].code == "QUOTA_EXCEEDED"
    post(emulator, "faults", faults=[{"action": "instances.insert", "nth": 1, "do": {"drop": "before"}}])
    with pytest.raises(requests.exceptions.ConnectionError):
        gce.insert(zone="us-east1-b")
    gce.create(zone="us-east1-b")


@pytest.mark.parametrize("path", ["instances/none/preempted", "instances/vm/explode", "nothing"])
def test_controls_that_do_not_exist(emulator: Emulator, gce: Any, path: str) -> None:
    gce.create()
    with pytest.raises(urllib.error.HTTPError) as error:
        post(emulator, path)
    error.value.close()
    assert gce.status() == "RUNNING"


def test_a_connection_that_outlives_its_emulator_changes_nothing(tmp_path: Path, start: Callable[..., Cloud]) -> None:
    emulator, gce = start(tmp_path)
    gce.create()
    emulator.stop()
    with pytest.raises(requests.exceptions.ConnectionError):
        gce.call("stop")
    _, gce = start(tmp_path)
    assert gce.status() == "RUNNING"
