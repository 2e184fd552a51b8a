"""What a search cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Dict, Optional


@dataclass
class Effort:
    """Seconds, of processors and GPUs together; ``trials`` were told."""

    gpus: int = 0
    began: float = field(default_factory=time.monotonic)
    first_build: Optional[float] = None  # when there was something to time
    first_timing: Optional[float] = None  # when a trial could be timed: a GPU was met, too
    last_timed: Optional[float] = None
    build_s: float = 0.0
    built: int = 0
    cached: int = 0
    timed_s: float = 0.0
    trials: int = 0
    ended: Optional[float] = None
    _there_s: float = 0.0  # of all GPUs, from the first build to the last timing
    _idle_s: float = 0.0  # of all GPUs, from then until _since
    _since: Optional[float] = None

    def set_gpus(self, gpus: int) -> None:
        """So many GPUs are there from now on."""
        if gpus != self.gpus:
            self._until(time.monotonic())
            self.gpus = gpus

    def build_ended(self) -> None:
        """Something can be timed."""
        if self.first_build is None:
            self.first_build = self._since = time.monotonic()

    def timing_ended(self, seconds: float) -> None:
        self.timed_s += seconds
        self.last_timed = time.monotonic()
        if self.first_timing is None:
            self.first_timing = self.last_timed - seconds
        self._until(self.last_timed)
        self._there_s, self._idle_s = self._there_s + self._idle_s, 0.0

    def _until(self, now: float) -> None:
        if self._since is not None:
            self._idle_s += self.gpus * (now - self._since)
            self._since = now

    def as_dict(self) -> Dict[str, Any]:
        """``gpu_timed_share``: of the time that GPUs were there, from the first build to the last timing, in which they
        checked or timed. ``until_timing_s``: until a trial could be timed."""
        wall = (self.ended or time.monotonic()) - self.began
        return {
            "wall_s": round(wall, 3),
            "until_timing_s": None if self.first_timing is None else round(self.first_timing - self.began, 3),
            "gpu_timed_share": round(self.timed_s / self._there_s, 4) if self._there_s > 0 else None,
            "trials_per_minute": round(60.0 * self.trials / wall, 2) if wall > 0 else None,
            "compile_s": round(self.build_s, 3),
            "timed_s": round(self.timed_s, 3),
            "built": self.built,
            "from_cache": self.cached,
        }
