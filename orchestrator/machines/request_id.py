"""Request ids of fcctl, which can be told from others.

Compute Engine shows a request's ``requestId`` as the ``clientOperationId`` of its operation. So the list of operations
tells whether an fcctl, of any workspace and computer, or a person requested it.
"""

from __future__ import annotations

import hashlib
import uuid


def new_request_id() -> str:
    """A random UUID whose second half is a digest of its first."""
    return _completed(uuid.uuid4().bytes[:8])


def is_fcctls(request_id: str) -> bool:
    """Whether an fcctl created it. Another UUID passes once in 2^62."""
    try:
        return request_id.lower() == _completed(uuid.UUID(request_id).bytes[:8])
    except ValueError:
        return False


def _completed(half: bytes) -> str:
    digest = hashlib.sha256(b"fcctl request\0" + half).digest()[:8]
    return str(uuid.UUID(bytes=half + digest, version=4))
