from __future__ import annotations

import math

import pytest

from flashcore.grades import grade


@pytest.mark.parametrize(
    ("p50", "letter"),
    [
        (4.6, "A+"), (39.9, "A+"), (40, "A+"), (50, "A+"), (50.1, "A"), (70, "A"), (70.1, "B+"), (100, "B+"),
        (100.1, "B"), (150, "B"), (150.1, "C"), (200, "C"), (200.1, "D"), (1397.7, "D"),
    ],
)  # fmt: skip
def test_each_bound_belongs_to_the_better_grade(p50: float, letter: str) -> None:
    found = grade(p50, "NVIDIA L4")
    assert found is not None
    assert found.letter == letter
    assert found.next_step


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA L40S", "", None])
def test_there_is_no_grade_off_the_l4(gpu: str | None) -> None:
    assert grade(45.0, gpu) is None


@pytest.mark.parametrize("p50", [math.nan, math.inf, 0.0, -1.0])
def test_there_is_no_grade_without_a_time(p50: float) -> None:
    assert grade(p50, "NVIDIA L4") is None
