"""Google's clouds for the registry: the login key, OS Login and the client of a project."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fcctl_remote.base.files import flush, sync_folder
from orchestrator.base.clock import Clock
from orchestrator.base.errors import AuthError, ConfigError
from orchestrator.base.files import make_folders, user_folder
from orchestrator.base.sanitize import objects, table
from orchestrator.machines.interfaces import Cloud, Login
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.targets import CloudTarget

if TYPE_CHECKING:
    from orchestrator.providers.gcp.cloud import GcpCloud

FILE_NAME = "id_ed25519"
_MAX_FILE_BYTES = 64 * 1024


def own_key(folder: Path | None = None) -> Path:
    """fcctl's own private key, created if absent, in ``~/.local/share/fcctl/keys`` or its like; concurrent processes
    get the same key. Raises ConfigError: the folder cannot be written."""
    folder = folder or user_folder("data") / "keys"
    path = folder / FILE_NAME
    try:
        if not path.exists():
            make_folders(folder, 0o700)
            _make(path)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)  # OpenSSH takes no key that others can read
    except OSError as error:
        raise ConfigError(
            f"cannot create a login key: {error.strerror or error}",
            cause=str(path),
            hint=f"make {folder} writable, or set `identity_file` in the target",
        ) from None
    return path


def _make(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    data = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    handle, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)  # readable by this user only
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            flush(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(name, path)  # unlike a rename, never replaces the key that another process made meanwhile
    finally:
        os.unlink(name)  # noqa: PTH108
    sync_folder(path.parent)


def chosen_key(identity_file: str) -> Path:
    """A key of the user's. Raises ConfigError: it is missing or unreadable."""
    path = Path(os.path.expandvars(identity_file)).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(
            f"the identity file {path} does not exist",
            hint=f"ssh-keygen -t ed25519 -f {path}; or remove `identity_file` from the target: fcctl then creates a "
            f"key",
        )
    if not os.access(path, os.R_OK):
        raise ConfigError(
            f"the identity file {path} cannot be read", hint=f"check its owner and permissions: ls -l {path}"
        )
    return path


def public_key(path: Path) -> str:
    """``"ssh-ed25519 AAAA..."``, without a comment: from the file beside the key, else from the key itself. Raises
    ConfigError: neither can be read, or the key needs its passphrase."""
    beside = Path(f"{path}.pub")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        words = beside.read_text(encoding="ascii")[:_MAX_FILE_BYTES].split()
        if len(words) >= 2 and words[0].startswith(("ssh-", "ecdsa-", "sk-")):
            return f"{words[0]} {words[1]}"
    return _from_private(path)


def _from_private(path: Path) -> str:
    from orchestrator.machines.connect.ssh.auth import load_key
    from orchestrator.machines.connect.ssh.paramiko_lean import paramiko

    try:
        key = load_key(path, None)
    except paramiko.PasswordRequiredException:
        reason = "it needs its passphrase"
    except (OSError, ValueError, paramiko.SSHException) as error:
        reason = str(error) or type(error).__name__
    else:
        return f"{key.get_name()} {key.get_base64()}"
    hint = f"write its public key: ssh-keygen -y -f {path} > {path}.pub"
    raise ConfigError(f"cannot read the key {path}", cause=reason, hint=hint)


_TIMEOUT_S = 60
#: The key is registered again at every start, so that an unused one expires.
_KEY_LIFE = "30d"
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
_OTHER_WAY = 'or set login = "metadata" in the target'


def register(public_key: str, project: str) -> str:
    """Registers ``public_key`` for machines with OS Login; returns the user name. Raises ConfigError: there is no
    ``gcloud``; AuthError: it is refused, or names no user."""
    argv = [
        "gcloud", "compute", "os-login", "ssh-keys", "add", f"--key={public_key}", f"--ttl={_KEY_LIFE}",
        f"--project={project}", "--format=json", "--quiet",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise ConfigError(
            "OS Login needs gcloud, which is not installed",
            hint=f"install it (https://cloud.google.com/sdk/docs/install), {_OTHER_WAY}",
        ) from None
    except subprocess.TimeoutExpired:
        raise AuthError(
            "OS Login did not accept the key in time",
            cause=f"gcloud took more than {_TIMEOUT_S} s",
            hint="run the command again",
        ) from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise AuthError(
            "OS Login refused the key",
            cause=" ".join(lines)[:600] or f"gcloud ended with exit code {done.returncode}",
            hint=f"gcloud auth login, {_OTHER_WAY}",
        )
    return user_of(done.stdout)


def user_of(profile: str) -> str:
    """The login name in what ``gcloud`` printed: the primary POSIX account's. Raises AuthError: there is none."""
    try:
        parsed = json.loads(profile)
    except ValueError:
        parsed = {}
    accounts = objects(table(table(parsed).get("loginProfile", parsed)).get("posixAccounts"))
    for account in sorted(accounts, key=lambda account: not account.get("primary")):
        if _USER.fullmatch(user := str(account.get("username", ""))):
            return user
    raise AuthError(
        "OS Login accepted the key, but shows no user name",
        hint=f"see the profile: gcloud compute os-login describe-profile; {_OTHER_WAY}",
    )


class GcpClouds:
    """One client per project and endpoint. Google's library is imported by the first request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[tuple[str, str | None], GcpCloud] = {}
        self._register = cache(register)  # each time takes gcloud a second or two
        self._lock = threading.Lock()

    def open(self, target: CloudTarget) -> Cloud:
        """Nothing is sent before the first request. Raises ConfigError: the target's ``api_endpoint`` is not on
        loopback."""
        from orchestrator.providers.gcp.cloud import GcpCloud

        check_endpoint(target)
        with self._lock:
            key = (target.project, target.api_endpoint)
            if key not in self._open:
                self._open[key] = GcpCloud(target.project, target.api_endpoint, self._clock)
            return self._open[key]

    def login(self, target: CloudTarget) -> Login:
        """See the port. With OS Login, ``gcloud`` registers the key and says which user it belongs to."""
        path = chosen_key(target.identity_file) if target.identity_file else own_key()
        public = public_key(path)
        if target.os_login and not on_loopback(target.api_endpoint):
            return Login(target.user or self._register(public, target.project), path, public)
        return Login(_user(target), path, public)


def check_endpoint(target: CloudTarget) -> None:
    """Raises ConfigError for an endpoint elsewhere: requests to it would go without credentials, or with the user's."""
    if target.api_endpoint is not None and not on_loopback(target.api_endpoint):
        raise ConfigError(
            f"`api_endpoint` of target '{target.name}' is not on this computer",
            cause=f"{target.api_endpoint}: only an emulator on loopback can replace the cloud",
            hint="remove `api_endpoint`, or start an emulator: fcctl emulator",
        )


def _user(target: CloudTarget) -> str:
    """The login name: the target's, else this user's as Linux takes names. An emulator knows only who runs it."""
    here = pwd.getpwuid(os.getuid()).pw_name
    if on_loopback(target.api_endpoint):
        return here
    return target.user or linux_user(here)


def linux_user(name: str) -> str:
    """A name that useradd takes. Images let nobody log in as root, so that becomes ``fcctl``."""
    text = re.sub(r"[^a-z0-9_-]", "_", name.lower())[:32]
    text = text if re.match(r"[a-z_]", text) else f"_{text}"[:32]
    return "fcctl" if text == "root" else text
