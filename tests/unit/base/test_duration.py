from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcctl_remote.base import durations
from orchestrator.base import clock


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), (45, 45), ("45", 45), (0.5, 0.5), (" 2M ", 120)],
)
def test_durations(text: object, seconds: float) -> None:
    assert durations.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "10 parsecs", "m", "10m5", "8d", True, None, [], "nan", float("inf")])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        durations.seconds(text)


@given(st.integers(1, int(durations.LONGEST_S)))
def test_printed_durations_read_back(seconds: int) -> None:
    assert durations.seconds(clock.duration_text(seconds)) == seconds


class Descheduled:
    """A clock of a process that got no processor for a minute behind its first check."""

    def __init__(self) -> None:
        self.time, self.checks = 0.0, 0

    def now(self) -> float:
        return self.time

    monotonic = elapsed = now

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def check(self) -> bool:
        self.checks += 1
        self.time += 60.0
        return self.checks > 1


def test_what_came_true_while_this_process_waited_for_a_processor_is_seen() -> None:
    busy = Descheduled()
    assert clock.wait_for(busy.check, 6.0, busy)
    assert busy.checks == 2
    assert not clock.wait_for(lambda: False, 0.0, busy)
