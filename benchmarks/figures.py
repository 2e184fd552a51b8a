"""What a benchmark found, against what the project promises."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured value; without ``target`` it only says what the others are made of."""

    name: str
    measured: float
    unit: str
    target: float | None = None
    at_least: bool = False  # else at most

    @property
    def ok(self) -> bool:
        if self.target is None:
            return True
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    def row(self) -> tuple[str, str, str, str]:
        if self.target is None:
            return self.name, self._shown(self.measured), "", ""
        bound = f"{'≥' if self.at_least else '≤'} {self.target:g} {self.unit}"
        return self.name, self._shown(self.measured), bound, "ok" if self.ok else "MISSED"

    def _shown(self, value: float) -> str:
        digits = 3 if value < 1 else 2 if value < 100 else 0
        return f"{value:.{digits}f} {self.unit}"


def as_installed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that is timed.

    pip compiles what it installs. A tree that is worked on is compiled when it is imported first, unless it is
    forbidden that this is kept: each command would then compile all of fcctl anew.
    """
    return {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def machine() -> str:
    """What the figures depend on."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{os.cpu_count()} CPUs, load average {load}, Python {sys.version.split()[0]} on {sys.platform}"


def report(figures: Sequence[Figure]) -> int:
    """Print one table; 1 if a target was missed."""
    rows = [("figure", "measured", "target", ""), *(figure.row() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, measured, target, verdict in rows:
        line = f"{name:<{widths[0]}}  {measured:>{widths[1]}}  {target:>{widths[2]}}  {verdict}"
        print(line.rstrip())
    return 0 if all(figure.ok for figure in figures) else 1
