"""The expected improvement of untried configurations, by a Gaussian process on the speeds of tried ones.

Speed is the best time so far over a configuration's time, so that all slow ones are alike; a failed trial counts as
slower than all. The covariance falls with the distance, a sum over the parameters, whose weights are fitted to the
speeds: by the gradient of their marginal likelihood (Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, chapter 5) and of a log-normal prior.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, List, Sequence, Tuple

from fcctl_tune.search.records import TrialRecord
from fcctl_tune.search.space import Params, Space

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Places = npt.NDArray[np.int64]

#: Trials of a fit, whose time is cubic: a longer search draws so many for each proposal.
MOST_TRIALS = 256
#: Trials that the parameters' weights are fitted to, and steps of that fit.
FITTED_TRIALS, STEPS = 96, 12
#: Prior of the logarithm of a parameter's weight: mean and standard deviation.
PRIOR = (-1.0, 1.5)
#: Of the fit's sign-based steps (Rprop): the first and the largest, and the factors after the same and the other sign.
FIRST_STEP, LARGEST_STEP, FASTER, SLOWER = 0.3, 1.0, 1.2, 0.5
#: Variance of a timing, as a share of the model's.
NOISE = 0.02
#: Speed of a trial that failed, as a share of the slowest that was timed.
FAILED = 0.5


def expected_improvements(
    space: Space,
    records: Sequence[TrialRecord],
    pending: Sequence[Params],
    candidates: Sequence[Params],
    rng: random.Random,
) -> List[float]:
    """For each of ``candidates`` by how much its speed is expected to exceed the best, in standard deviations.

    ``records`` need a timed one. Near a ``pending`` trial, whose speed is not known yet, uncertainty is less.
    """
    import numpy as np

    best = min((r for r in records if r.is_timed), key=lambda r: r.value or math.inf)
    others = [r for r in records if (r.is_timed or r.is_invalid) and r is not best]
    known = [best, *rng.sample(others, min(len(others), MOST_TRIALS - 1))]
    speeds = np.array([(best.value or 0.0) / r.value if r.is_timed and r.value else math.nan for r in known])
    speeds = np.where(np.isnan(speeds), FAILED * np.nanmin(speeds), speeds)
    targets = (speeds - speeds.mean()) / (float(speeds.std()) or 1.0)
    tried = _levels(space, [*(r.params for r in known), *pending])
    fitted, tables = tried[: min(len(known), FITTED_TRIALS)], _distances(space)
    each = np.array([_between(table, fitted[:, n], fitted[:, n]) for n, table in enumerate(tables)])
    weights = _weights(each, targets[: len(fitted)])
    tables = [weight * table for weight, table in zip(weights, tables)]  # noqa: B905 (Python 3.9)
    to_candidates = _total(tables, tried, _levels(space, candidates))
    mean, deviation = _predicted(_total(tables, tried, tried), to_candidates, targets)
    above = (mean - targets.max()) / deviation
    density = np.exp(-(above**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in above])
    scores = deviation * (above * below + density)
    return [float(score) for score in scores + 1e-12 * above]  # where all are 0, the likeliest


def _weights(distances: Floats, targets: Floats) -> Floats:
    """The parameters' weights that fit ``targets``; ``distances`` are [parameter, trial, trial]."""
    import numpy as np

    mean, deviation = PRIOR
    logs, step, before = (np.full(len(distances), value) for value in (mean, FIRST_STEP, 0.0))
    for _ in range(STEPS):
        covariance = np.exp(-np.tensordot(np.exp(logs), distances, 1))
        inverse = np.linalg.inv(covariance + NOISE * np.eye(len(targets)))
        solved = inverse @ targets
        variance = max(1e-6, float(targets @ solved) / len(targets))
        inner = (np.outer(solved, solved) / variance - inverse) * covariance
        gradient = -0.5 * np.exp(logs) * np.tensordot(distances, inner, 2) - (logs - mean) / deviation**2
        sign = np.sign(gradient)
        factor = np.where(sign == before, FASTER, np.where(before == 0, 1.0, SLOWER))
        step, before = np.minimum(step * factor, LARGEST_STEP), sign
        logs = logs + sign * step
    weights: Floats = np.exp(logs)
    return weights


def _predicted(distances: Floats, to_candidates: Floats, targets: Floats) -> Tuple[Floats, Floats]:
    """Mean and standard deviation at each candidate; the first rows have ``targets``."""
    import numpy as np

    count = len(targets)
    factor = np.linalg.cholesky(np.exp(-distances) + NOISE * np.eye(len(distances)))
    whitened = np.linalg.solve(factor[:count, :count], targets)
    variance = max(1e-6, float(whitened @ whitened) / count)
    solved = np.linalg.solve(factor, np.exp(-to_candidates))
    spread = np.sqrt(np.maximum(1e-9, 1.0 - (solved**2).sum(axis=0)) * variance)
    return solved[:count].T @ whitened, spread


def _levels(space: Space, many: Sequence[Params]) -> Places:
    """[configuration, parameter]: the place of each value in the parameter's order."""
    import numpy as np

    places = [{value: place for place, value in enumerate(p.ordered)} for p in space.parameters]
    rows = [[known[one[p.name]] for p, known in zip(space.parameters, places)] for one in many]  # noqa: B905
    return np.array(rows, int).reshape(len(many), len(places))


def _distances(space: Space) -> List[Floats]:
    """For each parameter [value, value], in its order: from 0 to 1."""
    import numpy as np

    tables = []
    for parameter in space.parameters:
        places = np.arange(len(parameter.values), dtype=float)
        steps = np.abs(places[:, None] - places) / max(1.0, places[-1])
        tables.append(np.sqrt(steps) if parameter.is_ordinal else (steps > 0).astype(float))
    return tables


def _between(table: Floats, some: Places, others: Places) -> Floats:
    return table[some[:, None], others]


def _total(tables: Sequence[Floats], some: Places, others: Places) -> Floats:
    """[some, others]: the sum over the parameters."""
    import numpy as np

    total = np.zeros((len(some), len(others)))
    for place, table in enumerate(tables):
        total += _between(table, some[:, place], others[:, place])
    return total
