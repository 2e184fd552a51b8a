"""Durations as text, time zones by name, and this computer's own zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo


def text(value: float) -> str:
    """Seconds as the shortest of these forms: ``90`` -> ``1m30s``, ``600`` -> ``10m``, ``0.5`` -> ``0.5s``."""
    if value < 60:
        return f"{value:g}s"
    whole = round(value)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def zone(name: str | None) -> tzinfo:
    """Returns the time zone ``name``, or this computer's for None. Raises ValueError with the nearest name."""
    if name is None:
        return _LocalZone()
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        from orchestrator.base.errors import nearest

        near = nearest(name, sorted(available_timezones()))
        raise ValueError(f"unknown time zone '{name}'" + (f", did you mean '{near}'?" if near else "")) from None


class _LocalZone(tzinfo):
    """This computer's zone, with the rules that its own clock follows, whatever that zone is called."""

    def utcoffset(self, dt: datetime | None) -> timedelta:
        if dt is None:
            return timedelta(0)
        wall = dt.replace(tzinfo=None)
        return (wall - datetime(1970, 1, 1)) - timedelta(seconds=wall.timestamp())  # noqa: DTZ001 - a difference

    def dst(self, dt: datetime | None) -> None:  # noqa: ARG002 - tzinfo's signature
        return None

    def tzname(self, dt: datetime | None) -> str:  # noqa: ARG002 - tzinfo's signature
        return "local"

    def fromutc(self, dt: datetime) -> datetime:
        wall = datetime.fromtimestamp(dt.replace(tzinfo=UTC).timestamp())  # noqa: DTZ006 - the local one is wanted
        return wall.replace(tzinfo=self)
