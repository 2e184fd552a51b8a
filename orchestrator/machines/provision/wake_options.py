"""What the user allows fcctl beforehand: to do with a machine that runs already, and to pay for one.

Apart from the actions of a start, which a run on an SSH host never loads.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StartOptions:
    """Two ways past a machine whose time limit does not suit the run; neither by default."""

    #: Stop it, and start it with a limit of its own.
    restart: bool = False
    #: Use it though the cloud never stops it: its own shutdown timer is the only fence then.
    allow_unfenced: bool = False


@dataclass(frozen=True)
class AcceptedPrices:
    """Prices that a plan is made with only if the user says so; neither by default."""

    #: The price of the machine that is there, if it is dearer than the one that its target means.
    own: bool = False
    #: List prices that are older than a year.
    old: bool = False
