"""Where a worker's machine builds, if it is another than the one that searches: its own folders stand in."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Dict, Optional

from fcctl_tune.trial.tasks import TrialSpec

#: Tells workers their :class:`BuildDirectory`, as JSON.
VARIABLE = "FCCTL_TUNE_SITE"


@dataclass(frozen=True)
class BuildDirectory:
    """``folder`` is for builds and logs; ``source`` names the content of ``cwd`` that is built from."""

    cwd: str
    folder: str
    source: str

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @property
    def ledger(self) -> str:
        """A line for each task that was carried out: its name, and seconds."""
        return os.path.join(self.folder, "done.log")


def here() -> Optional[BuildDirectory]:
    """This worker's, if it has its own."""
    text = os.environ.get(VARIABLE)
    return BuildDirectory(**json.loads(text)) if text else None


def at_home(trial_spec: TrialSpec, place: Optional[BuildDirectory]) -> TrialSpec:
    """``trial_spec`` as it is carried out at ``place``."""
    return trial_spec if place is None else dataclasses.replace(trial_spec, **dataclasses.asdict(place))


def account(place: Optional[BuildDirectory], name: str, seconds: float) -> None:
    """Note what was done; workers write at the same time, a line each."""
    if place is not None:
        with contextlib.suppress(OSError), open(place.ledger, "a", encoding="ascii") as stream:
            stream.write("%s %.3f\n" % (name, seconds))


def accounted(ledger: str) -> Dict[str, float]:
    """How many tasks of each name, and all their seconds together."""
    totals: Dict[str, float] = {"builds": 0, "timings": 0, "busy_s": 0.0}
    with contextlib.suppress(OSError), open(ledger, encoding="ascii") as stream:
        for line in stream:
            name, _, seconds = line.partition(" ")
            totals["builds" if name == "build" else "timings"] += 1
            totals["busy_s"] = round(totals["busy_s"] + float(seconds), 3)
    return totals
