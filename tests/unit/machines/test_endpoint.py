"""From what the cloud says of a machine to the way in."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.base.errors import HostUnreachable
from orchestrator.machines.cloud import Machine
from orchestrator.machines.provision.endpoint import HOST_KEY_TYPES, endpoint, login_items, on_loopback, parse_host_keys
from orchestrator.machines.targets import GcpTarget


def blob(kind: str, rest: bytes = b"\0\0\0\x20" + b"k" * 32) -> str:
    return base64.b64encode(struct.pack(">I", len(kind)) + kind.encode() + rest).decode()


MACHINE = Machine("proj-one", "us-west1-c", "vm", "123", "RUNNING", external_ip="34.1.2.3", internal_ip="10.0.0.2",
                  started=50.0, deadline=100.0)  # fmt: skip
EMULATED = {"fcctl-emulator-ssh-port": "2222", "fcctl-emulator-ssh-user": "ann"}
KEYS = (f"ssh-ed25519 {blob('ssh-ed25519')}",)


def target(**changes: Any) -> GcpTarget:
    return GcpTarget(**{"name": "l4", "project": "proj-one", "instance": "vm", "zones": ["us-west1-c"], **changes})


def way(machine: Machine, **changes: Any) -> Any:
    return endpoint(machine, KEYS, user="bob", identity_file="/k", target=target(**changes), now=60.0)


def test_the_external_address_then_the_internal_one() -> None:
    found = way(MACHINE)
    assert (found.address, found.port, found.user, found.proxy_command) == ("34.1.2.3", 22, "bob", ())
    assert (found.project, found.name, found.zone, found.instance_id) == ("proj-one", "vm", "us-west1-c", "123")
    assert (found.deadline, found.started, found.seen, found.host_keys) == (100.0, 50.0, 60.0, KEYS)
    assert way(replace(MACHINE, external_ip=None)).address == "10.0.0.2"


def test_a_tunnel_has_nothing_left_to_fill_in() -> None:
    found = way(replace(MACHINE, external_ip=None), iap=True)
    assert found.proxy_command[:5] == ("gcloud", "compute", "start-iap-tunnel", "vm", "22")
    assert {"--listen-on-stdin", "--project=proj-one", "--zone=us-west1-c"} <= set(found.proxy_command)
    assert not [word for word in found.proxy_command if "%" in word]


@pytest.mark.parametrize("address", [None, "", "evil.example", "-oProxyCommand=x", "1.2.3.4 x"])
def test_what_is_no_address_is_not_dialled(address: str | None) -> None:
    with pytest.raises(HostUnreachable) as error:
        way(replace(MACHINE, external_ip=address, internal_ip=None))
    assert error.value.reason == "config"
    assert "iap" in str(error.value.hint)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99/secret", "http://localhost:99", "http://[::1]:99/x"])
def test_an_emulator_s_port_and_user_count_on_loopback(url: str) -> None:
    found = way(replace(MACHINE, metadata=EMULATED), api_endpoint=url)
    assert (found.address, found.port, found.user) == ("127.0.0.1", 2222, "ann")
    assert way(replace(MACHINE, metadata=EMULATED, external_ip=None), api_endpoint=url, iap=True).proxy_command == ()


@pytest.mark.parametrize("url", [None, "https://compute.googleapis.com", "http://127.0.0.1.evil.example", "x"])
def test_a_real_machine_cannot_send_us_elsewhere(url: str | None) -> None:
    assert not on_loopback(url)
    found = way(replace(MACHINE, metadata=EMULATED), api_endpoint=url)
    assert (found.address, found.port, found.user) == ("34.1.2.3", 22, "bob")


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1", "2²"])
def test_a_port_that_is_none_is_not_dialled(port: str) -> None:
    metadata = {**EMULATED, "fcctl-emulator-ssh-port": port, "fcctl-emulator-ssh-user": "-x"}
    found = way(replace(MACHINE, metadata=metadata), api_endpoint="http://127.0.0.1:9")
    assert (found.port, found.user) == (22, "bob")


def test_host_keys_are_those_of_known_kinds_the_best_first() -> None:
    given = {kind: blob(kind) + "\n" for kind in reversed(HOST_KEY_TYPES)}
    assert parse_host_keys(given) == tuple(f"{kind} {blob(kind)}" for kind in HOST_KEY_TYPES)
    assert parse_host_keys({}) == ()


@pytest.mark.parametrize("more", [" root@vm", "\n", "\n* ssh-rsa " + blob("ssh-rsa")])
def test_only_the_key_itself_is_taken(more: str) -> None:
    assert parse_host_keys({"ssh-ed25519": blob("ssh-ed25519") + more}) == KEYS


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("ssh-dss", blob("ssh-dss")),
        ("ssh-ed25519", blob("ssh-rsa")),
        ("ssh-ed25519", "not base64"),
        ("ssh-ed25519", blob("ssh-ed25519", b"")),
        ("ssh-ed25519", ""),
        ("ssh-rsa", blob("ssh-rsa", b"k" * 10_000)),
        ("ssh-ed25519 @cert-authority", blob("ssh-ed25519")),
        ("", ""),
    ],
)
def test_what_is_no_key_is_left_out(kind: str, text: str) -> None:
    assert parse_host_keys({kind: text, "ssh-ed25519-good": "x"}) == ()


def test_a_key_is_added_beside_others_and_only_once() -> None:
    wanted = login_items({}, user="bob", public_key="ssh-ed25519 AAA", os_login=False)
    assert wanted == {
        "enable-oslogin": "FALSE", "enable-guest-attributes": "TRUE", "ssh-keys": "bob:ssh-ed25519 AAA fcctl",
    }  # fmt: skip
    assert login_items(wanted, user="bob", public_key="ssh-ed25519 AAA", os_login=False) == {}
    others = "ann:ssh-rsa BBB ann@x\n\nbob:ssh-ed25519 AAAB old"
    more = login_items({**wanted, "ssh-keys": others}, user="bob", public_key="ssh-ed25519 AAA", os_login=False)
    assert more == {"ssh-keys": "ann:ssh-rsa BBB ann@x\nbob:ssh-ed25519 AAAB old\nbob:ssh-ed25519 AAA fcctl"}


def test_os_login_leaves_the_keys_alone() -> None:
    found = login_items({"enable-oslogin": "false"}, user="bob", public_key="k", os_login=True)
    assert found == {"enable-oslogin": "TRUE", "enable-guest-attributes": "TRUE"}
