"""The clock as an interface, so that virtual time can stand in for the real one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Epoch seconds."""

    def monotonic(self) -> float: ...

    def elapsed(self) -> float:
        """Seconds since some moment, those that this computer slept too. Setting its clock does not move it."""

    def sleep(self, seconds: float) -> None: ...
