"""Composition root: the one place that knows which adapter stands behind which port."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.adapters.hosts import Connector
    from orchestrator.cli.context import Cli
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
