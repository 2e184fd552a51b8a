"""Every scripted fault, and what no API offers, met by Google's library."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import REALISTIC, Fault, load

pytest.importorskip("google.cloud.compute_v1")
import requests
from google.api_core import exceptions

from tests.support.waiting import wait_for

Cloud = tuple[Emulator, Any]
PROJECT, ZONE = "proj", "us-central1-a"


def test_a_delay(emulator: Emulator, gce: Any) -> None:
    emulator.faults.add(action="projects.get", do={"delay": 0.3})
    begun = time.monotonic()
    gce.projects.get(project=PROJECT)
    assert time.monotonic() - begun >= 0.3


def test_a_storm_passes(emulator: Emulator, gce: Any) -> None:
    emulator.faults.add(method="POST", for_s=30, do={"http": 429})
    for _ in range(3):
        with pytest.raises(exceptions.TooManyRequests):
            gce.insert()
    gce.projects.get(project=PROJECT)
    emulator.advance(31)
    gce.create()


@pytest.mark.parametrize(
    ("nth", "struck"), [(2, [2]), ([1, 3], [1, 3]), ("2-3", [2, 3]), ("3+", [3, 4, 5]), (None, [1, 2, 3, 4, 5])]
)
def test_which_requests_are_struck(nth: Any, struck: list[int]) -> None:
    fault = Fault.model_validate({"action": "instances.*", "nth": nth, "do": {"http": 503}})
    assert not fault.meets("disks.get", "GET", "", 0)
    assert [n for n in range(1, 6) if fault.meets("instances.get", "GET", "", 0)] == struck


@pytest.mark.parametrize(
    "wrong",
    [
        {"do": "explode"},
        {"do": {"http": 503, "drop": "after"}},
        {"verb": "start", "do": {"http": 503}},
        {"do": {"drop": "sometimes"}},
        {"do": {"operation": {"http": 403}}},
        {"do": {"delay": "long"}},
        {"nth": "soon", "do": {"http": 503}},
        {},
    ],
)
def test_faults_nobody_knows(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="for Fault"):
        Fault.model_validate(wrong)


def test_a_scenario_from_a_file(tmp_path: Path, start: Callable[..., Cloud]) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "speed: 50\nstock: {us-central1-a: 0}\nlatency: {stop: 3}\nquotas: {us-west1: {NVIDIA_L4_GPUS: 1}}\n"
        "faults:\n  - {action: projects.get, nth: 1, do: {http: 403}}\n"
    )
    scenario = load(file)
    assert (scenario.latency.stop, scenario.quota("NVIDIA_L4_GPUS", "us-west1")) == (3.0, 1.0)
    _, gce = start(scenario=scenario)
    with pytest.raises(exceptions.Forbidden):
        gce.projects.get(project=PROJECT)
    file.write_text("latency: realistic\n")
    assert load(file).latency == REALISTIC


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spead: 5", "unknown key 'spead'"),
        ("latency: {stopp: 3}", "unknown key 'stopp' in latency"),
        ("latency: slow", "latency: expected a table"),
        ("- {do: explode}", "unknown key 'explode' in faults"),
        ("[", "cannot read"),
        ("[" * 1500, "cannot read"),
        ("5", "expected a table"),
    ],
)
def test_a_scenario_that_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(file)


def test_a_defect_of_the_emulator_is_in_its_log_and_a_client_that_hangs_up_is_not(
    emulator: Emulator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would look like a lost reply, and whoever meets it would never learn why."""
    try:
        raise ConnectionResetError
    except ConnectionResetError:
        emulator._server.handle_error(None, None)
    assert caplog.text == ""

    def fail(*_: object) -> dict[str, Any]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(emulator._service, "answer", fail)
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{emulator.url}/compute/v1/projects/{PROJECT}", timeout=240)
    wait_for(lambda: "RuntimeError: a defect" in caplog.text)


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
