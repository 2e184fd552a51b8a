"""Derives address, login and host keys from what a cloud says of a machine. Pure.

Host keys are those that the guest published through the cloud (guest attributes below ``hostkeys/``), so that the first
login is as safe as later ones. Emulated machines are all on loopback, each with its own port in two metadata items;
these are used only if the target's API endpoint is on loopback too.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from orchestrator.base.errors import HostUnreachable

if TYPE_CHECKING:
    from orchestrator.machines.cloud import Endpoint, Machine
    from orchestrator.machines.targets import CloudTarget

#: Where guests publish their host keys, as a query path of guest attributes.
HOST_KEYS_PATH = "hostkeys/"
KEYS_ITEM = "ssh-keys"
OS_LOGIN_ITEM = "enable-oslogin"
GUEST_ATTRIBUTES_ITEM = "enable-guest-attributes"
EMULATOR_PORT_ITEM = "fcctl-emulator-ssh-port"
EMULATOR_USER_ITEM = "fcctl-emulator-ssh-user"

#: The key types that are worth pinning, best first: a guest's RSA key needs no SHA-1, but DSA is not accepted.
HOST_KEY_TYPES = (
    "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa",
)  # fmt: skip
_MAX_KEY_CHARS = 4096
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
SSH_PORT = 22


def key_alias(instance_id: str) -> str:
    """The name under which a machine's host keys are pinned: addresses are reused, ids are not."""
    return f"compute.{instance_id}"


def on_loopback(api_endpoint: str | None) -> bool:
    """Whether an API endpoint is on this computer."""
    host = urlsplit(api_endpoint or "").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_host_keys(attributes: Mapping[str, str]) -> tuple[str, ...]:
    """The host keys among guest attributes below ``hostkeys/``, ``"ssh-ed25519 AAAA..."``, the best kind first.

    The guest is not trusted: an entry that is no key of its claimed type is left out, and so is any text after a key.
    """
    first = {kind: (text.split(maxsplit=1) or [""])[0] for kind, text in attributes.items()}
    keys = {kind: blob for kind, blob in first.items() if _is_key(kind, blob)}
    return tuple(f"{kind} {keys[kind]}" for kind in HOST_KEY_TYPES if kind in keys)


def is_host_key(line: str) -> bool:
    """Whether ``line`` is what :func:`parse_host_keys` makes."""
    kind, _, blob = line.partition(" ")
    return _is_key(kind, blob)


def _is_key(kind: str, blob: str) -> bool:
    if kind not in HOST_KEY_TYPES or len(blob) > _MAX_KEY_CHARS:
        return False
    try:
        data = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        return False
    # RFC 4253, 6.6: a key's blob begins with its type, as a string with its length before it.
    return len(data) > 4 + len(kind) and data[: 4 + len(kind)] == struct.pack(">I", len(kind)) + kind.encode()


def endpoint(
    machine: Machine, host_keys: Sequence[str], *, user: str, identity_file: str, target: CloudTarget, now: float
) -> Endpoint:
    """The endpoint of a machine that runs.

    Args:
        user, identity_file: of the target's login.
        now: epoch seconds.

    Raises HostUnreachable: (config) it has no address that fits the target's settings.
    """
    from orchestrator.machines.cloud import Endpoint

    address, port, proxy = _way(machine, target)
    if on_loopback(target.api_endpoint):
        emulated = machine.metadata.get(EMULATOR_USER_ITEM, "")
        user = emulated if _USER.fullmatch(emulated) else user
    return Endpoint(
        project=machine.project,
        name=machine.name,
        zone=machine.zone,
        instance_id=machine.id,
        address=address,
        port=port,
        user=user,
        identity_file=identity_file,
        host_keys=tuple(host_keys),
        proxy_command=proxy,
        deadline=machine.deadline,
        started=machine.started,
        seen=now,
        hardware=machine.hardware,
    )


def _way(machine: Machine, target: CloudTarget) -> tuple[str, int, tuple[str, ...]]:
    """Address, port and proxy command."""
    if on_loopback(target.api_endpoint):
        port = machine.metadata.get(EMULATOR_PORT_ITEM, "")
        if port.isdecimal() and 0 < int(port) < 65536:
            return "127.0.0.1", int(port), ()
    proxy = target.proxy_command(machine.name, machine.zone)
    if proxy:
        return machine.name, SSH_PORT, proxy
    address = machine.external_ip or machine.internal_ip
    if not address or not _is_address(address):
        raise HostUnreachable(
            f"{machine.name} has no address",
            reason="config",
            cause="the cloud shows neither an external nor an internal address",
            hint="set `iap = true` in the target, or give the machine an external address",
        )
    return address, SSH_PORT, ()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def login_items(metadata: Mapping[str, str], *, user: str, public_key: str, os_login: bool) -> dict[str, str]:
    """The metadata items that permit the login, as far as ``metadata`` lacks them.

    Other people's keys stay. Guest attributes are enabled too; a guest publishes its host keys only if they were
    enabled at its creation.
    """
    wanted = {OS_LOGIN_ITEM: "TRUE" if os_login else "FALSE", GUEST_ATTRIBUTES_ITEM: "TRUE"}
    if not os_login:
        wanted[KEYS_ITEM] = _with_key(metadata.get(KEYS_ITEM, ""), user, public_key)
    return {key: value for key, value in wanted.items() if metadata.get(key, "").casefold() != value.casefold()}


def _with_key(entries: str, user: str, public_key: str) -> str:
    """``ssh-keys`` with one more line, ``user:key``."""
    lines = [line for line in entries.splitlines() if line.strip()]
    wanted = f"{user}:{public_key}"
    if any(line == wanted or line.startswith(f"{wanted} ") for line in lines):
        return entries
    return "\n".join([*lines, f"{wanted} fcctl"])
