"""One JSON POST. Apart from the notifier because its imports cost more than most runs have to tell."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 10.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a notice goes to no other address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post(address: str, body: Mapping[str, Any]) -> str | None:
    """Posts ``body`` to ``address``, which the caller has checked; returns the error, without the address: it may be
    secret."""
    try:
        request = urllib.request.Request(  # noqa: S310 - see address
            address,
            data=json.dumps(body, default=str).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "fcctl"},
            method="POST",
        )
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as e:
        e.close()
        return f"HTTP status {e.code}"
    except (OSError, http.client.HTTPException, ValueError) as e:
        return type(getattr(e, "reason", e)).__name__
    return None
