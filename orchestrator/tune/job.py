"""A search as a job of one step: what ``fcctl tune`` runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.base.models import Problem
from orchestrator.runs.job.job import Gate, Job, Step
from orchestrator.tune.fleet.rules import SCHEDULER_FILE
from orchestrator.tune.search_file import InvalidSearch, Search

#: Of the job, and so in its runs' ids: ``last:tune``.
NAME = "tune"
#: Starts a step's search.
COMMAND = '"$FCCTL_TUNE_PYTHON" "$FCCTL_TUNE" run "$FCCTL_TUNE_SPEC" --out "$FCCTL_ARTIFACTS/tune"'


@dataclass(frozen=True)
class SearchOptions:
    """The command line's options of a search; None: as in its file."""

    trials: int | None = None
    elites: int | None = None
    strategy: str = "auto"
    #: The strategy of a second search at the same budget, to compare with.
    control: str | None = None
    cases: Sequence[str] = ()
    seed: int | None = None
    timeout_s: float = 3600.0
    #: The leader's name among several machines.
    host: str | None = None


def narrowed(search: Search, options: SearchOptions) -> Search:
    """``search`` with the numbers and cases of the command line. Raises: InvalidSearch."""
    from fcctl_tune.errors import SpecError

    try:
        return replace(search, spec=search.spec.narrowed(options.trials, options.elites, options.cases))
    except SpecError as error:
        raise InvalidSearch([Problem("the command line", f"{error.key}: {error.problem}")]) from None


def job_of(search: Search, options: SearchOptions) -> Job:
    """The job that carries ``search`` out."""
    words = ["--strategy", options.strategy]
    words += ["--compare", options.control] if options.control else []
    words += ["--seed", str(options.seed)] if options.seed is not None else []
    fleet = f' --fleet "$FCCTL_RUN_DIR/fleet/{SCHEDULER_FILE}" --host {options.host}' if options.host else ""
    hint = "no configuration passed build, check and measurement: see the log, and tune/tune_log.csv for each trial"
    step = Step(
        id=NAME, run=f"{COMMAND} {shlex.join(words)}{fleet}", tune=search.name, timeout=options.timeout_s,
        activity="tune", exit_codes={"69": "unavailable"},
        gates=[Gate(expr="tuning.summary.states.complete >= 1", hint=hint)],
    )  # fmt: skip
    title = f"Tune {search.name}" + (f": {search.spec.title}" if search.spec.title else "")
    return Job(job=NAME, title=title[:200], env=dict(search.env), steps=[step])
