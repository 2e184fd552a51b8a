"""Logs in to a machine of a cloud with its cached address, login and pinned host keys.

It queries no cloud and neither reads nor writes the user's own SSH files.
"""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.errors import HostUnreachable
from orchestrator.machines.connect.ssh.config import SshSettings
from orchestrator.machines.connect.ssh.known_hosts import KnownKey
from orchestrator.machines.provision.endpoint import key_alias

if TYPE_CHECKING:
    from orchestrator.machines.cloud import Endpoint
    from orchestrator.machines.connect.ssh.ssh import SshTransport
    from orchestrator.machines.targets import CloudTarget, SandboxTarget


def unknown(name: str) -> HostUnreachable:
    """The error for a machine without an entry in the cache."""
    return HostUnreachable(
        f"nothing is known here of the machine of target '{name}'",
        reason="config",
        cause="it was not started from this computer yet, or what was known of it was dropped",
        hint=f"fcctl hosts up {name}",
    )


def dial(endpoint: Endpoint, target: CloudTarget | SandboxTarget, connect_timeout_s: float) -> SshTransport:
    """Raises HostUnreachable, with the reason; a host key other than the pinned ones is ``key``."""
    from orchestrator.machines.connect.ssh.ssh import SshTransport

    if not endpoint.host_keys:
        raise unknown(target.name)
    try:
        return SshTransport.open(
            settings(endpoint, target.name), timeout_s=connect_timeout_s, patience_s=target.link_timeout_s
        )
    except HostUnreachable as error:
        raise HostUnreachable(
            error.message, reason=error.reason, cause=error.cause, hint=_hint(error, endpoint, target.name)
        ) from None


def settings(endpoint: Endpoint, name: str) -> SshSettings:
    """What OpenSSH would be told with options; ``name`` is the target's."""
    return SshSettings(
        name=name,
        host=endpoint.address,
        port=endpoint.port,
        user=endpoint.user,
        identity_files=(Path(endpoint.identity_file),),
        chosen_identities=True,
        identities_only=True,
        identity_agent=None,  # an agent may sign with this key; no other key is offered
        known_hosts=(),
        host_key_alias=key_alias(endpoint.instance_id),
        proxy_command=shlex.join(endpoint.proxy_command) if endpoint.proxy_command else None,
        proxy_jump=(),
        pinned=tuple(_pinned(key) for key in endpoint.host_keys),
    )


def _pinned(key: str) -> KnownKey:
    kind, _, blob = key.partition(" ")
    return KnownKey(kind, base64.b64decode(blob), revoked=False, where="what it published through the cloud")


def _hint(error: HostUnreachable, endpoint: Endpoint, name: str) -> str | None:
    """The hint for a machine of a cloud, in place of the one for a machine that only its owner knows."""
    up = f"fcctl hosts up {name}"
    if error.reason == "key":
        return (
            f"{up} asks the cloud for the machine's address and keys anew; if the key is refused again, do not log in: "
            f"look at who changed {endpoint.name} in project {endpoint.project}"
        )
    if error.reason in ("port", "timeout"):
        return f"it may have been stopped, or have another address by now: {up}"
    if error.reason == "login":
        return f"{up} puts the key {endpoint.identity_file} on the machine"
    if error.reason == "proxy" and endpoint.proxy_command:
        return f"check the way in: fcctl doctor --on {name}"
    return error.hint
