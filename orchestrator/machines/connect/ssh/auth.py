"""Public-key login with keys of the ssh-agent and of files, in OpenSSH's order; records which were tried."""

from __future__ import annotations

import base64
import contextlib
import getpass
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator.base.errors import HostUnreachable
from orchestrator.machines.connect.ssh.config import SshSettings, fingerprint
from orchestrator.machines.connect.ssh.paramiko_lean import paramiko
from orchestrator.machines.connect.transport import printable

#: An agent may ask its owner to confirm, seconds.
AGENT_TIMEOUT_S = 60
PASSPHRASE_TRIES = 3
APPLE_SSH_ADD = "/usr/bin/ssh-add"


class SocketAgent(paramiko.agent.AgentSSH):
    """The ssh-agent that listens on a given socket (``IdentityAgent``)."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(AGENT_TIMEOUT_S)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]  # the stubs lack it
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def close(self) -> None:
        self._connection.close()


class KeyLogin:
    """Paramiko's ``auth_strategy``: tries one key after another until the host takes one."""

    def __init__(self, settings: SshSettings, agent_socket: str | None, *, interactive: bool | None = None) -> None:
        self._settings = settings
        self._agent_socket = agent_socket
        self._interactive = sys.stdin.isatty() and sys.stderr.isatty() if interactive is None else interactive
        self._tried: list[str] = []
        self._locked: list[Path] = []
        self._agent: SocketAgent | None = None

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in, or raise HostUnreachable (login) that lists the keys tried."""
        try:
            if not any(self._offer(transport, key, label) for key, label in self._keys()):
                self._last_resort(transport)
        finally:
            if self._agent:
                self._agent.close()

    # ---------------------------------------------------------------------------------------- which keys
    def _keys(self) -> Iterator[tuple[paramiko.PKey, str]]:
        """The chosen file first; then the agent's; then the files, those that need a passphrase last."""
        files = [file for file in self._settings.identity_files if file.is_file()]
        agent = self._agent_keys()
        in_agent = {key.asbytes() for key in agent}
        if self._settings.chosen_identities:
            yield from self._from_files(files)
        wanted = {blob for blob in map(_public_blob, files) if blob}
        agent.sort(key=lambda key: key.asbytes() not in wanted)
        for key in agent:
            if not self._settings.identities_only or key.asbytes() in wanted:
                yield key, _label(key)
        if not self._settings.chosen_identities:
            yield from self._from_files([file for file in files if _public_blob(file) not in in_agent])
        if self._locked and sys.platform == "darwin":
            fresh = [key for key in self._from_keychain() if key.asbytes() not in in_agent]
            in_agent.update(key.asbytes() for key in fresh)
            yield from ((key, _label(key)) for key in fresh if key.asbytes() in wanted)
        for file in self._locked:
            if _public_blob(file) not in in_agent and (opened := self._unlock(file)):
                yield opened, str(file)

    def _from_files(self, files: list[Path]) -> Iterator[tuple[paramiko.PKey, str]]:
        for file in files:
            try:
                key = load_key(file, None)
            except paramiko.PasswordRequiredException:
                self._locked.append(file)
            except (OSError, ValueError, paramiko.SSHException) as error:
                self._tried.append(f"{file} (cannot be read: {error})")
            else:
                yield key, str(file)

    def _agent_keys(self) -> list[paramiko.AgentKey]:
        if not self._agent_socket:
            return []
        try:
            self._agent = SocketAgent(self._agent_socket)
            return list(self._agent.get_keys())
        except (OSError, paramiko.SSHException) as error:
            self._tried.append(f"the ssh-agent at {self._agent_socket} ({error})")
            return []

    def _from_keychain(self) -> list[paramiko.AgentKey]:
        """The agent's keys, after those came into it whose passphrases are in the Keychain: only Apple's programs can
        read it. After a restart the agent has none of them."""
        if not self._agent_socket:
            return []
        env, nothing = {**os.environ, "SSH_AUTH_SOCK": self._agent_socket}, subprocess.DEVNULL
        argv = [APPLE_SSH_ADD, "-q", "--apple-load-keychain"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(argv, stdin=nothing, stdout=nothing, stderr=nothing, timeout=10, check=False, env=env)
        if self._agent:
            self._agent.close()
        return self._agent_keys()

    def _unlock(self, file: Path) -> paramiko.PKey | None:
        if self._interactive:
            for _ in range(PASSPHRASE_TRIES):
                phrase = getpass.getpass(f"Passphrase of {file}: ", stream=sys.stderr)
                with contextlib.suppress(ValueError, paramiko.SSHException):
                    return load_key(file, phrase)
        self._tried.append(f"{file} (needs its passphrase)")
        return None

    # ---------------------------------------------------------------------------------------- offering them
    def _offer(self, transport: paramiko.Transport, key: paramiko.PKey, label: str) -> bool:
        try:
            more = transport.auth_publickey(self._settings.user, key)
        except paramiko.BadAuthenticationType as error:
            self._tried.append(label)
            self._refuse(f"it accepts {', '.join(map(printable, error.allowed_types))}, and no keys")
        except paramiko.AuthenticationException:
            self._tried.append(label)
            if not transport.is_active():
                self._refuse("it closed the connection after too many keys")
            return False
        except (OSError, EOFError, ValueError, paramiko.SSHException) as error:
            self._tried.append(f"{label} ({error})")
            if not transport.is_active():
                self._refuse("it closed the connection")
            return False
        if more:
            self._refuse(f"after {label} it also requires {', '.join(map(printable, more))}")
        return True

    def _last_resort(self, transport: paramiko.Transport) -> None:
        """Tries method ``none``: some hosts authenticate the caller otherwise (a VPN's own SSH)."""
        try:
            transport.auth_none(self._settings.user)
        except paramiko.BadAuthenticationType as error:
            self._refuse(f"it accepts {', '.join(map(printable, error.allowed_types))}")
        except (OSError, EOFError, paramiko.SSHException):
            self._refuse(None)

    def _refuse(self, why: str | None) -> None:
        settings = self._settings
        tried = "tried " + ", ".join(self._tried) if self._tried else "no key was found to try"
        if self._locked:
            keychain = "--apple-use-keychain " if sys.platform == "darwin" else ""
            hint = f"ssh-add {keychain}{self._locked[0]}"
        elif not self._tried:
            hint = "make a key: ssh-keygen -t ed25519; install it: ssh-copy-id; or set `identity_file` in the target"
        else:
            copy = f"ssh-copy-id -p {settings.port} {settings.user}@{settings.host}"
            hint = f"check `user` and `identity_file` in the target, or install the key: {copy}"
        raise HostUnreachable(
            f"{settings} refused the login of {settings.user}",
            reason="login",
            cause=f"{tried}; {why}" if why else tried,
            hint=hint,
        ) from None


def _label(key: paramiko.AgentKey) -> str:
    return f"{key.get_name()} {fingerprint(key.asbytes())} from the ssh-agent"


def load_key(file: Path, passphrase: str | None) -> paramiko.PKey:
    """The private key in ``file``, with its certificate if one lies beside it. Raises PasswordRequiredException: it is
    encrypted and no passphrase was given; SSHException, OSError: it cannot be read."""
    try:
        key: paramiko.PKey = paramiko.Ed25519Key.from_private_key_file(str(file), passphrase)
    except paramiko.PasswordRequiredException:
        raise
    except (paramiko.SSHException, ValueError, IndexError):
        key = _load_other(file, passphrase)
    certificate = Path(f"{file}-cert.pub")
    if certificate.is_file():
        key.load_certificate(str(certificate))
    return key


def _load_other(file: Path, passphrase: str | None) -> paramiko.PKey:
    """RSA and ECDSA, read by cryptography: Paramiko's own reader fails on some keys without a comment."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    data = file.read_bytes()
    load = load_ssh_private_key if b"BEGIN OPENSSH" in data[:200] else load_pem_private_key
    try:
        key = load(data, passphrase.encode() if passphrase is not None else None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        if passphrase is None and b"ENCRYPTED" in data[:200]:
            raise paramiko.PasswordRequiredException("it is encrypted") from None
        raise paramiko.SSHException(printable(str(error), 200)) from None
    if isinstance(key, rsa.RSAPrivateKey):
        return paramiko.RSAKey(key=key)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return paramiko.ECDSAKey(vals=(key, key.public_key()))
    raise paramiko.SSHException("this kind of key is not supported")


def _public_blob(file: Path) -> bytes | None:
    try:
        return base64.b64decode(Path(f"{file}.pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
