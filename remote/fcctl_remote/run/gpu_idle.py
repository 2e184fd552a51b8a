"""Whether the GPUs do nothing while a step runs that is to use them, by every sample of the run's own telemetry. Where
nothing is measured (no nvidia-smi, a GPU that reports no utilisation), no run is ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.text import new_lines

#: How often the telemetry is read, seconds; it has a line a second.
LOOK_S = 1.0
#: Without a sample of the GPUs for so long, nobody measures them, seconds. nvidia-smi is restarted within this time.
SILENT_S = 30.0
#: What is read in one look: some hundred samples of eight GPUs.
MOST_BYTES = 1024 * 1024


class GpuIdleWatch:
    """Looks at one step at a time, from :meth:`begin` to :meth:`end`."""

    def __init__(
        self,
        telemetry: str,
        rule: wire.GpuIdle | None,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._telemetry = telemetry
        self._rule = rule
        self._warn = warn
        self._clock = clock
        self._step: str | None = None
        self._offset = 0
        self._looked = 0.0
        self._measured = 0.0  # when the last sample of the GPUs was read
        self._since: float | None = None  # since when no GPU was busy
        self._warned = False

    def begin(self, step: str) -> None:
        """An attempt at the step begins; only a step of the rule is watched."""
        if self._rule is None or step not in self._rule.steps:
            return
        self._step, self._since = step, None
        self._looked = self._measured = self._clock()
        self._offset = files.size_of(self._telemetry)

    def end(self) -> None:
        self._step = None

    def verdict(self) -> str | None:
        """Why the run is to end, as a sentence; None while there is no reason."""
        rule, now = self._rule, self._clock()
        if rule is None or self._step is None or now - self._looked < LOOK_S:
            return None
        self._looked = now
        for busiest in self._utilisations():
            self._measured = now
            if busiest >= rule.below_pct:
                self._since = None
            elif self._since is None:
                self._since = now
        if now - self._measured > SILENT_S:
            self._since = None
            self._say_that_nothing_is_measured()
        if self._since is None or now - self._since < rule.seconds:
            return None
        return "no GPU reached %g %% for %s in step '%s'" % (rule.below_pct, _minutes(rule.seconds), self._step)

    def _utilisations(self) -> Iterator[float]:
        """Of each new sample the busiest GPU's, percent; nothing of a sample in which one GPU does not report it."""
        lines, self._offset = new_lines(self._telemetry, self._offset, MOST_BYTES)
        for line in lines:
            try:
                gpus = json.loads(line).get("gpus") or []
                busy = [float(gpu["util_pct"]) for gpu in gpus]
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
            if busy:
                yield max(busy)

    def _say_that_nothing_is_measured(self) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                "this machine does not report GPU utilisation, so fcctl cannot end step '%s' for an idle GPU"
                % self._step
            )


def _minutes(seconds: float) -> str:
    return "%g minutes" % (seconds / 60) if seconds >= 60 else "%g s" % seconds
