"""How a member finds its search: the file that the search writes, and the file that a member gets of it.

Both are JSON files that only their owner may read: whoever has the key in them can have the search's scheduler run
anything.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from fcctl_remote.base import files

SCHEMA = 1
#: A key with its certificate has a tenth of this, bytes.
MOST_PEM = 20_000
#: How long a scheduler may take to answer, seconds.
ANSWER_S = 10.0


#: Of a scheduler, as Dask writes it.
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def is_address(text: str) -> bool:
    """Whether a scheduler may be there."""
    return _ADDRESS.fullmatch(text) is not None


def offer(path: str, port: int, pem: Optional[str], token: str) -> None:
    """Write where the scheduler listens. Raises: OSError."""
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    tls = None if pem is None else {"pem": pem}
    entry = {"schema": SCHEMA, "port": port, "tls": tls, "token": token}
    files.write_atomic(path, files.to_json(entry), durable=False, mode=0o600)


@dataclass(frozen=True)
class Join:
    """Where a scheduler is for this host; ``pem`` is the search's key and certificate, None if it has none.

    ``token`` is another for another search.
    """

    address: str
    pem: Optional[str] = None
    token: str = ""
    patience_s: Optional[float] = None

    @property
    def where(self) -> Tuple[str, Optional[str], str]:
        """The search, and the way to it."""
        return self.address, self.pem, self.token

    @classmethod
    def read(cls, path: str) -> Optional[Join]:
        """None if there is no such file. Raises: ValueError, if it is not right."""
        try:
            with open(path, "rb") as stream:  # once: it comes and goes
                content = stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError("%s: %s" % (path, error.strerror)) from None
        return cls.from_dict(json.loads(content))

    @classmethod
    def from_dict(cls, entry: Any) -> Join:
        """Raises: ValueError."""
        if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
            raise ValueError("it is no file of schema %d" % SCHEMA)
        tls, token, patience = entry.get("tls"), entry.get("token", ""), entry.get("patience_s")
        pem = tls.get("pem") if isinstance(tls, dict) else None
        if tls is not None and not (isinstance(pem, str) and len(pem) <= MOST_PEM):
            raise ValueError("tls.pem is no key")
        port, address = entry.get("scheduler"), entry.get("address")
        if address is None and isinstance(port, int) and 0 < port < 65536:
            address = "%s://127.0.0.1:%d" % ("tcp" if pem is None else "tls", port)
        is_number = isinstance(patience, (int, float)) and not isinstance(patience, bool)
        if not (isinstance(address, str) and isinstance(token, str) and (patience is None or is_number)):
            raise ValueError("scheduler is a port, token a text, patience_s a number")
        if not is_address(address):
            raise ValueError("%r is no address such as tls://HOST:8786" % address)
        return cls(address, pem, token, patience)

    def answers(self, tls: Optional[str]) -> bool:
        """Whether a scheduler is there, and not only a tunnel that leads nowhere; ``tls``: a file with :attr:`pem`."""
        host, _, port = self.address.rpartition("://")[2].rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as plain:
                if not self.address.startswith("tls"):
                    return bool(plain.recv(1))
                if tls is None:
                    return False
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False
                context.load_verify_locations(tls)
                context.load_cert_chain(tls)
                with context.wrap_socket(plain) as secret:
                    return bool(secret.recv(1))
        except (OSError, ValueError):
            return False
