"""One answer to each question of statistics, wherever it is asked."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from fcctl_remote.base import estimates
from fcctl_remote.readers.source import statistics_us
from fcctl_tune.engine import final
from flashcore import stats as flashcore_stats
from orchestrator.results.compare.effect import Launch

ROOT = Path(__file__).resolve().parents[3]


def test_the_kernels_copy_is_the_same() -> None:
    ours, theirs = ROOT / "remote/fcctl_remote/base/estimates.py", ROOT / "kernels/flashcore/estimates.py"
    assert theirs.read_bytes() == ours.read_bytes(), f"cp {ours} {theirs}"


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 120])
def test_students_quantiles_are_exact(freedom: int) -> None:
    assert estimates.student_t(freedom) == pytest.approx(scipy_stats.t.ppf(0.975, freedom), rel=1e-9)


def test_two_blocks_are_stretched_by_what_two_values_are_worth() -> None:
    assert estimates.stretch(2) == pytest.approx(12.706 / 1.960 * math.sqrt(2), rel=1e-3)
    assert estimates.stretch(10, 0.2) == pytest.approx(2.571 / 1.960 * math.sqrt(10 / 9), rel=1e-3)
    assert estimates.stretch(1000) == pytest.approx(1.0, abs=0.003)
    found = final.ratio_of([[0.0, 0.02]])
    assert found["ci_high"] / found["ratio"] == pytest.approx(math.exp(0.01 * estimates.stretch(2)), rel=0.01)


@pytest.mark.parametrize("count", [10, 99, 100, 301])
def test_everything_that_names_a_percentile_means_the_same(count: int) -> None:
    samples = np.random.default_rng(count).lognormal(1, 0.1, count)
    of_readers, of_kernels = statistics_us(samples.tolist()), flashcore_stats.summary(samples)
    launch = Launch(tuple(samples.tolist()))
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("mean", None), ("min", None)):
        expected = float(np.quantile(samples, share)) if share else float(getattr(samples, name)())
        if count < estimates.NEEDS.get(name, 1):
            assert of_readers[name] is of_kernels[name] is launch.value(name) is None
        else:
            assert of_readers[name] == pytest.approx(expected)
            assert of_kernels[name] == pytest.approx(expected, abs=1e-4)
            assert launch.value(name) == pytest.approx(expected)
    assert of_readers["p50"] == pytest.approx(statistics.median(samples))


def functions() -> Iterator[tuple[str, str]]:
    for top in ("orchestrator", "remote", "kernels", "benchmarks"):
        for path in (ROOT / top).rglob("*.py"):
            if path.name != "estimates.py":
                for name in re.findall(r"^ *def (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
                    yield name.strip("_"), str(path.relative_to(ROOT))


def test_nobody_answers_these_questions_again() -> None:
    answered = {"median", "quantile", "percentile", "geometric_mean", "student_t", "stretch"}
    found = list(functions())
    assert [one for one in found if one[0] in answered] == []
    assert len(found) > 1000
    for path in (ROOT / "kernels").rglob("*.py"):
        assert ".median()" not in path.read_text(encoding="utf-8"), f"{path}: of an even number torch takes the lower"
