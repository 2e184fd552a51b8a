"""Composition root: the one module that knows which implementation stands behind which interface."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from orchestrator.base.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from orchestrator.base.clock import Clock
    from orchestrator.base.observer import Observer
    from orchestrator.machines.cache import FileMachineCache
    from orchestrator.machines.cloud import Hardware
    from orchestrator.machines.cloud_api import Clouds
    from orchestrator.machines.connect.connector import Connector
    from orchestrator.machines.connect.reconnect import ReconnectingHost
    from orchestrator.machines.connect.ssh.terminal import PinnedMachine
    from orchestrator.machines.host_api import Bundle, Bundles
    from orchestrator.machines.targets import CloudTarget, SandboxTarget, Target
    from orchestrator.money.book import SpendingBook
    from orchestrator.money.prices.machine import MachinePrice
    from orchestrator.money.prices.table import PriceTable
    from orchestrator.money.reservations import Scope
    from orchestrator.money.usage_recorder import UsageRecorder
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.machine.left_on import MachinesLeftOn
    from orchestrator.runs.services import Services
    from orchestrator.schedules.due import Firing
    from orchestrator.schedules.fire import Scheduler
    from orchestrator.views.dashboard.backend import Backend
    from orchestrator.views.dashboard.server import Server
    from orchestrator.workspace.workspace import Workspace


class Options(Protocol):
    """The options of a command: verbosity, format and streams."""

    @property
    def json(self) -> bool: ...

    @property
    def quiet(self) -> bool: ...

    @property
    def verbose(self) -> int: ...

    @property
    def err(self) -> Console:
        """Standard error."""

    @property
    def left_on(self) -> MachinesLeftOn:
        """The machines that the command leaves on."""

    def uses(self, services: Services) -> None:
        """Notes the services that the command uses."""

    def workspace(self) -> Workspace:
        """The workspace, read once per command. Raises NotFoundError without fcctl.toml, ConfigError if it is wrong."""


def report_files(record: RunRecord, folder: Path, settings: Mapping[str, str]) -> Mapping[str, bytes]:
    """The files of a run's report."""
    from orchestrator.views.report.run_files import files

    return files(record, folder, settings)


def recover_runs(services: Services, run_ids: Sequence[str]) -> None:
    """Complete those of these runs that have ended; what that needs is loaded only where there are some."""
    from orchestrator.hosts.recover import recover

    recover(services, run_ids)


def recover_sessions(services: Services) -> None:
    """End the sessions that are over; what that needs is loaded only where one should be."""
    from orchestrator.sessions.session import recover

    recover(services)


def clock() -> Clock:
    """This computer's."""
    return SystemClock()


def observer(options: Options) -> Observer:
    """Live progress on a terminal, else plain lines; notes only with ``--quiet``; nothing with ``--json`` unless
    ``-v``."""
    from orchestrator.views.live import run as live

    if options.json and not options.verbose:
        return live.SilentObserver()
    if options.quiet:
        return live.WarningsObserver(sys.stderr)
    if sys.stderr.isatty() and not options.verbose:
        return live.Live(options.err)
    return live.PlainObserver(sys.stderr, verbose=options.verbose > 0)


@contextmanager
def opened(options: Options, *, quiet: bool = False) -> Iterator[Services]:
    """The workspace's services, for one command."""
    with observing(options, quiet=quiet) as watcher:
        yield services(options, watcher)


@contextmanager
def observing(options: Options, *, quiet: bool = False) -> Iterator[Observer]:
    """The observer of one command; restores the terminal."""
    from orchestrator.views.live import run as live

    watcher = live.WarningsObserver(sys.stderr) if quiet and not options.json else observer(options)
    try:
        yield watcher
    finally:
        watcher.close()


def clouds() -> Clouds:
    """The way to all clouds. A provider's library is imported by the first request, not here."""
    from orchestrator.providers.registry import ProviderClouds

    return ProviderClouds(SystemClock())


def machine_book() -> FileMachineCache:
    """What this computer remembers of machines in clouds."""
    from orchestrator.machines.cache import FileMachineCache

    return FileMachineCache()


def connector(known_clouds: Clouds | None = None) -> Connector:
    """The way to all machines that are up."""
    from orchestrator.machines.connect.connector import Connector

    def resolve(target: CloudTarget | SandboxTarget) -> CloudTarget:
        return (known_clouds or clouds()).resolve(target)

    return Connector(book=machine_book(), resolve=resolve)


def may_be_up(target: Target) -> bool:
    """Whether it is worth to log in at once: not to a machine of a cloud that is not known to run."""
    if target.kind in ("local", "ssh"):
        return True
    from orchestrator.money.caps import as_gcp

    machine = as_gcp(target)
    known = machine_book().known(machine.project, machine.instance) if machine else None
    return known is not None and known.deadline is not None and known.deadline > time.time()


def link(hosts: Connector, target: Target, watcher: Observer) -> ReconnectingHost:
    """A link to ``target``, not opened yet; imports only what logging in needs."""
    from orchestrator.machines.connect.reconnect import ReconnectingHost

    hosts.load(target)
    return ReconnectingHost(hosts, target, SystemClock(), watcher)


def services(options: Options, watcher: Observer, hosts: Connector | None = None) -> Services:
    """All that a workflow may touch, wired to the real world."""
    from orchestrator.leases.session_files import SessionFiles, shared_folder
    from orchestrator.money.recording_clouds import RecordingClouds
    from orchestrator.results.store.store import FileStore
    from orchestrator.runs.notify.notifier import Notifier
    from orchestrator.runs.services import Services
    from orchestrator.runs.source.git import GitSource

    workspace, clock = options.workspace(), SystemClock()

    book = functools.cache(functools.partial(spending_book, workspace))

    def recorder() -> UsageRecorder:
        from orchestrator.money.usage_recorder import UsageRecorder

        return UsageRecorder(made.spending, clock, workspace.config.budget, watcher.note)

    def price(target: CloudTarget, hardware: Hardware) -> MachinePrice:
        from orchestrator.money.prices.machine import machine_price

        return machine_price(hardware, workspace.config.budget, target)

    known_clouds = RecordingClouds(clouds, recorder)
    made = Services(
        clock=clock,
        hosts=hosts or connector(known_clouds),
        store=FileStore(workspace.results_dir, clock),
        source=GitSource(),
        observer=watcher,
        clouds=known_clouds,
        book=machine_book(),
        price=price,
        notifier=Notifier(workspace.config.notify, workspace.config.project.name),
        open_book=book,
        budget=workspace.config.budget,
        sessions=SessionFiles(workspace.results_dir, clock, shared_folder),
        bundles=bundles(),
        report_files=report_files,
        recover_runs=recover_runs,
        recover_sessions=recover_sessions,
        left_on=options.left_on,
    )
    options.uses(made)
    return made


def spending_book(workspace: Workspace) -> SpendingBook:
    """The user's book of spending, as the workspace sees it."""
    from orchestrator.money.book import SpendingBook
    from orchestrator.money.firings import FIRING
    from orchestrator.money.prices.file import folder

    return SpendingBook(folder(), SystemClock(), _scope(workspace), os.environ.get(FIRING))


def _scope(workspace: Workspace) -> Scope:
    """Whose money the caps of a workspace count."""
    from orchestrator.machines.targets import CloudTarget
    from orchestrator.money.caps import as_gcp
    from orchestrator.money.reservations import Scope

    machines = [as_gcp(target) for target in workspace.config.targets.values() if isinstance(target, CloudTarget)]
    return Scope(
        workspace.config.project.name,
        str(workspace.results_dir.resolve()),
        frozenset((machine.project, machine.instance) for machine in machines if machine is not None),
    )


def bundles() -> Bundles:
    """The libraries that steps run on; imported when a job needs them."""

    class Later:
        def tune(self) -> Bundle:
            from orchestrator.tune.bundle import TuneBundles

            return TuneBundles().tune()

        def find(self, sha256: str) -> Bundle:
            from orchestrator.tune.bundle import TuneBundles

            return TuneBundles().find(sha256)

    return Later()


def terminal_command(target: Target, run_id: str) -> list[str]:
    """The command that attaches this terminal to the run's tmux session. Raises NotFoundError, HostUnreachable."""
    from orchestrator.machines.connect.ssh.terminal import attach_argv

    return attach_argv(target, run_id, _pinned(target))


def ssh_command(target: Target, command: Sequence[str] = ()) -> list[str]:
    """The OpenSSH command for the target's machine. Raises ConfigError if it is this machine, HostUnreachable if
    unknown."""
    from orchestrator.machines.connect.ssh.terminal import ssh_argv

    return ssh_argv(target, command, _pinned(target))


def _pinned(target: Target) -> PinnedMachine | None:
    from orchestrator.machines.connect.ssh.terminal import pinned
    from orchestrator.machines.targets import CloudTarget, SandboxTarget

    return pinned(target, machine_book(), clouds().resolve) if isinstance(target, CloudTarget | SandboxTarget) else None


def scheduler(workspace: Workspace) -> Scheduler:
    """The schedules of a workspace."""
    from orchestrator.schedules.fire import Scheduler
    from orchestrator.schedules.firings import FiringRecords

    config, records = workspace.config, FiringRecords(workspace.results_dir)
    return Scheduler(config.schedules, records, spending_book(workspace), config.budget, SystemClock())


def tick(options: Options) -> list[tuple[str, Firing]]:
    """Decides what is due, launches it, and completes the runs that a dead controller left."""
    from orchestrator.base.errors import DiskError
    from orchestrator.hosts import recover
    from orchestrator.runs.notify.notices import of_refusal
    from orchestrator.runs.notify.notifier import tell
    from orchestrator.runs.reopen import known
    from orchestrator.schedules.child_process import launch

    workspace = options.workspace()
    schedules = scheduler(workspace)

    def start(name: str, firing: Firing) -> None:
        log = schedules.records.log_path(name)
        launch(workspace.root, ["schedule", "fire", name, "--due", repr(firing.due)], log)

    decided: list[tuple[str, Firing]] = []
    full = None
    try:
        decided = schedules.tick(start)
    except DiskError as error:  # nothing is started; what is on is released all the same
        full = error
    with opened(options, quiet=True) as found:
        left = [run.run_id for run in known(found) if run.state == "interrupted"]
        if left or found.store.owed():
            recover.recover(found, left, debts="due")
        for name, firing in decided:
            if firing.outcome == "refused":
                tell(found, of_refusal(name, firing.reason or ""))
    if full is not None:
        raise full
    return decided


def fire(options: Options, name: str, due: float) -> Firing:
    """Runs one firing of a schedule and records its end. Raises NotFoundError if the schedule was removed."""
    from orchestrator.base.errors import NotFoundError
    from orchestrator.schedules.child_process import run_job

    workspace = options.workspace()
    if name not in workspace.config.schedules:
        raise NotFoundError(f"there is no schedule '{name}' any more", hint="fcctl schedule ls")
    return scheduler(workspace).fire(name, due, run_job(workspace.root))


def dashboard(options: Options, port: int, announce: Callable[[str], None]) -> tuple[Server, Backend]:
    """The dashboard's server, bound to its port, and the backend of its pages. Raises FcctlError."""
    from orchestrator.base.version import version
    from orchestrator.views.dashboard.backend import Backend
    from orchestrator.views.dashboard.server import bind
    from orchestrator.views.live import run as live

    workspace, server = options.workspace(), bind(port, announce)
    argv = (sys.executable, "-P", "-m", "orchestrator.cli.entry", "-C", str(workspace.root))
    return server, Backend(workspace.root, workspace.config, services(options, live.SilentObserver()), argv, version())


def price_table(*, refresh: bool = False) -> PriceTable:
    """The price list in force; with ``refresh``, fetches today's and stores it. Raises FcctlError."""
    from orchestrator.money.prices import file as price_file
    from orchestrator.providers.gcp.list_prices import LIST_PRICES

    if refresh:
        from orchestrator.providers.gcp.catalogue_client import fetch

        price_file.write(fetch(LIST_PRICES))
    return price_file.read(lambda: LIST_PRICES) or LIST_PRICES
