"""A server with which Paramiko has no way of talking in common: what each of them knows, and how to mend that."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.base.errors import HostUnreachable
from orchestrator.machines.connect.ssh.config import SshSettings
from orchestrator.machines.connect.ssh.paramiko_lean import Transport, paramiko
from orchestrator.machines.connect.transport import printable

_MOST = 600  # characters of a list that the server sent


@dataclass(frozen=True)
class _Matter:
    """What two ends agree on before anything else."""

    name: str
    #: The word of sshd_config(5), and a name that every sshd has had since 2016, and Paramiko has too.
    setting: str
    usual: str
    #: Paramiko's words: in its complaint, for what the server offers, for what it can do itself.
    complaint: str
    offered: str
    ours: str


_MATTERS = (
    _Matter("key exchange", "KexAlgorithms", "curve25519-sha256", "kex algorithm", "kex_algo_list", "kex"),
    _Matter("kind of host key", "HostKeyAlgorithms", "ssh-ed25519", "host key", "server_key_algo_list", "key_types"),
    _Matter("cipher", "Ciphers", "aes256-gcm@openssh.com", "ciphers", "server_encrypt_algo_list", "ciphers"),
    _Matter("message code", "MACs", "hmac-sha2-256-etm@openssh.com", "macs", "server_mac_algo_list", "digests"),
)


def nothing_in_common(
    settings: SshSettings, error: paramiko.ssh_exception.IncompatiblePeer, transport: Transport | None
) -> HostUnreachable:
    """What to tell of a server that ``transport`` could not agree with."""
    said = str(error)
    matter = next((matter for matter in _MATTERS if matter.complaint in said), None)
    if matter is None or transport is None:
        return HostUnreachable(
            f"{settings} speaks an SSH that fcctl does not", reason="config", cause=printable(said),
            hint=f"see what it says: ssh -v -p {settings.port} {settings.host}",
        )  # fmt: skip
    ours = [str(name) for name in getattr(transport.get_security_options(), matter.ours)]
    theirs = [str(name) for name in transport.offers.get(matter.offered, ()) if not str(name).startswith("kex-strict-")]
    return HostUnreachable(
        f"{settings} and fcctl have no {matter.name} in common",
        reason="config",
        cause=f"it offers {printable(', '.join(theirs), _MOST)}; Paramiko {paramiko.__version__} here has "
        f"{', '.join(ours)}",
        hint=f"there, add {matter.usual} to {matter.setting} in /etc/ssh/sshd_config, then: sudo systemctl reload ssh; "
        "or, if a newer Paramiko has one of those, here: pip install -U paramiko",
    )
