"""The workspace: the nearest parent folder with a fcctl.toml, its configuration and its jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.errors import ConfigError, NotFoundError, nearest
from orchestrator.base.files import line_of, read_bounded, user_folder
from orchestrator.base.run_id import slug
from orchestrator.machines.targets import Target
from orchestrator.workspace import config
from orchestrator.workspace.root import FILE_NAME, find_root

if TYPE_CHECKING:
    from orchestrator.money.prices.table import PriceTable
    from orchestrator.runs.job.files import JobFiles
    from orchestrator.runs.job.job import Job
    from orchestrator.runs.progress import Progress
    from orchestrator.runs.services import Services
    from orchestrator.tune.files import TuneFiles
    from orchestrator.tune.search_file import Search


@dataclass(frozen=True)
class Workspace:
    root: Path
    loaded: config.Loaded

    @property
    def config(self) -> config.Config:
        return self.loaded.config

    @property
    def results_dir(self) -> Path:
        return self.root / Path(self.config.project.results).expanduser()

    @property
    def tree_name(self) -> str:
        """The name of its source folder on a machine."""
        from orchestrator.runs.job.prepare import tree_name

        return tree_name(self.config.project.name, self.root)

    @property
    def label(self) -> str:
        """The same as the label of a cloud machine."""
        return slug(self.tree_name)[:63]

    def at(self, root: Path) -> Workspace:
        """The same configuration with the jobs and searches of another folder, a copy of the workspace."""
        return replace(self, root=root)

    @cached_property
    def jobs(self) -> JobFiles:
        """The jobs of this workspace and the built-in ones."""
        from orchestrator.runs.job.files import JobFiles  # imports a YAML parser

        folder = self.root / Path(self.config.project.jobs).expanduser()
        return JobFiles(self.root, folder, lambda: self.searches)

    @cached_property
    def searches(self) -> TuneFiles:
        """The searches of this workspace."""
        from orchestrator.tune.files import TuneFiles

        return TuneFiles(self.root)

    def with_searches(self, job: Job, steps: str | None = None) -> tuple[Job, dict[str, Search]]:
        """``job`` with what the searches of its steps declare, and those searches by name; of ``steps``, if given.
        Raises NotFoundError, InvalidJob: a search is not there, or wrong; UsageError: there are no such steps."""
        if not any(step.tune for step in job.steps):
            return job, {}
        from orchestrator.runs.job.plan import slice_steps
        from orchestrator.tune.search_file import with_searches

        part = slice_steps(job.steps, steps)
        searches = {name: self.searches.get(name) for name in dict.fromkeys(s.tune for s in part) if name is not None}
        return with_searches(job, searches), searches

    def progress(self, services: Services) -> Progress:
        """How far the project is: its phases are those of ``[phases]``, else the jobs called ``phase...``. Planned
        hours are at the price of the dearest target. Raises NotFoundError, InvalidJob: there is no phase, or the job
        of one is not there, or wrong."""
        from orchestrator.money.prices.rates import usd_per_hour
        from orchestrator.runs.cost.estimate import as_last_seen
        from orchestrator.runs.job.phase import Phase
        from orchestrator.runs.progress import progress

        given = self.config.phases or {name: Phase() for name in self.jobs.names() if name.startswith("phase")}
        if not given:
            raise NotFoundError(
                "this workspace has no phases",
                cause="fcctl.toml has no [phases.NAME], and no job is called phase...",
                hint="add [phases.NAME] with the name of a job: fcctl help configuration",
            )
        prices = []
        for target in (self.config.targets[name] for name in self.config.configured):
            with suppress(ConfigError):  # a cloud machine without a price
                prices.append(usd_per_hour(target, as_last_seen(services, target, self.config.budget)))
        jobs = {name: (phase, self.jobs.get(phase.job or name)) for name, phase in given.items()}
        return progress(services, jobs, max(prices, default=0.0) or None)

    def machine(self, name: str | None) -> Target:
        """As :meth:`target`; or one of the machines that ``--hosts N`` makes of one, ``l4-2``. Raises as that."""
        from orchestrator.tune.fleet_rules import machine_of

        return machine_of(self.config.targets, name or "") or self.target(name)

    def target(self, name: str | None) -> Target:
        """The target called ``name``, else the machine that ~/.ssh/config calls so.

        None means the only configured one, else ``local``.

        Raises NotFoundError: neither knows the name; the nearest of both is the hint.
        """
        try:
            return self.config.target_or_default(name)
        except NotFoundError as error:
            from orchestrator.machines.connect.ssh.config import aliases

            names = aliases()
            if name in names:
                return self.config.target(f"ssh:{name}")
            near = nearest(name or "", names)
            if near and "did you mean" not in (error.hint or ""):
                error.hint = f"did you mean '{near}' of ~/.ssh/config? ({error.hint})"
            raise


def find_workspace(start: Path, environ: Mapping[str, str] | None = None) -> Workspace:
    """The workspace around ``start``, its configuration valid; ``environ`` is ``os.environ`` if absent. Raises
    NotFoundError: no fcctl.toml there or above; ConfigError: it, the user's file or a ``FCCTL_*`` variable is wrong;
    with file and line."""
    root = find_root(start)
    if not root.as_posix().isascii() and any("\udc80" <= letter <= "\udcff" for letter in root.as_posix()):
        # Documents, databases and terminals need text.
        raise ConfigError(
            f"the workspace's path is not valid UTF-8: {root.as_posix()!a}",
            cause="a folder's name is not UTF-8, or the locale (LC_ALL) is not UTF-8",
            hint="rename the folder, or: export LC_ALL=C.UTF-8",
        )
    environ = os.environ if environ is None else environ
    files = [layer for path in (user_config_file(environ), root / FILE_NAME) if (layer := _read(path, root))]
    targets = {*config.BUILT_IN_TARGETS, *(name for layer in files for name in config.target_names(layer))}
    loaded = config.combine(
        [*files, config.env_layer(environ, sorted(targets))], default_name=slug(root.name)[:48].strip("-")
    )
    budget = loaded.config.budget.with_prices(cache(_prices))
    return Workspace(root, replace(loaded, config=loaded.config.model_copy(update={"budget": budget})))


def _prices() -> PriceTable:
    from orchestrator.providers.registry import price_table  # not needed for SSH hosts

    return price_table()


def user_config_file(environ: Mapping[str, str]) -> Path:
    """Where the user's own settings are: under XDG_CONFIG_HOME if set, else where the platform puts them."""
    if environ.get("XDG_CONFIG_HOME"):
        return Path(environ["XDG_CONFIG_HOME"]) / "fcctl" / "config.toml"
    xdg = Path.home() / ".config" / "fcctl" / "config.toml"
    if sys.platform != "darwin" or xdg.exists():
        return xdg
    return user_folder("config") / "config.toml"


def _read(path: Path, root: Path) -> config.Layer | None:
    name = path.name if path.parent == root else str(path)
    try:
        return config.read_layer(read_bounded(path), name)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        line = line_of(error)
        raise ConfigError(f"{name}:{line}: not UTF-8 text", hint="save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {name}", cause=error.strerror, hint=f"ls -l {path}") from error
