from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.results.compare.changes import (
    LEAST,
    Change,
    Series,
    _place,
    best,
    change_points,
    changes,
    ladder,
    series,
)
from orchestrator.results.compare.history import _trend
from orchestrator.results.compare.source_history import SourceChanges
from orchestrator.results.measurement import Measurement


def point(i: int, p50: float, **changed: object) -> Measurement:
    values: dict[str, object] = {
        "run_id": f"20261121t{i:06d}z-bench-l4-{i:06x}", "created": f"2026-11-21T{i:06d}", "job": "bench",
        "target": "l4", "status": "passed", "benchmark": "mission", "variant": "fused", "mode": "hot", "unit": "us",
        "shape": "1,8,512,64", "method": "v3", "reference": False, "p50": p50, "n": 100, "gpu": "NVIDIA L4",
        "driver": "550", "git_commit": f"{i // 5:040x}", "tree_sha256": f"{i:064x}",
    }  # fmt: skip
    return Measurement(**{**values, **changed})  # type: ignore[arg-type]


def made(values: list[float]) -> Series:
    return Series(tuple(point(i, value) for i, value in enumerate(values)))


def noisy(levels: list[tuple[int, float]], noise: float = 0.01, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(level * np.exp(rng.normal(0, noise))) for count, level in levels for _ in range(count)]


def test_changes_are_found_where_they_are() -> None:
    found = change_points(noisy([(40, 10.0), (30, 10.5), (25, 9.0)]))
    assert [at for at, _ in found] == pytest.approx([40, 70], abs=1)
    assert all(p <= 0.05 for _, p in found)
    ((_, p),) = change_points([10.0] * 20 + [20.0] * 20)
    assert p == 1 / 500, "no reordering of 499 comes up to it"


@pytest.mark.parametrize("seed", range(10))
def test_a_change_of_five_percent_is_found(seed: int) -> None:
    found = change_points(noisy([(20, 10.0), (20, 10.5)], noise=0.015, seed=seed))
    assert min(abs(at - 20) for at, _ in found) <= 2


def test_false_alarms_stay_near_five_percent_also_with_heavy_tails() -> None:
    alarms = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        alarms += bool(change_points((10 * np.exp(0.01 * rng.standard_t(2, 40))).tolist()))
    assert alarms <= 12, "6 are to be expected of 120"


@pytest.mark.parametrize("seed", range(20))
def test_a_change_is_placed_where_two_levels_leave_the_least_squares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2 * LEAST, 30))
    values = rng.uniform(10, 11, n)  # no value is odd: none is farther out than three interquartile ranges
    rest = {at: values[:at].var() * at + values[at:].var() * (n - at) for at in range(LEAST, n - LEAST + 1)}
    assert _place(values) == min(rest, key=lambda at: rest[at])


def test_single_odd_runs_and_short_series_make_no_change() -> None:
    values = noisy([(30, 10.0)], noise=0.001)
    values[10] = 25.0
    values[22] = 5.0
    assert change_points(values) == []
    assert change_points([]) == change_points([1.0, 2.0, 3.0, 4.0, 5.0]) == []
    assert change_points([10.0] * 50) == []


def test_the_answer_is_the_same_every_time() -> None:
    values = noisy([(20, 10.0), (20, 10.1)], noise=0.01)
    assert change_points(values) == change_points(values)


def test_a_change_names_its_commits() -> None:
    (found,) = changes(made(noisy([(20, 10.0), (20, 12.0)], noise=0.002)))
    assert found.ratio == pytest.approx(1.2, rel=0.01)
    assert found.first_after.run_id.endswith("000014")
    assert found.commits == f"{3:040x}..{4:040x}"
    assert found.why == ()


def test_a_change_without_a_commit_says_what_else_changed() -> None:
    values = noisy([(10, 10.0), (10, 12.0)], noise=0.002)
    points = [
        point(i, v, git_commit=None, tree_sha256="t", driver="550" if i < 10 else "560") for i, v in enumerate(values)
    ]
    (found,) = changes(Series(tuple(points)))
    assert found.commits is None
    assert found.why == ("driver 550 -> 560", "the source is the same")


@pytest.mark.parametrize(
    ("old", "new", "commits"), [("a", "b", "a..b"), ("a", "a", None), (None, "b", None), ("a", None, None)]
)
def test_commits_of_a_change(old: str | None, new: str | None, commits: str | None) -> None:
    change = Change(1, 10.0, 12.0, 0.01, point(1, 10.0, git_commit=old), point(2, 12.0, git_commit=new))
    assert change.commits == commits


@pytest.mark.parametrize(
    ("git", "root", "commit", "asked"),
    [(True, Path("/ws"), True, True), (False, Path("/ws"), True, False), (True, None, True, False),
     (True, Path("/ws"), False, False)],
)  # fmt: skip
def test_git_is_asked_what_lies_between_two_known_commits(
    git: bool, root: Path | None, commit: bool, asked: bool
) -> None:
    between = SourceChanges((("b", "faster"),), ())

    class Git:
        def changes(self, at: Path, old: str, new: str) -> SourceChanges:
            assert (at, old, new) == (root, f"{3:040x}", f"{4:040x}")
            return between

    values = noisy([(20, 10.0), (20, 12.0)], noise=0.002)
    points = [point(i, v) if commit else point(i, v, git_commit=None) for i, v in enumerate(values)]
    trend = _trend(Series(tuple(points)), Git() if git else None, root)
    assert [found.source for found in trend.changes] == [between if asked else None]


def test_negligible_changes_are_not_told() -> None:
    assert changes(made(noisy([(30, 10.0), (30, 10.01)], noise=0.0001))) == []


def test_the_ladder_leaves_out_luck() -> None:
    of = made([10.0, 9.999, 9.0, 9.5, 8.0, 7.99, 12.0])
    assert [(rung.index, round(rung.gain, 3)) for rung in ladder(of)] == [(0, 1.0), (2, 1.111), (4, 1.125)]
    assert best(of).p50 == 7.99
    assert best(made([9.0, 8.0, 8.0])).run_id.endswith("1"), "the oldest of equals"


def test_what_cannot_be_compared_is_a_series_of_its_own() -> None:
    points = [point(1, 10.0), point(2, 5.0, gpu="NVIDIA H200"), point(3, 11.0), point(4, 9.0, method="v4")]
    found = series(points)
    assert [len(s.points) for s in found] == [1, 2, 1]
    assert found[0].points[0].method == "v4", "the newest first"


def test_launches_of_one_run_are_one_point() -> None:
    (found,) = series([point(1, 8.0), point(1, 18.0), point(2, 10.0)])
    assert found.values == pytest.approx([12.0, 10.0])
    assert found.points[0].n == 200
