"""``fcctl tune --adopt``: what of a run's search may come into a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from orchestrator.domain import adoption, tune_result
from orchestrator.domain.adoption import Adoption
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.errors import NotFoundError
from orchestrator.workflows.documents import Document
from orchestrator.workflows.results import Shown


def proposed(shown: Shown, variables: Mapping[str, Sequence[str]]) -> list[Adoption]:
    """The rows of each search in a run.

    Args:
        variables: what the file of each search declares as its environment.

    Raises:
        NotFoundError: there was no search in it.
    """
    found = list(_tunings(shown, variables))
    for document in shown.documents.of("metrics"):
        found += _sweep(shown, document)
    if not found:
        raise NotFoundError(
            f"run {shown.record.run_id} has no search in it",
            cause="none of its steps left a document of kind tuning",
            hint="fcctl tune NAME --on TARGET makes one",
        )
    return found


def _tunings(shown: Shown, variables: Mapping[str, Sequence[str]]) -> Iterator[Adoption]:
    for document in shown.documents.of("tuning"):
        result = tune_result.read(document.content)
        declared = variables.get(result.name, ())
        env = {key: value for key, value in _environment(shown.folder, document.step).items() if key in declared}
        made = adoption.of_result(result, shown.record.run_id, env)
        status = next((step.status for step in shown.record.steps if step.id == document.step), "")
        if status not in ("passed", "warned"):
            made = replace(made, doubts=(f"its step ended as {status.replace('_', ' ')}", *made.doubts))
        yield made


def _sweep(shown: Shown, document: Document) -> list[Adoption]:
    """Rows that a step itself chose, if the document has some; it names the search that they belong to."""
    name, rows = document.content.get("tune"), document.content.get("rows")
    if not isinstance(name, str) or not isinstance(rows, list):
        return []
    try:
        return [replace(one, search=name) for one in adoption.of_sweep(rows, shown.record.run_id)]
    except (LookupError, TypeError, ValueError) as error:
        raise NotFoundError(
            f"the rows of {document.path} cannot be read",
            cause=f"{type(error).__name__}: {error}",
            hint="another version wrote them: run it again",
        ) from None


def _environment(folder: Path, step: str) -> dict[str, str]:
    """What a step of the run had in its environment, by the plan; empty if that cannot be read."""
    try:
        plan = SavedPlan.model_validate(json.loads((folder / "plan.json").read_bytes())).plan
    except (OSError, ValueError, ValidationError):
        return {}
    own = next((dict(spec.env) for spec in plan.steps if spec.id == step), {})
    return {**plan.env, **own}
