"""What the pages may use of the rest; ``orchestrator/app.py`` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.runs.services import Services
from orchestrator.workspace.config import Config


@dataclass(frozen=True)
class Backend:
    """One workspace. Everything that runs, spends or takes memory is a child process: ``fcctl`` itself."""

    root: Path
    config: Config
    services: Services
    #: The command that runs fcctl in this workspace; arguments follow.
    fcctl: Sequence[str]
    version: str
