"""``fcctl tune --adopt``: from a run's search to rows in the workspace's table."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.base.errors import ConfigError, ConflictError, HostFault, NotFoundError
from orchestrator.base.files import alone_in, disk_errors, make_folders, write_atomic
from orchestrator.results import tuning as tune_result
from orchestrator.results.documents import TUNING, WENT_WELL, Document
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord
from orchestrator.results.tuning import TuneResult
from orchestrator.tune import adoption
from orchestrator.tune.adoption import Adoption
from orchestrator.tune.fleet_rules import MEMBER
from orchestrator.tune.search_file import Adopt

if TYPE_CHECKING:
    from fcctl_tune.search.spec import Spec
    from orchestrator.tune.search_file import Search


def proposed(shown: Shown, plan: wire.RunPlan | None, searches: Mapping[str, Search]) -> list[Adoption]:
    """The rows of each search in a run with this ``plan``, if that can be read; ``searches`` are the workspace's, by
    name. Raises NotFoundError: there was no search in it; HostFault: the search cannot have such a row, which would get
    into the workspace and to its command."""
    adoptions = list(_tunings(shown, plan, searches))
    if not adoptions:
        raise _nothing_found(shown.record, plan)
    return adoptions


def _nothing_found(record: RunRecord, plan: wire.RunPlan | None) -> NotFoundError:
    searching = _searching(plan)
    ended = next((step for step in record.steps if step.id in searching), None)
    if ended is None:
        return NotFoundError(
            f"run {record.run_id} contains no search",
            cause="none of its steps wrote a document of kind tuning",
            hint="start a search: fcctl tune NAME --on TARGET",
        )
    status = ended.status.replace("_", " ")
    return NotFoundError(
        f"the search of run {record.run_id} has no results in the store",
        cause=f"its step {ended.id} ended as {status}, without a readable document of its trials",
        hint=f"see its log: fcctl logs {record.run_id}; start a new search: fcctl tune NAME --on {record.target}",
    )


def _searching(plan: wire.RunPlan | None) -> list[str]:
    """The steps that search, rather than help a search elsewhere."""
    return [step.id for step in plan.steps if step.tune is not None] if plan and plan.job != MEMBER else []


def _tunings(shown: Shown, plan: wire.RunPlan | None, searches: Mapping[str, Search]) -> Iterator[Adoption]:
    for document in shown.documents.of(TUNING):
        result = tune_result.read(document.content)
        step = next((step for step in plan.steps if step.id == document.step), None) if plan else None
        spec = adoption.requested(step.tune.spec) if step is not None and step.tune is not None else None
        if spec is not None and result.name != spec.tune:
            raise _untrue(
                document, f"the run's search is {spec.tune}, but the document is of the search {result.name!r}"
            )
        search = searches.get(result.name)
        env = {**plan.env, **(step.env if step else {})} if plan else {}
        declared = {key: value for key, value in env.items() if search is not None and key in search.env}
        made = adoption.of_result(result, shown.record.run_id, declared, spec.held_out if spec else ())
        _believe(made, document, spec)
        status = next((step.status for step in shown.record.steps if step.id == document.step), "")
        if status not in WENT_WELL:
            ended = f"its step ended as {status.replace('_', ' ')}, {_told(result)}"
            made = replace(made, doubts=(ended, *made.doubts))
        yield made


def _told(result: TuneResult) -> str:
    """``with results of 17 of 128 trials: 12 complete, 5 pruned``."""
    each = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in result.states.items())
    of = f" of {result.budget}" if result.budget else ""
    return f"with results of {result.trials}{of} trials" + (f": {each}" if each else "")


def _believe(made: Adoption, document: Document, spec: Spec | None) -> None:
    """Raises: HostFault."""
    for row in made.rows:
        fault = adoption.fault(row, spec.space if spec else None)
        if fault:
            raise _untrue(document, fault)


def _untrue(document: Document, cause: str) -> HostFault:
    return HostFault(
        f"{document.path} cannot be a result of this search",
        cause=cause,
        hint="the machine or a step wrote this file: check it, and search again on a machine that you trust",
    )


COMMAND_TIMEOUT_S = 120.0


def _carried_out(command: str, folder: Path, env: Mapping[str, str], given: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a shell command. What it started ends with it if it takes too long or if we are
    told to stop. Raises OSError, UnicodeDecodeError, subprocess.TimeoutExpired."""
    words = ["bash", "-eo", "pipefail", "-c", command]
    with subprocess.Popen(
        words, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(given.encode(), COMMAND_TIMEOUT_S)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output.decode(), errors.decode("utf-8", "replace")


@dataclass(frozen=True)
class AdoptTable:
    """One such file. ``root`` is the workspace's folder, in which its command runs."""

    root: Path
    adopt: Adopt

    @property
    def file(self) -> str:
        return self.adopt.file

    def read(self) -> str:
        """What is there; empty if there is no file yet. Raises: ConfigError."""
        try:
            return (self.root / self.adopt.file).read_bytes().decode()  # its line ends are its own
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"cannot read {self.adopt.file}",
                cause=str(error),
                hint="move this file away, or set another file in the search's `adopt`",
            ) from error

    def with_rows(self, text: str, taken: Adoption) -> str:
        """``text`` with the rows of ``taken`` in it. Raises ConfigError: the file is no table of ours, or the command
        that writes it fails."""
        if self.adopt.write:
            return self._written(text, taken)
        try:
            return adoption.table(text, taken.search, taken.rows, taken.env)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"fcctl cannot add rows to {self.adopt.file}",
                cause=str(error),
                hint="set another file in `adopt`, or a command that writes this file: adopt: {file: .., write: ..}",
            ) from None

    def _written(self, text: str, taken: Adoption) -> str:
        """What the search's own command makes of it: a JSON object on its input, the file's new content as output."""
        given = {"search": taken.search, "env": dict(taken.env), "rows": [row.as_dict() for row in taken.rows]}
        env = {**os.environ, "FCCTL_PYTHON": sys.executable, **taken.env}
        try:
            code, output, errors = _carried_out(self.adopt.write, self.root, env, json.dumps({**given, "text": text}))
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
            raise self._failed(str(error)) from error
        if code != 0 or not output:
            what = (
                f"exit code {code}" if code else "it printed nothing; it must print the whole new content of the file"
            )
            raise self._failed("\n".join([what, *errors.strip().splitlines()[-3:]]))
        return output

    def _failed(self, cause: str) -> ConfigError:
        return ConfigError(
            f"the command that writes {self.adopt.file} failed", cause=cause, hint=f"run it by hand: {self.adopt.write}"
        )

    def write(self, text: str, instead_of: str) -> None:
        """``instead_of`` is what was there when somebody agreed to ``text``. Raises ConflictError: somebody else has
        changed it since; FcctlError: it cannot be written."""
        path = (self.root / self.adopt.file).resolve()  # a link stays a link
        with disk_errors(f"write {self.adopt.file}", path.parent):
            make_folders(path.parent)
            with alone_in(path.parent):
                if self.read() != instead_of:
                    hint = "run the same command again: it shows the new difference"
                    raise ConflictError(f"{self.adopt.file} changed after fcctl showed the difference", hint=hint)
                write_atomic(path.parent, path.name, text.encode())
