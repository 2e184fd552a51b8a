"""What the pages may use of the rest; ``orchestrator/app.py`` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.domain.config import Config
from orchestrator.domain.measurement import Measurement
from orchestrator.ports import Services


class Measurements(Protocol):
    """The newest first; filters are those of the store's index."""

    def __call__(self, *, limit: int = 1000, **filters: str | None) -> list[Measurement]: ...


@dataclass(frozen=True)
class Backend:
    """One workspace. Everything that runs, spends or takes memory is a child process: ``fcctl`` itself."""

    root: Path
    config: Config
    services: Services
    measurements: Measurements
    #: The command that runs fcctl in this workspace; arguments follow.
    fcctl: Sequence[str]
    version: str
