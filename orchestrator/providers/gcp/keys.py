"""The key pair that logs in to machines that fcctl creates: one for all of them, created once on this computer."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.errors import ConfigError
from orchestrator.base.files import make_folders, sync_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.ssh import SSHPrivateKeyTypes

FILE_NAME = "id_ed25519"
_MAX_FILE_BYTES = 64 * 1024


def key_folder() -> Path:
    """Where fcctl's own key is, ``~/.local/share/fcctl/keys`` or its like."""
    import platformdirs

    return Path(platformdirs.user_data_dir("fcctl", appauthor=False)) / "keys"


def own_key(folder: Path | None = None) -> Path:
    """fcctl's own private key, created if absent; concurrent processes get the same key. Raises ConfigError: the folder
    cannot be written."""
    folder = folder or key_folder()
    path = folder / FILE_NAME
    try:
        if not path.exists():
            make_folders(folder, 0o700)
            _make(path)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)  # OpenSSH takes no key that others can read
    except OSError as error:
        raise ConfigError(
            f"cannot make a key to log in with: {error.strerror or error}",
            cause=str(path),
            hint=f"make {folder} writable, or name a key as `identity_file` of the target",
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
            os.fsync(file.fileno())
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
            f"the identity file {path} is not there",
            hint=f"ssh-keygen -t ed25519 -f {path}; or leave `identity_file` out, and fcctl makes a key of its own",
        )
    if not os.access(path, os.R_OK):
        raise ConfigError(f"the identity file {path} cannot be read", hint=f"ls -l {path}")
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
    from cryptography.hazmat.primitives import serialization

    key = _load(path)
    text = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return " ".join(text.decode("ascii").split()[:2])


def _load(path: Path) -> SSHPrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    hint = f"write its public half beside it: ssh-keygen -y -f {path} > {path}.pub"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES)
        if b"BEGIN OPENSSH" in data[:200]:
            return load_ssh_private_key(data, None)
        key = load_pem_private_key(data, None)
        if isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
            return key
        raise ValueError("a kind of key that SSH does not use in this form")
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = "it needs its passphrase" if "assw" in str(error) else str(error) or type(error).__name__
        raise ConfigError(f"cannot read the key {path}", cause=reason, hint=hint) from None
