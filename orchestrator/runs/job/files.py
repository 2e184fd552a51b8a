"""Job files on disk: the workspace's own, and the built-in ones that need none of its files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.base.errors import NotFoundError, did_you_mean
from orchestrator.base.files import line_of, read_bounded
from orchestrator.base.models import Problem
from orchestrator.base.safe_paths import spelled
from orchestrator.runs.job import job as jobs
from orchestrator.runs.job.job import InvalidJob, Job, JobFile

if TYPE_CHECKING:
    from orchestrator.runs.job.job import Step


#: The jobs that work in any workspace: the wheel has them. Others belong to FlashCore's kernels.
BUILT_IN = ("preflight",)
_PACKAGE = Path(__file__).resolve().parents[2]


def example_workspace() -> Path:
    """FlashCore's workspace: this repository, or the copy in an installed wheel."""
    wheel = _PACKAGE / "_data" / "flashcore"
    return wheel if wheel.is_dir() else _PACKAGE.parent


@dataclass(frozen=True)
class JobFiles:
    root: Path
    folder: Path
    #: The searches that steps run; called when a job with one is checked.
    searches: Callable[[], JobSource]

    def names(self) -> list[str]:
        """Every job there is, sorted, whether its file is valid or not."""
        own = {path.stem for path in self.folder.glob("*.yaml") if not path.name.startswith(".") and path.is_file()}
        return sorted(own | {name for name in BUILT_IN if self._built_in(name)})

    def path(self, name: str) -> Path:
        """Returns the file of a job. Raises NotFoundError, with the nearest name."""
        own = self.folder / f"{name}.yaml"
        if _is_plain(name) and own.is_file():
            return own
        built_in = self._built_in(name)
        if built_in:
            return built_in
        names = self.names()
        hint = did_you_mean(name, names)
        if names and "known" not in hint:
            hint += f" (known: {', '.join(names)})"
        raise NotFoundError(f"no job named '{name}'", cause=f"{self._shown(own)} does not exist", hint=hint)

    def is_own(self, name: str) -> bool:
        """Whether the workspace has a file of this job; ``name`` as :meth:`get` takes it."""
        return (self.folder / f"{self._name_of(name)}.yaml").is_file()

    def is_built_in(self, name: str) -> bool:
        return not (self.folder / f"{name}.yaml").is_file() and self._built_in(name) is not None

    def load(self, name: str) -> JobFile:
        """Reads one job as written. Raises NotFoundError, InvalidJob."""
        return self.read(self.path(name), name)

    def read(self, path: Path, name: str | None = None) -> JobFile:
        """A job file anywhere; see :meth:`load`."""
        shown = self._shown(path)
        try:
            text = read_bounded(path)
        except FileNotFoundError:
            raise NotFoundError(f"{shown} does not exist", hint="fcctl jobs ls") from None
        except UnicodeDecodeError as error:
            line = line_of(error)
            raise InvalidJob([Problem(f"{shown}:{line}", "not UTF-8 text")]) from None
        except OSError as error:
            raise InvalidJob([Problem(f"{shown}:1", f"cannot be read: {error.strerror}")]) from error
        return jobs.parse(text, shown, name)

    def get(self, name: str) -> Job:
        """Reads a job with the steps of the jobs it uses; ``name`` may be the path of its file in the jobs' folder.
        Raises NotFoundError, InvalidJob."""
        return jobs.resolve(self._name_of(name), self.load)

    def _name_of(self, name: str) -> str:
        if not name.endswith((".yaml", ".yml")):
            return name
        path = next((p for p in (Path.cwd() / name, self.root / name, self.folder / name) if p.is_file()), None)
        if path is None:
            return Path(name).stem
        path = spelled(path.resolve())
        if path.parent == spelled(self.folder.resolve()) and path.suffix == ".yaml":
            return path.stem
        raise NotFoundError(
            f"{name} is not in this workspace's job folder",
            cause=f"jobs are .yaml files in {self._shown(self.folder)}/",
            hint=f"move it: mv {shlex.quote(name)} {shlex.quote(f'{self._shown(self.folder)}/{path.stem}.yaml')}",
        )

    def built_in(self, name: str) -> Job:
        """Reads the built-in job, even if the workspace has one of that name. Raises NotFoundError."""
        path = self._built_in(name)
        if path is None:
            raise NotFoundError(f"no built-in job named '{name}'", hint="fcctl jobs ls")
        return jobs.resolve(name, lambda _: self.read(path, name))

    def check(self, path: Path) -> list[Problem]:
        """All that is wrong with a job file, including with the jobs it uses."""
        try:
            file = self.read(path, path.stem)
            jobs.resolve(path.stem, lambda name: file if name == path.stem else self.load(name))
        except InvalidJob as error:
            return list(error.problems)
        return [fault for index, step in enumerate(file.job.steps) if step.tune for fault in self._search(file, index)]

    def _search(self, file: JobFile, index: int) -> Iterator[Problem]:
        """What is wrong with the search of a step."""
        try:
            self.searches().get(str(file.job.steps[index].tune))
        except NotFoundError as error:
            yield Problem(file.where(("steps", index, "tune")), error.message, error.hint)
        except InvalidJob as error:
            yield from error.problems

    def _built_in(self, name: str) -> Path | None:
        if name not in BUILT_IN:
            return None
        path = example_workspace() / "jobs" / f"{name}.yaml"
        return path if path.is_file() else None

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and not name.startswith(".") and "/" not in name and "\0" not in name


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
