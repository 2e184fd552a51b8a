"""Request ids of fcctl, which anybody can tell from others.

Compute Engine shows the ``requestId`` of a request as ``clientOperationId`` of its operation. So what was done to a
machine says whether an fcctl asked for it, of whatever workspace and computer, or a person in the console.
"""

from __future__ import annotations

import hashlib
import uuid


def new_request_id() -> str:
    """A random UUID whose second half is a digest of its first."""
    return _completed(uuid.uuid4().bytes[:8])


def is_fcctls(request_id: str) -> bool:
    """Whether an fcctl made it. Any other UUID passes for one once in 2^62."""
    try:
        return request_id.lower() == _completed(uuid.UUID(request_id).bytes[:8])
    except ValueError:
        return False


def _completed(half: bytes) -> str:
    digest = hashlib.sha256(b"fcctl request\0" + half).digest()[:8]
    return str(uuid.UUID(bytes=half + digest, version=4))
