"""Where an action leads."""

from __future__ import annotations

from starlette.responses import RedirectResponse


def see(path: str) -> RedirectResponse:
    """Look there next, with a GET, whatever this request was."""
    return RedirectResponse(path, 303)
