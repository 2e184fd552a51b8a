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
