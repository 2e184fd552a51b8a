"""Resolves a host name with the user's ssh_config, by ``ssh -G``: Include, Match and tokens mean the same as for
OpenSSH. Without ``ssh``, Paramiko's parser reads the file, which ignores Include. And reads known_hosts files, in the
format of sshd(8), of which Paramiko's reader knows only a part: hashed names, ``*`` and ``?``, ``!negation``,
``[host]:port``, ``@revoked``. Host certificates (``@cert-authority``) are not supported."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import getpass
import hashlib
import hmac
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.errors import HostUnreachable

if TYPE_CHECKING:
    from paramiko import SSHConfig

    from orchestrator.machines.targets import SshTarget

#: ``ssh -G`` takes milliseconds, but a ``Match exec`` of the user's may take its time.
RESOLVE_TIMEOUT_S = 20
_HOST = re.compile(r"^\s*(host|include)[\s=]+(.+?)\s*$", re.IGNORECASE)
_DEPTH = 8  # of Include, against one that includes itself


@dataclass(frozen=True)
class Destination:
    """A host as typed: an alias or address, with an optional user and port."""

    name: str
    user: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Destination:
        """``user@host:port``, ``ssh://user@host:port``, ``[::1]:22``; each part but the host may be absent."""
        text = text.strip().removeprefix("ssh://").rstrip("/")
        user, at, rest = text.rpartition("@")
        host, port = rest, ""
        if rest.startswith("["):
            host, _, port = rest[1:].partition("]")
            port = port.removeprefix(":")
        elif rest.count(":") == 1:
            host, _, port = rest.partition(":")
        if not host or (port and not port.isdigit()):
            raise HostUnreachable(
                f"'{text}' contains no host name",
                reason="config",
                hint="write proxy_jump as user@host:port, or an alias",
            )
        return cls(host, user if at else None, int(port) if port else None)


@dataclass(frozen=True)
class SshSettings:
    """Everything needed to log in to one host."""

    name: str  # as the user wrote it
    host: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    #: The user chose these, so they go before the agent's other keys.
    chosen_identities: bool
    identities_only: bool
    identity_agent: str | None  # a socket's path, None for SSH_AUTH_SOCK, "none" for no agent
    known_hosts: tuple[Path, ...]
    host_key_alias: str | None
    proxy_command: str | None
    proxy_jump: tuple[Destination, ...]
    #: Keys the host must show, told by someone who knows it. Then no known_hosts file is asked.
    pinned: tuple[KnownKey, ...] = ()

    @property
    def key_name(self) -> tuple[str, int]:
        """The host and port in known_hosts; an alias has no port, as in OpenSSH."""
        return (self.host_key_alias, 22) if self.host_key_alias else (self.host, self.port)

    def __str__(self) -> str:
        where = self.host if self.port == 22 else f"{self.host}:{self.port}"
        return where if self.name == self.host else f"{self.name} ({where})"


def resolve(
    destination: Destination,
    *,
    config_file: str | None = None,
    identity_file: str | None = None,
    known_hosts: str | None = None,
    proxy_jump: str | None = None,
) -> SshSettings:
    """The settings for ``destination``; the named arguments win over the configuration file. Raises HostUnreachable:
    (config) the configuration cannot be read."""
    from orchestrator.machines.connect.ssh.paramiko_lean import paramiko

    if destination.name.startswith("-"):
        raise HostUnreachable(
            f"'{destination.name}' is not a valid host name", reason="config", hint="check `host` in the target"
        )
    try:
        parsed = _config(destination, config_file)
        options = parsed.lookup(destination.name)
    except (paramiko.SSHException, OSError, ValueError) as error:
        raise HostUnreachable(
            "cannot read the SSH configuration",
            reason="config",
            cause=str(error),
            hint="try: ssh -G " + destination.name,
        ) from None
    identities = [identity_file] if identity_file else options.get("identityfile", [])
    files = [known_hosts] if known_hosts else _of_home(options.get("userknownhostsfile", "~/.ssh/known_hosts"))
    files += shlex.split(options.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"))
    command = options.get("proxycommand")
    jump = proxy_jump if proxy_jump is not None else options.get("proxyjump", "none")
    if proxy_jump is not None or (command or "none").lower() == "none":
        command = None
    return SshSettings(
        name=destination.name,
        host=options.get("hostname", destination.name),
        port=destination.port or int(options.get("port", 22)),
        user=destination.user or options.get("user", getpass.getuser()),
        identity_files=tuple(_path(file) for file in identities if file.lower() != "none"),
        chosen_identities=identity_file is not None,
        identities_only=options.get("identitiesonly", "no").lower() in ("yes", "true"),
        identity_agent=_identity_agent(options.get("identityagent")),
        known_hosts=tuple(_path(file) for file in files),
        host_key_alias=options.get("hostkeyalias"),
        proxy_command=command,
        proxy_jump=() if jump.lower() in ("none", "") else tuple(Destination.parse(hop) for hop in jump.split(",")),
    )


def of_target(target: SshTarget) -> SshSettings:
    """The settings for an ssh target, whose own keys win over the configuration file. Raises HostUnreachable: (config)
    the configuration cannot be read."""
    return resolve(
        Destination(target.host, target.user, target.port),
        config_file=target.ssh_config,
        identity_file=target.identity_file,
        known_hosts=target.known_hosts,
        proxy_jump=target.proxy_jump,
    )


def host_key(target: SshTarget) -> tuple[str, bool]:
    """The name under which known_hosts files have the target's machine, and whether one of them has it. Raises
    HostUnreachable: (config) the configuration cannot be read."""
    settings = of_target(target)
    return address(*settings.key_name), bool(lookup(settings.known_hosts, *settings.key_name))


def user_config(config_file: str | None) -> list[str]:
    """The arguments that make OpenSSH read the same configuration as :func:`resolve`: also where ``HOME`` is another
    folder than the password file says, which OpenSSH does not look at."""
    if config_file:
        return ["-F", str(_path(config_file))]
    if home_is_elsewhere():
        file = Path(os.environ["HOME"], ".ssh", "config")
        return ["-F", str(file) if file.exists() else "/dev/null"]
    return []


def home_is_elsewhere() -> bool:
    """Whether ``HOME`` is another folder than the password file says."""
    home = os.environ.get("HOME")
    return bool(home) and home != pwd.getpwuid(os.getuid()).pw_dir


def _config(destination: Destination, config_file: str | None) -> SSHConfig:
    from orchestrator.machines.connect.ssh.paramiko_lean import paramiko

    program = shutil.which("ssh")
    if program is None:
        file = _path(config_file or "~/.ssh/config")
        return paramiko.SSHConfig.from_path(str(file)) if config_file or file.exists() else paramiko.SSHConfig()
    argv = [program, "-G", *user_config(config_file)]
    argv += ["-l", destination.user] if destination.user else []
    argv += ["-p", str(destination.port)] if destination.port else []
    # It says on standard error that it gets no terminal; what it says about mistakes is read on failure.
    answer = subprocess.run(
        [*argv, "--", destination.name], capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if answer.returncode != 0:
        raise ValueError(answer.stderr.strip() or f"ssh -G ended with {answer.returncode}")
    # Paramiko would read the answer's own line ``host NAME`` as the start of a block.
    return paramiko.SSHConfig.from_text("\n".join(x for x in answer.stdout.splitlines() if not x.startswith("host ")))


def _of_home(files: str) -> list[str]:
    """OpenSSH has already replaced ``~`` with the password file's home; where ``HOME`` differs, HOME is meant."""
    theirs = pwd.getpwuid(os.getuid()).pw_dir + "/.ssh/"
    return [f"~/.ssh/{file.removeprefix(theirs)}" if file.startswith(theirs) else file for file in shlex.split(files)]


def _identity_agent(value: str | None) -> str | None:
    if value is None or value == "SSH_AUTH_SOCK":
        return None
    if value.lower() == "none":
        return "none"
    return os.environ.get(value[1:], "none") if value.startswith("$") else str(_path(value))


def _path(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser()


def aliases() -> list[str]:
    """Every plain name of a ``Host`` line of ~/.ssh/config, no pattern, in the file's order; none if it cannot be
    read."""
    return list(dict.fromkeys(_names(Path.home() / ".ssh" / "config", _DEPTH)))


def _names(file: Path, depth: int) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        match = _HOST.match(line)
        if match is None:
            continue
        words = match[2].replace('"', "").split()
        if match[1].lower() == "host":
            yield from (word for word in words if not set(word) & set("*?!"))
        elif depth:
            for word in words:
                for included in _included(word):
                    yield from _names(included, depth - 1)


def _included(word: str) -> list[Path]:
    """As OpenSSH has it: a relative name is below ~/.ssh, and wildcards are allowed."""
    path = Path(word).expanduser()
    base = Path("/") if path.is_absolute() else Path.home() / ".ssh"
    return sorted(base.glob(str(path).lstrip("/")))


@dataclass(frozen=True)
class KnownKey:
    kind: str  # ssh-ed25519, ecdsa-sha2-nistp256, ssh-rsa
    blob: bytes
    revoked: bool
    where: str  # file:line


def lookup(files: Iterable[Path], host: str, port: int) -> list[KnownKey]:
    """Every key the files hold for ``host`` at ``port``, in the files' order."""
    name = address(host.lower(), port)
    return [key for file in files for names, key in _lines(file) if _matches(names, name)]


def address(host: str, port: int) -> str:
    """The name under which a host is filed."""
    return host if port == 22 else f"[{host}]:{port}"


def fingerprint(blob: bytes) -> str:
    """``SHA256:...`` as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _lines(file: Path) -> Iterator[tuple[str, KnownKey]]:
    try:
        text = file.read_text(errors="replace")
    except OSError:  # absent or unreadable: no host key is known from it
        return
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else None
        if len(words) < 3 or marker == "@cert-authority":
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield words[0], KnownKey(words[1], blob, marker == "@revoked", f"{file}:{number}")


def _matches(names: str, name: str) -> bool:
    if names.startswith("|1|"):
        return _hash_matches(names, name)
    matched = False
    for pattern in names.lower().split(","):
        negated = pattern.startswith("!")
        # Only * and ? are special here; fnmatch would also read the brackets of [host]:port.
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]")):
            if negated:
                return False
            matched = True
    return matched


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        _, _, salt, digest = hashed.split("|")
        wanted = base64.b64decode(digest)
        computed = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(wanted, computed)
