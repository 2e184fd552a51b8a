"""Composition root: the one module that knows which implementation stands behind which interface."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from orchestrator.base.clock import SystemClock
from orchestrator.base.files import user_folder
from orchestrator.base.observer import Observer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from orchestrator.base.clock import Clock
    from orchestrator.leases.session_rules import SessionRecord
    from orchestrator.machines.cache import FileMachineCache
    from orchestrator.machines.cloud import Hardware
    from orchestrator.machines.connect.reconnect import Connector, ReconnectingHost
    from orchestrator.machines.connect.ssh.fabric_connection import Connection
    from orchestrator.machines.connect.ssh.terminal import PinnedMachine
    from orchestrator.machines.interfaces import Bundles, Clouds
    from orchestrator.machines.targets import CloudTarget, SandboxTarget, Target
    from orchestrator.money.book import SpendingBook
    from orchestrator.money.prices.machine import MachinePrice
    from orchestrator.money.reservations import Scope
    from orchestrator.money.usage_recorder import UsageRecorder
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.job.saved_plan import SavedPlan
    from orchestrator.runs.machine.left_on import MachinesLeftOn
    from orchestrator.runs.services import Services
    from orchestrator.runs.source import Source
    from orchestrator.schedules.due import Firing
    from orchestrator.schedules.fire import Scheduler
    from orchestrator.views.dashboard.pages import Server
    from orchestrator.views.dashboard.site import Backend
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
    from orchestrator.views.report.outputs import files

    return files(record, folder, settings)


def session_files(workspace: Workspace, services: Services, record: SessionRecord) -> Mapping[str, bytes]:
    """The files of a session's report."""
    from orchestrator.views.report.session import report_of

    return report_of(workspace, services, record).files()


def recover_runs(services: Services, run_ids: Sequence[str]) -> None:
    """Complete those of these runs that have ended; what that needs is loaded only where there are some."""
    from orchestrator.hosts.recover import recover

    recover(services, run_ids)


def run_on_builder(services: Services, saved: SavedPlan, source: Source | None) -> RunRecord | None:
    """Runs local steps on a builder; loaded only where one is used."""
    from orchestrator.runs.builder import run_there

    return run_there(services, saved, source)


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
    from orchestrator.views import live_run as live

    if options.json and not options.verbose:
        return Observer()
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
    from orchestrator.views import live_run as live

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


def connector(known_clouds: Clouds | None = None, *, may_ask: bool = True) -> Connector:
    """The way to all machines that are up. ``may_ask``: on a terminal, for the passphrase of a key."""
    from orchestrator.machines.connect.reconnect import Connector

    def resolve(target: CloudTarget | SandboxTarget) -> CloudTarget:
        return (known_clouds or clouds()).resolve(target)

    return Connector(book=machine_book(), resolve=resolve, may_ask=may_ask)


def may_be_up(target: Target) -> bool:
    """Whether it is worth to log in at once: not to a machine of a cloud that is not known to run."""
    if target.kind in ("local", "ssh"):
        return True

    machine = target.cloud
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
    from orchestrator.providers.registry import RecordingClouds
    from orchestrator.results.store.store import FileStore
    from orchestrator.runs.git_source import GitSource
    from orchestrator.runs.job.prepare import Secrets
    from orchestrator.runs.notices import Notifier
    from orchestrator.runs.services import Services

    workspace, clock = options.workspace(), SystemClock()

    book = functools.cache(functools.partial(spending_book, workspace))

    def recorder() -> UsageRecorder:
        from orchestrator.money.usage_recorder import UsageRecorder

        return UsageRecorder(made.spending, clock, workspace.config.budget, watcher.note)

    def price(target: CloudTarget, hardware: Hardware) -> MachinePrice:
        from orchestrator.money.prices.machine import machine_price

        return machine_price(hardware, workspace.config.budget, target)

    known_clouds = RecordingClouds(clouds, recorder)
    known_hosts = hosts or connector(known_clouds)

    def prepare(target: CloudTarget, limit_s: float) -> None:
        from orchestrator.hosts.prepare import FirstWake

        FirstWake(target, functools.partial(fabric_connection, hosts=known_hosts), clock, watcher, limit_s).carry_out()

    made = Services(
        clock=clock,
        hosts=known_hosts,
        store=FileStore(workspace.results_dir, clock),
        source=GitSource(results=os.path.relpath(workspace.results_dir, workspace.root)),
        observer=watcher,
        clouds=known_clouds,
        book=machine_book(),
        price=price,
        prepare=prepare,
        notifier=Notifier(workspace.config.notify, workspace.config.project.name),
        open_book=book,
        budget=workspace.config.budget,
        cuda_image=workspace.config.project.cuda_image,
        sessions=SessionFiles(workspace.results_dir, clock, shared_folder),
        bundles=bundles,
        report_files=report_files,
        session_files=functools.partial(session_files, workspace),
        secrets=Secrets(workspace.config.secrets),
        recover_runs=recover_runs,
        recover_sessions=recover_sessions,
        run_on_builder=run_on_builder,
        left_on=options.left_on,
    )
    options.uses(made)
    return made


def spending_book(workspace: Workspace) -> SpendingBook:
    """The user's ledger, as the workspace sees it."""
    from orchestrator.money.book import SpendingBook
    from orchestrator.money.firings import FIRING

    return SpendingBook(user_folder("state"), SystemClock(), _scope(workspace), os.environ.get(FIRING))


def _scope(workspace: Workspace) -> Scope:
    """Whose money the caps of a workspace count."""
    from orchestrator.machines.targets import CloudTarget
    from orchestrator.money.reservations import Scope

    machines = [target.cloud for target in workspace.config.targets.values() if isinstance(target, CloudTarget)]
    return Scope(
        workspace.config.project.name,
        str(workspace.results_dir.resolve()),
        frozenset((machine.project, machine.instance) for machine in machines if machine is not None),
    )


def bundles() -> Bundles:
    """The libraries that steps run on."""
    from orchestrator.tune.bundle import TuneBundles

    return TuneBundles()


def terminal_command(target: Target, run_id: str) -> list[str]:
    """The command that attaches this terminal to the run's tmux session. Raises NotFoundError, HostUnreachable."""
    from orchestrator.machines.connect.ssh.terminal import attach_argv

    return attach_argv(target, run_id, _pinned(target))


def ssh_command(target: Target, command: Sequence[str] = ()) -> list[str]:
    """The OpenSSH command for the target's machine. Raises ConfigError if it is this machine, HostUnreachable if
    unknown."""
    from orchestrator.machines.connect.ssh.terminal import ssh_argv

    return ssh_argv(target, command, _pinned(target), on_terminal=sys.stdin.isatty())


def write_ssh_entry(target: Target) -> Path:
    """Puts the target's machine into the user's SSH configuration. Raises ConfigError: it is no cloud machine;
    HostUnreachable: nothing is known of it."""
    from orchestrator.base.errors import ConfigError
    from orchestrator.machines.connect.ssh.terminal import pinned_values, write_entry

    machine = _pinned(target)
    if machine is None:
        raise ConfigError(
            f"target '{target.name}' is not a cloud machine, so it needs no entry",
            hint="fcctl hosts ls" if target.kind == "local" else f"fcctl hosts ssh {target.name}",
        )
    return write_entry(target.name, {"HostName": machine.endpoint.address, **pinned_values(machine)})


def _pinned(target: Target) -> PinnedMachine | None:
    from orchestrator.machines.connect.ssh.terminal import pinned
    from orchestrator.machines.targets import CloudTarget, SandboxTarget

    return pinned(target, machine_book(), clouds().resolve) if isinstance(target, CloudTarget | SandboxTarget) else None


def fabric_connection(target: Target, hosts: Connector | None = None) -> Connection:
    """A Fabric connection over a login of fcctl. Raises ConfigError: the target is this machine; HostUnreachable."""
    from orchestrator.machines.connect.ssh.fabric_connection import Connection
    from orchestrator.machines.targets import LocalTarget

    if isinstance(target, LocalTarget):
        from orchestrator.base.errors import ConfigError

        raise ConfigError(
            f"target '{target.name}' is this computer: no SSH connection is needed", hint="fcctl hosts ls"
        )
    return Connection(target.name, (hosts or connector()).ssh(target))


def scheduler(workspace: Workspace) -> Scheduler:
    """The schedules of a workspace."""
    from orchestrator.schedules.fire import FiringRecords, Scheduler

    config, records = workspace.config, FiringRecords(workspace.results_dir)
    return Scheduler(config.schedules, records, spending_book(workspace), config.budget, SystemClock())


def tick(options: Options) -> list[tuple[str, Firing]]:
    """Decides what is due, launches it, and completes the runs that a dead controller left."""
    from orchestrator.base.errors import DiskError, FcctlError
    from orchestrator.hosts import recover
    from orchestrator.runs.cost.owners import settle_reservations
    from orchestrator.runs.notices import of_refusal
    from orchestrator.runs.reopen import known
    from orchestrator.schedules.fire import launch

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
        if left or found.store.pending_releases():
            recover.recover(found, left, releases="due")
        if found.spending.state().open():
            with suppress(FcctlError):  # the next tick does
                settle_reservations(found)
        for name, firing in decided:
            if firing.outcome == "refused":
                found.notify(of_refusal(name, firing.reason or ""))
    if full is not None:
        raise full
    return decided


def fire(options: Options, name: str, due: float) -> Firing:
    """Runs one firing of a schedule and records its end. Raises NotFoundError if the schedule was removed."""
    from orchestrator.base.errors import NotFoundError
    from orchestrator.schedules.fire import run_job

    workspace = options.workspace()
    if name not in workspace.config.schedules:
        raise NotFoundError(f"the schedule '{name}' no longer exists", hint="fcctl schedule ls")
    return scheduler(workspace).fire(name, due, run_job(workspace.root))


def dashboard(options: Options, port: int, announce: Callable[[str], None]) -> tuple[Server, Backend]:
    """The dashboard's server, bound to its port, and the backend of its pages. Raises FcctlError."""
    from orchestrator.base.installation import version
    from orchestrator.views.dashboard.pages import bind
    from orchestrator.views.dashboard.site import Backend

    workspace, server = options.workspace(), bind(port, announce)
    argv = (sys.executable, "-P", "-m", "orchestrator.cli.entry", "-C", str(workspace.root))
    return server, Backend(workspace.root, workspace.config, services(options, Observer()), argv, version())
