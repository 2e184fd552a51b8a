"""What the user allows fcctl to do with a machine that runs already.

Apart from the actions of a start, which a run on an SSH host never loads.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Waking:
    """Two ways past a machine whose time limit does not suit the run; neither by default."""

    #: Stop it, and start it with a limit of its own.
    restart: bool = False
    #: Use it though the cloud never stops it: its own shutdown timer is the only fence then.
    allow_unfenced: bool = False
