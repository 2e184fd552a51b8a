"""Days and months of one zone, as epoch seconds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo

from orchestrator.base.clock import bounded


def start_of_day(moment: float, zone: tzinfo) -> float:
    """When the day of ``moment`` began."""
    return _midnight(datetime.fromtimestamp(moment, zone), zone)


def start_of_month(moment: float, zone: tzinfo) -> float:
    """When the month of ``moment`` began."""
    return _midnight(datetime.fromtimestamp(moment, zone).replace(day=1), zone)


def end_of_month(moment: float, zone: tzinfo) -> float:
    """When the month after that of ``moment`` begins."""
    first = datetime.fromtimestamp(moment, zone).replace(day=1)
    return _midnight((first + timedelta(days=32)).replace(day=1), zone)


def days(start: float, end: float, zone: tzinfo) -> Iterator[tuple[float, float]]:
    """The pieces of a time that lie in one day each; what a damaged record adds beyond :data:`LATEST` is left out."""
    start, end = bounded(start), bounded(end)
    while start < end:
        midnight = _midnight(datetime.fromtimestamp(start, zone) + timedelta(days=1), zone)
        yield start, min(end, midnight)
        # Where a zone sets its clock back at midnight, that midnight is not after ``start``.
        start = max(min(end, midnight), start + 1e-3)


def _midnight(day: datetime, zone: tzinfo) -> float:
    return datetime.combine(day.date(), datetime.min.time(), zone).timestamp()
