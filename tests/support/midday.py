"""Days and months that do not end during a test."""

from __future__ import annotations

import time


def midday_zone() -> str:
    """The name of a time zone in which it is between noon and one o'clock now, for ``timezone`` of ``[budget]``."""
    ahead = 12 - time.gmtime().tm_hour
    return f"Etc/GMT{-ahead:+d}"  # with the signs of POSIX: Etc/GMT-2 is two hours ahead of UTC
