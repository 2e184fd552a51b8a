"""Explains a server that shares no algorithm with Paramiko: what each supports, and how to change that."""

from __future__ import annotations

from orchestrator.base.errors import HostUnreachable
from orchestrator.machines.connect.ssh.config import SshSettings
from orchestrator.machines.connect.ssh.paramiko_lean import Transport, paramiko
from orchestrator.machines.connect.transport import printable

_MOST = 600  # characters of a list that the server sent


#: By Paramiko's complaint: what the two ends agree on, the word of sshd_config(5), a name that every sshd has had since
#: 2016, and Paramiko's words for what the server offers and for what it can do itself.
_MATTERS = {
    "kex algorithm": ("key exchange", "KexAlgorithms", "curve25519-sha256", "kex_algo_list", "kex"),
    "host key": ("kind of host key", "HostKeyAlgorithms", "ssh-ed25519", "server_key_algo_list", "key_types"),
    "ciphers": ("cipher", "Ciphers", "aes256-gcm@openssh.com", "server_encrypt_algo_list", "ciphers"),
    "macs": ("message code", "MACs", "hmac-sha2-256-etm@openssh.com", "server_mac_algo_list", "digests"),
}


def nothing_in_common(
    settings: SshSettings, error: paramiko.ssh_exception.IncompatiblePeer, transport: Transport | None
) -> HostUnreachable:
    """The error for a server that ``transport`` could not agree with."""
    matter = next((row for complaint, row in _MATTERS.items() if complaint in str(error)), None)
    if matter is None or transport is None:
        return HostUnreachable(
            f"{settings} speaks an SSH that fcctl does not", reason="config", cause=printable(str(error)),
            hint=f"see what it says: ssh -v -p {settings.port} {settings.host}",
        )  # fmt: skip
    name, setting, usual, offered, known = matter
    ours = ", ".join(map(str, getattr(transport.get_security_options(), known)))
    theirs = ", ".join(one for one in map(str, transport.offers.get(offered, ())) if not one.startswith("kex-strict-"))
    return HostUnreachable(
        f"{settings} and fcctl have no {name} in common",
        reason="config",
        cause=f"it offers {printable(theirs, _MOST)}; Paramiko {paramiko.__version__} here has {ours}",
        hint=f"there, add {usual} to {setting} in /etc/ssh/sshd_config, then: sudo systemctl reload ssh; "
        "or, if a newer Paramiko has one of those, here: pip install -U paramiko",
    )
