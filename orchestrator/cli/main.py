"""``fcctl``: parse, hand over to a verb, and turn whatever happens into an exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from orchestrator.cli import failures
from orchestrator.cli.commands import LazyGroup
from orchestrator.cli.context import COMPLETE_VARIABLE, Cli
from orchestrator.cli.interrupts import Interrupt
from orchestrator.cli.options import global_options

_log = logging.getLogger("orchestrator.cli")

EPILOG = (
    "Exit codes: 0 ok, 1 unexpected, 2 usage, 3 configuration or job, 4 authentication, "
    "5 capacity, quota, budget or idle GPU, 6 host, or a machine that may still be on, 7 not found, "
    "8 conflict, 9 regression, 10 doctor, "
    "100 the job failed, 101 not finished, 102 run not found, 103 cancelled, 104 a gate without a value, "
    "130 and 143 signals."
)


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
    cli = Cli(json=_asks_for_json(args))
    with _terminated_as_interrupt(cli):
        try:
            code = _invoke(cli, args)
            sys.stdout.flush()
        except BaseException as error:  # noqa: BLE001 - the last line of defence, and the only one
            code = failures.report(cli, error)
        if cli.used is not None:
            from orchestrator.cli.failures import finish

            code = finish(cli, code)
    _close(cli, code)
    return code


def _invoke(cli: Cli, args: list[str]) -> int:
    with fcctl.make_context("fcctl", args, obj=cli) as ctx:
        result: Any = fcctl.invoke(ctx)
    return result if isinstance(result, int) else 0


def _asks_for_json(args: list[str]) -> bool:
    """Known before parsing, so that a mistake on the command line is reported as JSON too."""
    return "--json" in (args[: args.index("--")] if "--" in args else args)


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
