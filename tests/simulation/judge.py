"""Playing one schedule to its verdict, here or in another process."""

from __future__ import annotations

from tests.simulation.episode import play
from tests.simulation.schedule import Schedule, draw


def outcome(schedule: Schedule) -> str | None:
    """What went wrong: a violation, or an exception that no user should see; None if nothing did."""
    try:
        return play(schedule)
    except Exception as e:  # whatever it is, it is the finding
        return f"{type(e).__name__}: {e}"


def first_line(schedule: Schedule) -> str | None:
    """What :func:`outcome` begins with."""
    failure = outcome(schedule)
    return failure.splitlines()[0] if failure else None


def attempt(seed: int) -> tuple[int, str | None]:
    """A seed and its :func:`outcome`."""
    return seed, outcome(draw(seed))
