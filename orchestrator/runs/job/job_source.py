"""What jobs need of the searches that their steps run; :mod:`orchestrator.tune` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrator.runs.job.job import Job, Step


class StepSearch(Protocol):
    """A search that a step runs."""

    def check_variant(self, job: Job, step: Step, settings: Mapping[str, str]) -> None:
        """Raises UsageError if the command line, JobError if the job's file, names an unknown variant."""

    def to_json(self, env: Mapping[str, str]) -> str:
        """What the host gets; ``env`` is the environment that its step will have."""


class JobSource(Protocol):
    """Searches by name."""

    def get(self, name: str) -> StepSearch:
        """Returns the search called ``name``. Raises NotFoundError, InvalidJob."""
