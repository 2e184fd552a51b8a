"""``fcctl tune --adopt``: what of a run's search may come into a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fcctl_remote import wire
from orchestrator.base.errors import HostFault, NotFoundError
from orchestrator.base.text import json_text
from orchestrator.results import tuning as tune_result
from orchestrator.results.documents import TUNING, WENT_WELL, Document
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord
from orchestrator.results.tuning import TuneResult
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.tune import adoption
from orchestrator.tune.adoption import Adoption, RequestedSearch
from orchestrator.tune.fleet.rules import MEMBER

if TYPE_CHECKING:
    from orchestrator.tune.search_file import Search


def proposed(shown: Shown, searches: Mapping[str, Search]) -> list[Adoption]:
    """The rows of each search in a run.

    Args:
        searches: those of the workspace, by name.

    Raises:
        NotFoundError: there was no search in it.
        HostFault: a row is none that the search could have come to. What is in rows goes into a file of the workspace
            and to its command, so that no insisting helps.
    """
    plan = _plan(shown.folder)
    adoptions = list(_tunings(shown, plan, searches))
    for document in shown.documents.of("metrics"):
        adoptions += _sweep(shown, document, searches)
    if not adoptions:
        raise _nothing_found(shown.record, plan)
    return adoptions


def _nothing_found(record: RunRecord, plan: wire.RunPlan | None) -> NotFoundError:
    searching = _searching(plan)
    ended = next((step for step in record.steps if step.id in searching), None)
    if ended is None:
        return NotFoundError(
            f"run {record.run_id} has no search in it",
            cause="none of its steps left a document of kind tuning",
            hint="fcctl tune NAME --on TARGET makes one",
        )
    status = ended.status.replace("_", " ")
    return NotFoundError(
        f"nothing that the search of run {record.run_id} found is here",
        cause=f"its step {ended.id} ended as {status}, and left no document of its trials that can be read",
        hint=f"how far it came: fcctl logs {record.run_id}; a new one: fcctl tune NAME --on {record.target}",
    )


def _searching(plan: wire.RunPlan | None) -> list[str]:
    """The steps that search, rather than help a search elsewhere."""
    return [step.id for step in plan.steps if step.tune is not None] if plan and plan.job != MEMBER else []


def _tunings(shown: Shown, plan: wire.RunPlan | None, searches: Mapping[str, Search]) -> Iterator[Adoption]:
    for document in shown.documents.of(TUNING):
        result = tune_result.read(document.content)
        step = next((step for step in plan.steps if step.id == document.step), None) if plan else None
        requested = RequestedSearch.read(step.tune.spec) if step is not None and step.tune is not None else None
        if requested is not None and result.name != requested.search:
            raise _untrue(
                document, f"it was asked to search {requested.search}, and says that it searched {result.name!r}"
            )
        search = searches.get(result.name)
        env = {**plan.env, **(step.env if step else {})} if plan else {}
        declared = {key: value for key, value in env.items() if search is not None and key in search.env}
        made = adoption.of_result(result, shown.record.run_id, declared, requested.held_out if requested else ())
        _believe(made, document, requested)
        status = next((step.status for step in shown.record.steps if step.id == document.step), "")
        if status not in WENT_WELL:
            ended = f"its step ended as {status.replace('_', ' ')}, {_told(result)}"
            made = replace(made, doubts=(ended, *made.doubts))
        yield made


def _told(result: TuneResult) -> str:
    """``with 17 of 128 trials told: 12 complete, 5 pruned``."""
    each = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in result.states.items())
    of = f" of {result.budget}" if result.budget else ""
    return f"with {result.trials}{of} trials told" + (f": {each}" if each else "")


def _sweep(shown: Shown, document: Document, searches: Mapping[str, Search]) -> list[Adoption]:
    """Rows that a step itself chose, if the document has some; it names the search that they belong to."""
    name, rows = document.content.get("tune"), document.content.get("rows")
    if not isinstance(name, str) or not isinstance(rows, list):
        return []
    try:
        adoptions = [replace(one, search=name) for one in adoption.of_sweep(rows, shown.record.run_id)]
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise NotFoundError(
            f"the rows of {document.path} cannot be read",
            cause=f"{type(error).__name__}: {error}",
            hint="another version wrote them: run it again",
        ) from None
    for one in adoptions:
        _believe(one, document, None)
        for key, value in one.env.items():
            if name in searches and not searches[name].may_have(key, value):
                raise _untrue(document, f"{key}={value!r} is nothing that {searches[name].file} declares")
    return adoptions


def _believe(made: Adoption, document: Document, requested: RequestedSearch | None) -> None:
    """Raises: HostFault."""
    for row in made.rows:
        fault = adoption.fault(row, requested.space if requested else None)
        if fault:
            raise _untrue(document, fault)


def _untrue(document: Document, cause: str) -> HostFault:
    return HostFault(
        f"{document.path} is not what the search can have found",
        cause=cause,
        hint="the machine, or a step on it, wrote this: look at the file, and search again on a machine that you trust",
    )


def _plan(folder: Path) -> wire.RunPlan | None:
    """What the run was to do, as this computer kept it; None if that cannot be read."""
    try:
        return SavedPlan.model_validate(json_text.loads((folder / "plan.json").read_bytes())).plan
    except (OSError, ValueError, ValidationError):
        return None
