"""How the emulator says no, as Google's library shows it; and lists, pages, filters, requestId."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.emulator import world
from orchestrator.emulator.call import compiled
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.refusals import ApiError
from orchestrator.emulator.scenario import Latency, Scenario

pytest.importorskip("google.cloud.compute_v1")
from google.api_core import exceptions
from google.cloud import compute_v1 as compute

Cloud = tuple[Emulator, Any]
PROJECT, ZONE = "proj", "us-central1-a"


def reason(error: pytest.ExceptionInfo[Any]) -> str:
    return str(error.value.errors[0]["reason"])


def failed(gce: Any, operation: Any, zone: str = ZONE) -> Any:
    ended = gce.wait(operation, zone)
    assert ended.status == compute.Operation.Status.DONE
    return ended


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Upper"},
        {"machine_type": "zones/us-central1-a/machineTypes/z9"},
        {"labels": {"Bad": "x"}},
        {"disks": []},
        {"disks": [{"boot": True, "initialize_params": {}}]},
    ],
    ids=["name", "machine type", "label", "no disk", "no image"],
)
def test_inserts_that_make_no_sense(gce: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(exceptions.BadRequest) as error:
        gce.instances.insert_unary(project=PROJECT, zone=ZONE, instance_resource=gce.spec(**changes))
    assert reason(error) == "invalid"


def test_a_machine_that_still_starts_can_be_stopped(start: Callable[..., Cloud]) -> None:
    emulator, gce = start(scenario=Scenario(latency=Latency(staging=600)))
    operation = gce.insert()
    emulator.advance(1)
    assert gce.status() == "STAGING"
    gce.do("stop")
    assert gce.status() == "TERMINATED"
    assert failed(gce, operation).error.errors[0].code == "RESOURCE_NOT_READY"
    emulator.advance(1000)
    assert gce.status() == "TERMINATED"


# ------------------------------------------------------------------------------------------------- stock and quotas
def test_a_stockout_names_the_zones_that_have_machines(start: Callable[..., Cloud]) -> None:
    _, gce = start(scenario=Scenario(stock={ZONE: 0, "us-central1-b": 0}))
    operation = failed(gce, gce.insert())
    error = operation.error.errors[0]
    assert error.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert operation.http_error_status_code == 503
    infos = [detail.error_info for detail in error.error_details if detail.error_info.reason]
    assert infos[0].metadatas["zonesAvailable"] == "us-central1-c"
    assert infos[0].metadatas["attachment"] == "nvidia-l4:1"
    assert list(gce.instances.list(project=PROJECT, zone=ZONE)) == []
    assert list(gce.disks.list(project=PROJECT, zone=ZONE)) == []
    gce.create(zone="us-central1-c")


def test_stock_is_taken_and_given_back(start: Callable[..., Cloud]) -> None:
    emulator, gce = start(scenario=Scenario(stock={ZONE: 1}))
    gce.create("one")
    assert failed(gce, gce.insert("two")).error.errors
    gce.do("stop", "one")
    gce.create("two")
    again = failed(gce, gce.call("start", "one"))
    assert again.error.errors[0].code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED")
    assert gce.status("one") == "TERMINATED"
    emulator.scenario.stock[ZONE] = 2
    gce.do("start", "one")


@pytest.mark.parametrize(
    ("region", "metric", "spot", "where"),
    [
        ("us-central1", "NVIDIA_L4_GPUS", False, "in region us-central1"),
        ("us-central1", "PREEMPTIBLE_NVIDIA_L4_GPUS", True, "in region us-central1"),
        ("global", "GPUS_ALL_REGIONS", False, "globally"),
    ],
)
def test_quotas(start: Callable[..., Cloud], region: str, metric: str, spot: bool, where: str) -> None:
    _, gce = start(scenario=Scenario(quotas={region: {metric: 1}}))
    scheduling = {"on_host_maintenance": "TERMINATE", "automatic_restart": False}
    if spot:
        scheduling["provisioning_model"] = "SPOT"
    gce.create("one", scheduling=scheduling)
    operation = failed(gce, gce.insert("two", scheduling=scheduling))
    error = operation.error.errors[0]
    assert error.code == "QUOTA_EXCEEDED"
    assert error.message == f"Quota '{metric}' exceeded.  Limit: 1.0 {where}."
    assert error.error_details[0].quota_info.limit == 1
    assert operation.http_error_status_code == 403
    asked = gce.regions.get(project=PROJECT, region=region) if region != "global" else gce.projects.get(project=PROJECT)
    assert [(row.limit, row.usage) for row in asked.quotas if row.metric == metric] == [(1, 1)]
    gce.do("stop", "one")
    gce.create("two", scheduling=scheduling)


def test_permissions_projects_and_rate_limits(start: Callable[..., Cloud]) -> None:
    emulator, gce = start(scenario=Scenario(denied=("instances.insert",), projects=(PROJECT,)))
    with pytest.raises(exceptions.Forbidden, match=r"compute\.instances\.insert") as error:
        gce.insert()
    assert reason(error) == "forbidden"
    with pytest.raises(exceptions.NotFound):
        gce.projects.get(project="other")
    assert gce.images.get_from_family(project="debian-cloud", family="debian-12").family == "debian-12"
    emulator.scenario.requests_per_minute = 2
    gce.projects.get(project=PROJECT)
    gce.projects.get(project=PROJECT)
    with pytest.raises(exceptions.Forbidden) as error:
        gce.projects.get(project=PROJECT)
    assert reason(error) == "rateLimitExceeded"
    emulator.advance(60)
    gce.projects.get(project=PROJECT)


# --------------------------------------------------------------------------------------------------------- requestId
def test_a_request_id_belongs_to_one_request(gce: Any) -> None:
    number = str(uuid.uuid4())
    gce.done(gce.insert(request_id=number))
    with pytest.raises(exceptions.Conflict):
        gce.insert("other", request_id=number)
    with pytest.raises(exceptions.Conflict):
        gce.call("stop", request_id=number)
    for wrong in ("not-a-uuid", str(uuid.UUID(int=0))):
        with pytest.raises(exceptions.BadRequest, match="requestId"):
            gce.call("stop", request_id=wrong)


def test_a_refused_request_leaves_its_request_id_free(emulator: Emulator, gce: Any) -> None:
    emulator.scenario.denied = ("instances.insert",)
    number = str(uuid.uuid4())
    with pytest.raises(exceptions.Forbidden):
        gce.insert(request_id=number)
    emulator.scenario.denied = ()
    gce.done(gce.insert(request_id=number))


def test_the_oldest_operations_that_are_done_are_forgotten(
    emulator: Emulator, gce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "KEPT", 8)
    request_id = str(uuid.uuid4())
    first = gce.insert(request_id=request_id)
    gce.done(first)
    stops = [gce.do("stop"), *(gce.do("start" if n % 2 else "stop") for n in range(1, 12))]
    assert len(emulator.world.operations) <= 8
    with pytest.raises(exceptions.NotFound):
        gce.wait(first)
    assert gce.wait(stops[-1]).name == stops[-1].name
    with pytest.raises(exceptions.Conflict):  # the name is taken; the request of then is a new one now
        gce.insert(request_id=request_id)


# ------------------------------------------------------------------------------------------------------------- lists
@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("name=box", True),
        ("name!=box", False),
        ("labels.a:*", True),
        ("labels.b:*", False),
        ('name eq "b.*"', True),
        ('name ne "b.*"', False),
        ("name=b*", True),
        ("(labels.a=1) (status=RUNNING)", True),
        ("labels.a=2 OR status=RUNNING", True),
        ("labels.a=2 AND status=RUNNING", False),
        ("NOT labels.a=2", True),
        ("size>5", True),
        ("size<=5", False),
        ("zone=z-1", True),
        ('name = "box" AND NOT (status = "TERMINATED" OR labels.a != 1)', True),
    ],
)
def test_filters(text: str, matches: bool) -> None:
    url = "https://www.googleapis.com/compute/v1/projects/p/zones/z-1"
    resource = {"name": "box", "status": "RUNNING", "labels": {"a": "1"}, "size": "10", "zone": url}
    assert compiled(text)(resource) is matches


@pytest.mark.parametrize("text", ["name", "name=", "=x", "(name=x", "name=x)", 'name eq "("', "name ~ x", "name == x"])
def test_filters_that_are_none(text: str) -> None:
    with pytest.raises(ApiError):
        compiled(text)


# ---------------------------------------------------------------------------------------------------------- strangers
@pytest.mark.parametrize(
    ("path", "headers"),
    [("/compute/v1/projects/p", {}), (None, {"Origin": "http://evil.example"}), (None, {"Host": "evil.example"})],
    ids=["no secret", "a web page", "another name"],
)
def test_strangers_find_nothing(emulator: Emulator, path: str | None, headers: dict[str, str]) -> None:
    base = emulator.url.rsplit("/", 1)[0]
    url = f"{base}{path}" if path else f"{emulator.url}/compute/v1/projects/p"
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=240)
    with error.value as answer:
        assert (answer.code, json.load(answer)["error"]["errors"][0]["reason"]) == (404, "notFound")
