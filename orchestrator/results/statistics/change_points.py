"""Find where the level of a series changed, by a test that stays valid when it is repeated after every run.

Runs in a row are correlated, and the correlation is not known. Two models of a first-order autoregression are compared:
one with a step, one without, each averaged over correlations, places and sizes of the step (a Bayes factor; level and
scale have the improper priors that make it independent of both). For a series without a step, the probability that the
factor ever exceeds 1 / alpha is at most alpha, however often it is computed (Ville's inequality); this holds on average
over the correlations. docs/statistics.md has the measured rates for each.

The series is read from its start, one run after the other, as it was looked at: a change that was told stays told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ALPHA = 0.05
#: Runs before a step, and after it, at least: two could be two odd ones. Runs in all.
LEAST, FIRST = 3, 8
#: A level that returns within so many runs was an episode.
EPISODE = 6
#: Correlations of a run with the one before; all are equally likely.
MEMORIES = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97)
#: Variance of the step's size by that of the runs.
SIZE = 10.0
#: Places are the less likely the later, so that they add up to one however long the series becomes.
EARLY = 6
#: A run that differs by so many of the usual differences from both neighbours is an odd one.
ODD = 6.0
_TINY = 1e-14


@dataclass(frozen=True)
class Step:
    """From ``start`` on the level is another; an episode is over at ``end``. ``p`` holds however often one looked."""

    start: int
    p: float
    end: int | None = None


def change_points(values: Sequence[float], *, alpha: float = ALPHA) -> list[Step]:
    """The steps of positive ``values``, in order; the same for the same values."""
    import numpy as np

    logs = np.log(np.asarray(values, dtype=float))
    steps: list[Step] = []
    kept: list[int] = []  # since the last change, without episodes
    i = 0
    while i < logs.size:
        kept.append(i)
        i += 1
        step = _step(logs[kept], alpha)
        if step is None:
            continue
        at, p = step
        before, start = kept[:at], kept[at]
        end = _returned(logs, logs[before], logs[kept[at:]], start)
        steps.append(Step(start, p, end))
        kept, i = (before, end) if end is not None else (kept[at:], i)
    return steps


def _step(logs: Floats, alpha: float) -> tuple[int, float] | None:
    """The likeliest place of a step in ``logs`` and its p, if that is at most ``alpha`` and the last runs agree."""
    import numpy as np

    if logs.size < FIRST:
        return None
    factors = _factors(_without_odd(logs))
    p = float(np.exp(-np.logaddexp.reduce(factors)))
    at = LEAST + int(np.argmax(factors))
    if p > alpha or not _beyond(logs[-LEAST:], logs[:at], logs[at:]).all():
        return None
    return at, p


def _returned(logs: Floats, before: Floats, after: Floats, start: int) -> int | None:
    """Where the level was back at that of ``before`` and stayed there, if that was soon."""
    for end in range(start + 1, min(start + EPISODE, logs.size - LEAST) + 1):
        if not _beyond(logs[end : end + LEAST], before, after).any():
            return end
    return None


def _beyond(some: Floats, before: Floats, after: Floats) -> NDArray[np.bool_]:
    """Which of ``some`` are nearer to the level of ``after`` than to that of ``before``."""
    import numpy as np

    levels = np.median(before), np.median(after)
    return np.asarray(np.abs(some - levels[1]) < np.abs(some - levels[0]))


def _without_odd(logs: Floats) -> Floats:
    """Single odd runs replaced by the mean of their neighbours: one is no change, and would hide others."""
    import numpy as np

    steps = np.diff(logs)
    usual = 1.4826 * float(np.median(np.abs(steps - np.median(steps))))
    up, down = steps[:-1], -steps[1:]
    odd = 1 + np.flatnonzero((up * down > 0) & (np.minimum(np.abs(up), np.abs(down)) > ODD * usual))
    found = logs.copy()
    found[odd] = (logs[odd - 1] + logs[odd + 1]) / 2
    return found


def _factors(logs: Floats) -> Floats:
    """The logarithm of the Bayes factor of a step at each place from :data:`LEAST` on; their sum is that of any step.

    For each memory the series is whitened: the level becomes the column ``one``, a step another; the products of both
    with the series and with each other have closed forms in sums over the tail.
    """
    import numpy as np

    n = logs.size
    memory = np.array(MEMORIES)[:, None]
    first, rest = np.sqrt(1 - memory**2), 1 - memory  # of ``one``
    white = np.empty((memory.size, n))
    white[:, :1] = first * (logs[0] - logs.mean())
    white[:, 1:] = (logs[1:] - logs.mean()) - memory * (logs[:-1] - logs.mean())
    one_one = first**2 + (n - 1) * rest**2
    one_y = first * white[:, :1] + rest * white[:, 1:].sum(axis=1, keepdims=True)
    none = np.maximum((white**2).sum(axis=1, keepdims=True) - one_y**2 / one_one, _TINY)
    fit = np.log(first) - 0.5 * np.log(one_one)  # what the memory itself makes of the likelihood

    at = np.arange(LEAST, n - LEAST + 1)
    later = n - at - 1
    tails = np.cumsum(white[:, ::-1], axis=1)[:, ::-1]
    step_y = white[:, at] + rest * (tails[:, at] - white[:, at])
    step_one = rest * (1 + later * rest)
    size = 1 + later * rest**2 - step_one**2 / one_one  # of the step beside the level
    along = step_y - step_one * one_y / one_one
    prior = SIZE / (1 - memory**2)
    left = np.maximum(none - along**2 / (size + 1 / prior), _TINY)
    place = np.log(EARLY / ((at + EARLY - LEAST) * (at + EARLY - LEAST + 1)))
    stepped = fit + place - 0.5 * np.log1p(prior * size) - (n - 1) / 2 * np.log(left)
    return np.asarray(np.logaddexp.reduce(stepped, axis=0) - np.logaddexp.reduce(fit - (n - 1) / 2 * np.log(none)))
