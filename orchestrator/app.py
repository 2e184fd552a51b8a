"""Composition root: the one place that knows which adapter stands behind which port."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.adapters.firings import FiringRecords
    from orchestrator.adapters.hosts import Connector
    from orchestrator.adapters.workspace import Workspace
    from orchestrator.cli.context import Cli
    from orchestrator.domain.schedule import Firing
    from orchestrator.domain.target import Target
    from orchestrator.ports import Observer, Services
    from orchestrator.workflows.link import Link


class SystemClock:
    """The real one."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def observer(cli: Cli) -> Observer:
    """Progress on a stderr terminal; plain lines otherwise; nothing but notes with ``--quiet``.

    With ``--json`` nothing, unless ``-v`` asks for it: there, standard error is for the one error object.
    """
    from orchestrator.reports import live

    if cli.json and not cli.verbose:
        return live.Silent()
    if cli.quiet:
        return live.Quiet(sys.stderr)
    if sys.stderr.isatty() and not cli.verbose:
        return live.Live(cli.err)
    return live.Plain(sys.stderr, verbose=cli.verbose > 0)


@contextmanager
def opened(cli: Cli, *, quiet: bool = False) -> Iterator[Services]:
    """The workspace's services, for one command."""
    with observing(cli, quiet=quiet) as watcher:
        yield services(cli, watcher)


@contextmanager
def observing(cli: Cli, *, quiet: bool = False) -> Iterator[Observer]:
    """The observer of one command, which leaves the terminal as it was."""
    from orchestrator.reports import live

    watcher = live.Quiet(sys.stderr) if quiet and not cli.json else observer(cli)
    try:
        yield watcher
    finally:
        watcher.close()


def connector() -> Connector:
    """The way to all machines."""
    from orchestrator.adapters.hosts import Connector

    return Connector()


def link(hosts: Connector, target: Target, watcher: Observer) -> Link:
    """A link to ``target``, ready to be opened.

    With it come only the modules that logging in needs: whatever else the command imports can be imported while the
    host takes its time.
    """
    from orchestrator.workflows.link import Link

    hosts.load(target)
    return Link(hosts, target, SystemClock(), watcher)


def services(cli: Cli, watcher: Observer, hosts: Connector | None = None) -> Services:
    """All that a workflow may touch, wired to the real world."""
    from orchestrator.adapters.git_source import GitSource
    from orchestrator.adapters.store import FileStore
    from orchestrator.ports import Services

    workspace, clock = cli.workspace(), SystemClock()
    return Services(
        clock=clock,
        hosts=hosts or connector(),
        store=FileStore(workspace.results_dir, clock),
        source=GitSource(),
        observer=watcher,
    )


def terminal_command(target: Target, run_id: str) -> list[str]:
    """The command that puts this terminal into the run's tmux session.

    Raises:
        ConfigError: the target has no terminal to attach to.
    """
    from orchestrator.adapters.hosts.interactive import attach_argv

    return attach_argv(target, run_id)


# ----------------------------------------------------------------------------------------------------------- schedules
def firings(workspace: Workspace) -> FiringRecords:
    """What became of each time that a schedule of this workspace was due."""
    from orchestrator.adapters.firings import FiringRecords

    return FiringRecords(workspace.results_dir)


def add_schedule(workspace: Workspace, name: str, values: Mapping[str, Any]) -> None:
    """Write ``[schedules.NAME]`` into fcctl.toml."""
    from orchestrator.adapters import config_file
    from orchestrator.adapters import workspace as files

    config_file.add_table(workspace.root / files.FILE_NAME, ("schedules", name), values)


def remove_schedule(workspace: Workspace, name: str) -> None:
    """Take ``[schedules.NAME]`` out of fcctl.toml. Raises NotFoundError if it is not there."""
    from orchestrator.adapters import config_file
    from orchestrator.adapters import workspace as files

    config_file.remove_table(workspace.root / files.FILE_NAME, ("schedules", name))


def schedule_files(workspace: Workspace) -> tuple[str, dict[str, str]]:
    """Which scheduler this computer has, and what it would be given."""
    from orchestrator.adapters import os_scheduler

    kind = os_scheduler.detect()
    return kind, os_scheduler.render(kind, os_scheduler.Entry.of(workspace.root))


def install_schedules(workspace: Workspace, *, remove: bool) -> tuple[str, list[str]]:
    """Have the computer's scheduler call the tick, or no longer; what was written or removed."""
    from orchestrator.adapters import os_scheduler

    kind = os_scheduler.detect()
    change = os_scheduler.uninstall if remove else os_scheduler.install
    return kind, change(kind, os_scheduler.Entry.of(workspace.root))


def schedule_installed(workspace: Workspace) -> bool:
    """Whether the computer's scheduler calls the tick of this workspace."""
    from orchestrator.adapters import os_scheduler
    from orchestrator.errors import FcctlError

    try:
        return os_scheduler.installed(os_scheduler.detect(), os_scheduler.Entry.of(workspace.root))
    except FcctlError:
        return False


def tick(cli: Cli) -> list[tuple[str, Firing]]:
    """Decide on what is due, launch it, and complete the runs that a dead controller left."""
    from orchestrator.adapters.own_process import launch
    from orchestrator.workflows import resume, schedule

    workspace = cli.workspace()

    def start(name: str, firing: Firing) -> None:
        launch(workspace.root, ["schedule", "fire", name, "--due", repr(firing.due)], book.log_path(name))

    book = firings(workspace)
    decided = schedule.tick(workspace.config.schedules, book, workspace.config.budget, SystemClock(), start)
    with opened(cli, quiet=True) as found:
        left = [run.run_id for run in resume.known(found) if run.state == "interrupted"]
        if left:
            resume.settle(found, left)
    return decided


def fire(cli: Cli, name: str, due: float) -> Firing:
    """One firing of a schedule, from its start to its record.

    Raises:
        NotFoundError: it was taken out of fcctl.toml meanwhile.
    """
    from orchestrator.adapters.own_process import run_job
    from orchestrator.errors import NotFoundError
    from orchestrator.workflows import schedule

    workspace = cli.workspace()
    found = workspace.config.schedules.get(name)
    if found is None:
        raise NotFoundError(f"there is no schedule '{name}' any more", hint="fcctl schedule ls")
    return schedule.fire(name, found, due, firings(workspace), SystemClock(), run_job(workspace.root))
