"""Which checks a GPU makes at once: where each is a process, most of a short one is to start it."""

from __future__ import annotations

from typing import Optional, Sequence

from fcctl_tune.engine.hosts import HostState, InFlightTrial
from fcctl_tune.trial.slot import Checking
from fcctl_tune.trial.tasks import TrialSpec

#: What is checked beside others may take so many times as long as the longest check so far, and a second. What takes
#: longer is ended, and has all of its time alone: one that hangs does not keep the others waiting.
PATIENCE = 4.0
#: Trials that passed alone and had failed beside others, after which all are checked alone.
MOST_SPOILT = 4


class ParallelChecks:
    """What is known of one search's checks."""

    def __init__(self, recipe: TrialSpec, seed: int) -> None:
        self.recipe, self.seed = recipe, seed
        self._longest_s: Optional[float] = None  # of one that passed, alone
        self._spoilt = 0

    def passed(self, seconds: float, is_doubted: bool = False) -> None:
        """One passed alone, which had failed beside others if it ``is_doubted``."""
        self._longest_s = max(self._longest_s or 0.0, seconds)
        self._spoilt += is_doubted

    def takes(self, flight: InFlightTrial, station: HostState) -> bool:
        """Whether this one waits there, to be checked by a command."""
        if flight.is_checked or flight.is_alone or flight.trial.number <= 0:
            return False
        return self.recipe.checks_by_command and (self._most(station) > 1 or not station.is_proved)

    def most(self, station: HostState) -> int:
        """How many at once: one, as long as it is not known how long that takes."""
        return self._most(station) if self._longest_s is not None else 1

    def _most(self, station: HostState) -> int:
        return station.together if self.recipe.checks_apart and self._spoilt < MOST_SPOILT else 1

    def asked(self, some: Sequence[InFlightTrial]) -> Checking:
        """For several of them."""
        timeout_s = min(self.recipe.timeouts.check, 1.0 + PATIENCE * (self._longest_s or 0.0))
        return Checking(tuple(one.candidate for one in some), self.seed, timeout_s)
