"""A call the host program declines, with what the caller should know."""

from __future__ import annotations

from fcctl_remote.record import Any
from fcctl_remote.wire import CallError


class Refusal(Exception):
    """``code`` is one of those of :class:`fcctl_remote.wire.CallError`."""

    def __init__(self, code: str, message: str, hint: str | None = None, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.error = CallError(code, message, hint, data or {})


def disk_full(path: str, root: str) -> Refusal:
    """The one wording for a full disk: what had no room, and the folder of the host program."""
    import shlex

    return Refusal(
        "disk_full",
        "the host's disk is full: cannot write %s" % path,
        "free disk space on the machine (df -h %s), then: fcctl ps, fcctl pull-results" % shlex.quote(root),
    )
