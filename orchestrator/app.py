"""Composition root: the one place that knows which adapter stands behind which port."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.adapters.git_source import GitSource
from orchestrator.adapters.hosts import Connector, attach_argv
from orchestrator.adapters.store import FileStore
from orchestrator.domain.target import Target
from orchestrator.ports import Observer, Services

if TYPE_CHECKING:
    from orchestrator.cli.context import Cli


class SystemClock:
    """The real one."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def observer(cli: Cli) -> Observer:
    """Progress on a stderr terminal; plain lines otherwise; nothing but notes with ``--quiet``."""
    from orchestrator.reports import live

    if cli.quiet:
        return live.Quiet(sys.stderr)
    if sys.stderr.isatty() and not cli.verbose and not cli.json:
        return live.Live(cli.err)
    return live.Plain(sys.stderr, verbose=cli.verbose > 0)


@contextmanager
def opened(cli: Cli, *, quiet: bool = False) -> Iterator[Services]:
    """The workspace's services, for one command."""
    from orchestrator.reports import live

    watcher = live.Quiet(sys.stderr) if quiet else observer(cli)
    try:
        yield services(cli, watcher)
    finally:
        watcher.close()


def services(cli: Cli, watcher: Observer) -> Services:
    """All that a workflow may touch, wired to the real world."""
    workspace, clock = cli.workspace(), SystemClock()
    return Services(
        clock=clock,
        hosts=Connector(),
        store=FileStore(workspace.results_dir, clock),
        source=GitSource(),
        observer=watcher,
    )


def terminal_command(target: Target, run_id: str) -> list[str]:
    """The command that puts this terminal into the run's tmux session.

    Raises:
        ConfigError: the target has no terminal to attach to.
    """
    return attach_argv(target, run_id)
