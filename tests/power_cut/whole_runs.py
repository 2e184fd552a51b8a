"""The laptop loses its power in the middle of true workflows: the simulation's episodes, on a disk that forgets.

What must hold is what must hold after a kill: no machine left on unknown, no result lost, no step run twice, nothing
that was billed missing in the ledger. So the journal's line is really on disk before the deed that it names.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.power_cut.disk import Tree
from tests.power_cut.play import Recorder, folder
from tests.simulation.episode import Episode
from tests.simulation.schedule import Schedule, draw
from tests.simulation.world import Fault

#: How many are played by default, from seed 0.
EPISODES = 200
#: Faults that need a second process beside the one whose power is cut.
IN_COMPANY = ("other", "beside", "abroad")
#: Commands of several processes: the power would have to fail for all of them.
OF_SEVERAL = ("rush", "crowd", "tick", "serve")


class PowerCutEpisode(Episode):
    _recorder: Recorder
    _left: Tree | None = None

    def play(self) -> None:
        self.world.on["power"] = self._lose_power
        self._recorder = Recorder(self.root, 0)
        with self._recorder.recording():
            super().play()

    def _lose_power(self) -> None:
        self._left = self._recorder.left(f"{self.schedule.seed} {self.world.effects}")

    def check(self, services: Any) -> None:
        """After each command, whose process is dead by then."""
        if self._left is not None:
            self._recorder.restore(self._left, self.root)
            self._left = None
        super().check(services)


def power_cut_schedule(seed: int) -> Schedule:
    """The simulation's schedule of that seed, with one or two power cuts."""
    chance, drawn = random.Random(f"power {seed}"), draw(seed)
    faults = [fault for fault in drawn.faults if fault.kind not in IN_COMPANY]
    cuts = [Fault(chance.randint(1, 220), "power") for _ in range(chance.choice((1, 1, 2)))]
    commands = tuple("run" if command in OF_SEVERAL else command for command in drawn.commands)
    return replace(drawn, faults=tuple(sorted([*faults, *cuts])), commands=commands)


def play_power_cut(seed: int) -> str | None:
    """None, or what was violated, and how it came to that."""
    with folder() as root:
        root.mkdir()
        episode = PowerCutEpisode(power_cut_schedule(seed), root)
        try:
            episode.play()
        except Exception as error:
            trace = "\n  ".join(episode.world.trace[-40:])
            return f"{type(error).__name__}: {error}\n{episode.schedule}\n  {trace}"
    return None
