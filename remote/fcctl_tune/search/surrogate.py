"""What a search expects of untried configurations: a Gaussian process over the speeds of those it tried.

Speed is the best time so far over a configuration's time, so that all slow ones are alike; one that failed counts as
slower than all.
Near configurations have similar speeds: the covariance falls with the distance, summed over the parameters. The model
averages several length scales by their likelihood (Rasmussen and Williams, "Gaussian Processes for Machine Learning",
2006, algorithm 2.1), which matters while few trials are known.
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

#: A fit takes time with the cube of its trials: a longer search draws so many of them for each proposal.
MOST_TRIALS = 256
LENGTH_SCALES = (0.5, 1.0, 2.0, 4.0)
#: Variance of a timing, as a share of the model's.
NOISE = 0.02
#: Distance of two values that have no order; numbers are 1 apart at most.
UNORDERED = 0.8
#: A budget of so many trials is too small to explore much.
SMALL = 10
#: Speed of a trial that failed, as a share of the slowest that was timed.
FAILED = 0.5


def acquisition_scores(
    space: Space,
    records: Sequence[TrialRecord],
    pending: Sequence[Params],
    candidates: Sequence[Params],
    exploration: float,
    rng: random.Random,
) -> List[float]:
    """A score for each of ``candidates``, the higher the better: the expected speed and, ``exploration`` times, its
    standard deviation.

    ``records`` need at least one that was timed. What is near a ``pending`` trial, whose speed is still to be known, is
    less uncertain.
    """
    import numpy as np

    best = min((r for r in records if r.is_timed), key=lambda r: r.value or math.inf)
    others = [r for r in records if (r.is_timed or r.is_invalid) and r is not best]
    known = [best, *(others if len(others) < MOST_TRIALS else rng.sample(others, MOST_TRIALS - 1))]
    speeds = np.array([(best.value or 0.0) / r.value if r.is_timed and r.value else math.nan for r in known])
    mean, deviation = np.nanmean(speeds), float(np.nanstd(speeds)) or 1.0
    targets = (np.where(np.isnan(speeds), FAILED * np.nanmin(speeds), speeds) - mean) / deviation
    tried = _levels(space, [*(r.params for r in known), *pending])
    distances, to_candidates = _distances(space, tried, tried), _distances(space, tried, _levels(space, candidates))
    fits = [_fit(distances / scale, to_candidates / scale, targets) for scale in LENGTH_SCALES]
    weights = np.exp(np.array([likelihood for likelihood, _, _ in fits]) - max(likelihood for likelihood, _, _ in fits))
    weights /= weights.sum()
    scores = sum(weight * (mean + exploration * std) for weight, (_, mean, std) in zip(weights, fits))  # noqa: B905
    return [float(score) for score in np.asarray(scores)]


def exploration_weight(number: int, budget: int) -> float:
    """How many standard deviations count in favour of a configuration: more where the budget leaves time to make
    something of it, and less and less towards its end."""
    return max(1.0, math.log2(budget / SMALL)) * max(0.0, 1.0 - number / budget)


def _fit(distances: Floats, to_candidates: Floats, targets: Floats) -> Tuple[float, Floats, Floats]:
    """Logarithm of the likelihood of ``targets``, which the first rows have; mean and deviation at each candidate."""
    import numpy as np

    count = len(targets)
    factor = np.linalg.cholesky(np.exp(-distances) + NOISE * np.eye(len(distances)))
    whitened = np.linalg.solve(factor[:count, :count], targets)
    variance = max(1e-6, float(whitened @ whitened) / count)
    likelihood = -0.5 * count * math.log(variance) - float(np.log(np.diag(factor)[:count]).sum())
    solved = np.linalg.solve(factor, np.exp(-to_candidates))
    spread = np.sqrt(np.maximum(0.0, 1.0 - (solved**2).sum(axis=0)) * variance)
    return likelihood, solved[:count].T @ whitened, spread


def _levels(space: Space, many: Sequence[Params]) -> Floats:
    """[configuration, parameter]: the place of each value in the parameter's order."""
    import numpy as np

    places = [{value: place for place, value in enumerate(p.ordered)} for p in space.parameters]
    rows = [[known[one[p.name]] for p, known in zip(space.parameters, places)] for one in many]  # noqa: B905
    return np.array(rows, float).reshape(len(many), len(places))


def _distances(space: Space, some: Floats, others: Floats) -> Floats:
    """[some, others]: sums over the parameters."""
    import numpy as np

    total = np.zeros((len(some), len(others)))
    for place, parameter in enumerate(space.parameters):
        steps = np.abs(some[:, None, place] - others[None, :, place])
        most = max(1, len(parameter.values) - 1)
        total += np.sqrt(steps / most) if parameter.is_ordinal else UNORDERED * (steps > 0)
    return total
