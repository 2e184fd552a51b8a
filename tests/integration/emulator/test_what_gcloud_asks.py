"""Requests that fcctl never makes and gcloud does: several in one, lists over everything."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from email import message_from_bytes, message_from_string
from typing import Any
from urllib.parse import urlsplit

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.listing import compiled

HERE = "projects/proj/zones/us-central1-a"
IMAGE = "projects/debian-cloud/global/images/family/debian-12"
DISKS = [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}]


def made(emulator: Emulator, *names: str, kind: str = "g2-standard-4") -> None:
    for name in names:
        body = {"name": name, "machineType": kind, "disks": DISKS, "scheduling": {"onHostMaintenance": "TERMINATE"}}
        done(emulator, emulator.request("POST", f"{HERE}/instances", body))


def done(emulator: Emulator, operation: dict[str, Any]) -> None:
    path = operation["selfLink"][operation["selfLink"].index("projects/") :]
    ended = emulator.request("POST", f"{path}/wait", {})
    assert ended["status"] == "DONE"
    assert "error" not in ended


def batch(emulator: Emulator, *requests: str) -> list[tuple[str, int, dict[str, Any]]]:
    """What apitools sends and how it reads the answer: (Content-ID, status, JSON) of each."""
    parts = "".join(
        "--===x==\nContent-Type: application/http\nMIME-Version: 1.0\nContent-Transfer-Encoding: binary\n"
        f"Content-ID: <abc+{number}>\n\n{request} HTTP/1.1\nContent-Type: application/json\nMIME-Version: 1.0\n"
        "content-length: 0\nHost: 127.0.0.1\n\n\n"
        for number, request in enumerate(requests)
    )
    url = urlsplit(emulator.url)
    head = {"Content-Type": 'multipart/mixed; boundary="===x=="'}
    asked = urllib.request.Request(
        f"{url.scheme}://{url.netloc}/batch/compute/v1", f"{parts}--===x==--\n".encode(), head, method="POST"
    )
    with urllib.request.urlopen(asked, timeout=240) as reply:
        content = f"Content-Type: {reply.headers['Content-Type']}\r\n\r\n".encode() + reply.read()
    found = []
    for part in message_from_bytes(content).get_payload():
        status, rest = part.get_payload().split("\n", 1)
        found.append(
            (part["Content-ID"], int(status.split(" ")[1]), json.loads(message_from_string(rest).get_payload()))
        )
    return found


def test_several_requests_in_one(emulator: Emulator) -> None:
    made(emulator, "one", "two")
    below = f"{urlsplit(emulator.url).path}/compute/v1/{HERE}"
    one, two, none, stranger = batch(
        emulator,
        f"POST {below}/instances/one/stop?alt=json",
        f"GET {below}/instances/two?fields=name",
        f"DELETE {below}/instances/three",
        f"DELETE /compute/v1/{HERE}/instances/two",  # without the secret
    )
    assert [one[0], two[0]] == ["<response-abc+0>", "<response-abc+1>"]
    assert (one[1], one[2]["operationType"]) == (200, "stop")
    assert (two[1], two[2]["name"]) == (200, "two")
    assert (none[1], none[2]["error"]["errors"][0]["reason"]) == (404, "notFound")
    assert stranger[1] == 404
    assert emulator.machine("two").status == "RUNNING"


@pytest.mark.parametrize("content_type", ["application/json", "multipart/mixed", 'multipart/mixed; boundary="y"'])
def test_a_batch_that_is_none(emulator: Emulator, content_type: str) -> None:
    url = urlsplit(emulator.url)
    asked = urllib.request.Request(
        f"{url.scheme}://{url.netloc}/batch/compute/v1", b"--y\r\n\r\nGET\r\n--y--", {"Content-Type": content_type}
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(asked, timeout=240)
    with error.value:
        assert error.value.code == 400


def test_lists_over_everything(emulator: Emulator) -> None:
    made(emulator, "vm")
    found = emulator.request("GET", "projects/proj/aggregated/operations", {})["items"]
    assert found["zones/us-central1-a"]["operations"][0]["operationType"] == "insert"
    assert found["zones/us-west1-a"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    kinds = emulator.request("GET", "projects/proj/aggregated/acceleratorTypes", {})["items"]
    assert {row["name"] for row in kinds["zones/us-west1-a"]["acceleratorTypes"]} == {"nvidia-l4", "nvidia-tesla-t4"}
    images = emulator.request("GET", "projects/debian-cloud/global/images", {})["items"]
    assert [image["family"] for image in images] == ["debian-11", "debian-12"]


def test_a_regular_expression_keeps_its_backslashes() -> None:
    wanted = compiled(r'region eq ".*\bus\-west1\b.*"')
    assert wanted({"region": "https://x/regions/us-west1"})
    assert not wanted({"region": "https://x/regions/us-west12"})
    assert compiled(r'name = "a\"b"')({"name": 'a"b'})
