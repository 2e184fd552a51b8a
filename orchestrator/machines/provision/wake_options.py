"""Options that the user gives in advance: for a machine that is already on, and for prices.

In a module of its own, because a run on an SSH host does not load the rest.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StartOptions:
    """Two options for a running machine whose time limit does not suit the run; off by default."""

    #: Restart it to set its max run duration.
    restart: bool = False
    #: Use it although the cloud never stops it: only its shutdown timer does.
    allow_unfenced: bool = False


@dataclass(frozen=True)
class AcceptedPrices:
    """Prices that a plan uses only if the user accepts them; off by default."""

    #: The price of the existing machine, if it costs more than the target's.
    own: bool = False
    #: List prices older than a year.
    old: bool = False
