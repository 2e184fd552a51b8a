"""The known_hosts files: which key a host must show.

The format is that of sshd(8), of which Paramiko's reader knows only a part: hashed names, ``*`` and ``?``,
``!negation``, ``[host]:port``, ``@revoked``. Host certificates (``@cert-authority``) are not supported.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KnownKey:
    kind: str  # ssh-ed25519, ecdsa-sha2-nistp256, ssh-rsa
    blob: bytes
    revoked: bool
    where: str  # file:line


def lookup(files: Iterable[Path], host: str, port: int) -> list[KnownKey]:
    """Every key the files hold for ``host`` at ``port``, in the files' order."""
    name = host.lower() if port == 22 else f"[{host.lower()}]:{port}"
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
    except OSError:  # absent, or not ours to read: it vouches for nobody
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
        if _pattern_matches(pattern.removeprefix("!"), name):
            if negated:
                return False
            matched = True
    return matched


def _pattern_matches(pattern: str, name: str) -> bool:
    # Only * and ? are special here; fnmatch would also read the brackets of [host]:port.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        _, _, salt, digest = hashed.split("|")
        wanted = base64.b64decode(digest)
        computed = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(wanted, computed)
