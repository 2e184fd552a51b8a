"""Ratios of times taken in turns."""

from __future__ import annotations

import math
import random

import pytest

from fcctl_tune.engine import final


def blocks(true_ratio: float, count: int, noise: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [math.log(true_ratio) + rng.gauss(0, noise) for _ in range(count)]


def test_turns_there_and_back_make_a_block_so_that_drift_cancels() -> None:
    base = [10.0, 11.0, 12.0, 13.0]
    assert final.log_ratios([20.0, 22.0, 24.0, 26.0], base) == pytest.approx([math.log(2)] * 2)
    assert final.log_ratios([20.0, 22.0, 24.0, 26.0], base, "max") == pytest.approx([-math.log(2)] * 2)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(60):
        found = final.ratio_of([blocks(0.9, 10, 0.02, seed), blocks(0.9, 10, 0.05, 1000 + seed)], seed=seed)
        held += found["ci_low"] <= 0.9 <= found["ci_high"]
    assert 52 <= held <= 60  # 95 % of 60 is 57


def test_no_interval_is_narrower_than_what_the_null_showed() -> None:
    null = final.ratio_of([blocks(1.01, 10, 0.001, 1)])
    floor = final.floor_of(null)
    assert floor == pytest.approx(0.01, abs=0.002)
    assert final.floor_of({"ratio": 1.0, "ci_low": 0.9999, "ci_high": 1.0001}) == final.FINEST
    found = final.ratio_of([[math.log(0.995)] * 10], floor)
    assert found["ratio"] == pytest.approx(0.995)
    assert found["ci_low"] < 0.995 * (1 - 0.007) and found["ci_high"] > 1  # noqa: PT018


def test_cases_count_alike() -> None:
    found = final.ratio_of([[math.log(0.5)] * 4, [math.log(2.0)] * 40])
    assert found == {"ratio": 1.0, "ci_low": 1.0, "ci_high": 1.0}
