"""``fcctl``: parse, import the verb that is asked for, hand over to it, and turn whatever happens into an exit code."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from orchestrator.base.errors import did_you_mean
from orchestrator.cli import failures
from orchestrator.cli.context import COMPLETE_VARIABLE, Cli, global_options
from orchestrator.cli.interrupts import Interrupt

_log = logging.getLogger("orchestrator.cli")

EPILOG = (
    "Exit codes: 0 ok, 1 unexpected, 2 usage, 3 configuration or job, 4 authentication, "
    "5 capacity, quota, budget or idle GPU, 6 host, or a machine that may still be on, 7 not found, "
    "8 conflict, 9 regression, 10 doctor, "
    "100 the job failed, 101 not finished, 102 run not found, 103 cancelled, 104 a gate without a value, "
    "130 and 143 signals."
)


class Verb(NamedTuple):
    module: str
    help: str


#: A command's function has its name, with underscores.
VERBS = {
    "init": Verb(".workspace", "Make this folder a workspace: fcctl.toml and a first job."),
    "doctor": Verb(".checks", "Check this computer, the workspace and a target."),
    "preflight": Verb(".checks", "Check the GPU, CUDA and PyTorch of a target."),
    "run": Verb(".run", "Run a job on a target and collect its results."),
    "tune": Verb(".tune", "Search a kernel's configurations on a target."),
    "ps": Verb(".runs", "List active runs."),
    "logs": Verb(".runs", "Print the logs of a run."),
    "attach": Verb(".runs", "Follow a run again after leaving it."),
    "cancel": Verb(".runs", "Stop runs and collect their results."),
    "pull-results": Verb(".runs", "Collect results that are not in the local store yet."),
    "results": Verb(".results", "List, show, compare and export stored runs."),
    "hosts": Verb(".hosts", "List, start, stop and audit the targets' machines."),
    "top": Verb(".watch", "Watch runs, GPUs and spending in the terminal."),
    "ui": Verb(".watch", "Show the dashboard in the browser: live runs and results."),
    "jobs": Verb(".workspace", "List, show and check jobs."),
    "config": Verb(".workspace", "Show the configuration and where it comes from."),
    "cost": Verb(".cost", "Show what a run would cost, the prices, and what was spent."),
    "progress": Verb(".workspace", "Show each phase: target, best so far, gap, dollars."),
    "schedule": Verb(".schedule", "Run jobs at set times, each within its budget."),
    "session": Verb(".session", "Keep a machine on for several runs, within a budget."),
    "emulator": Verb(".watch", "Emulate Compute Engine on this computer."),
    "completion": Verb(".completion", "Print a shell completion script."),
    "help": Verb(".help", "Print a page of the documentation."),
}


class LazyGroup(click.Group):
    """The verbs of :data:`VERBS`, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return load(cmd_name) if cmd_name in VERBS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            error = click.UsageError(f"unknown command '{args[0]}'", ctx)
            error.fcctl_hint = did_you_mean(args[0], VERBS)  # type: ignore[attr-defined]  # ours, beside click's own
            raise error
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def load(name: str) -> click.Command:
    """Import one verb."""
    module = importlib.import_module(VERBS[name].module, "orchestrator.cli.verbs")
    command: click.Command = getattr(module, name.replace("-", "_"))
    for one in getattr(command, "commands", {}).values():  # else click cuts the sentence at the line's end
        one.short_help = " ".join((one.help or "").partition("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."
    return adopt(command)


def adopt(command: click.Command) -> click.Command:
    """Give a verb, and the verbs below it, the global options and completion of names. Done once per command."""
    known = {name for param in command.params for name in param.opts}
    if getattr(command, "adopted", False):
        return command
    for option in global_options(hidden=True):
        option.opts = [name for name in option.opts if name not in known]
        if option.opts:
            command.params.append(option)
    if COMPLETE_VARIABLE in os.environ:
        _complete_names(command)
    command.adopted = True  # type: ignore[attr-defined]  # ours, beside click's own
    for child in getattr(command, "commands", {}).values():
        adopt(child)
    return command


def _complete_names(command: click.Command) -> None:
    from orchestrator.cli.verbs.completion import complete_with, names_for

    for param in command.params:
        names = names_for(param)
        if names is not None:
            param._custom_shell_complete = complete_with(names)  # noqa: SLF001 - click takes it only when constructed


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from orchestrator.base.installation import version

        cli = ctx.find_object(Cli)
        if cli is not None and cli.json:
            cli.emit({"fcctl": version()})
        else:
            click.echo(f"fcctl {version()}")
        ctx.exit()


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.pass_context
def fcctl(ctx: click.Context) -> None:
    """Send CUDA kernel source to a GPU machine, run gated steps there, collect the results."""
    from orchestrator.base import log_file as logging_setup

    cli = ctx.find_object(Cli)
    if cli is not None:
        cli.log_file = logging_setup.start()
    _log.debug("fcctl %s", ctx.invoked_subcommand)


fcctl.params.extend(global_options(hidden=False))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    if COMPLETE_VARIABLE in os.environ:
        from orchestrator.cli.verbs.completion import answer

        return answer(fcctl, os.environ[COMPLETE_VARIABLE])
    args = list(sys.argv[1:] if argv is None else argv)
    # Known before parsing, so that a mistake on the command line is reported as JSON too.
    cli = Cli(json="--json" in (args[: args.index("--")] if "--" in args else args))
    with _terminated_as_interrupt(cli):
        try:
            with fcctl.make_context("fcctl", args, obj=cli) as ctx:
                result: Any = fcctl.invoke(ctx)
            code = result if isinstance(result, int) else 0
            sys.stdout.flush()
        except BaseException as error:  # noqa: BLE001 - the last line of defence, and the only one
            code = failures.report(cli, error)
        code = failures.finish(cli, code)
    _close(cli, code)
    return code


@contextmanager
def _terminated_as_interrupt(cli: Cli) -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that closes, end a command the way Ctrl-C does, so that it leaves things in
    order; only the exit code differs. A SIGHUP that ``nohup`` has switched off stays so."""

    def told(number: int) -> None:
        cli.signalled = number

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, Interrupt(told)) for number in ends}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _close(cli: Cli, code: int) -> None:
    if cli.log_file is not None:
        from orchestrator.base import log_file as logging_setup

        _log.debug("exit %d", code)
        logging_setup.stop()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # nobody reads any more, or the disk is full: say nothing more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
