"""From an exception to what the user sees and the exit code."""

from __future__ import annotations

import logging
import sys

import click

from orchestrator.base.errors import FcctlError, UsageError, nearest
from orchestrator.cli import interrupts, output
from orchestrator.cli.context import Cli

SIGPIPE_EXIT = 141
_log = logging.getLogger("orchestrator.cli")


def report(cli: Cli, error: BaseException) -> int:
    """Print ``error`` as the global options ask for, and return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _interrupted(cli, error)
    if isinstance(error, BrokenPipeError):
        return SIGPIPE_EXIT
    if type(error).__name__ == "NoArgsIsHelpError" and isinstance(error, click.UsageError) and not cli.json:
        return _help_instead(error)
    if not isinstance(error, FcctlError | click.ClickException) and interrupts.behind(error):
        return _torn(cli, error)
    known = error if isinstance(error, FcctlError) else _translated(cli, error)
    if isinstance(error, FcctlError):
        _log.info("%s: %s (%s)", known.code, known.message, known.cause, exc_info=error)
        if cli.debug:
            _print_traceback(error)
    text = output.error_json(known, cli.left_on_json()) if cli.json else output.error_text(known, cli.color_on_stderr)
    sys.stderr.write(text + "\n")
    return known.exit_code


def _interrupted(cli: Cli, error: BaseException) -> int:
    """Ctrl-C needs no words on a terminal, but whoever asked for JSON gets the one object."""
    code = 128 + cli.signalled if cli.signalled else interrupts.SIGINT_EXIT
    if cli.json:
        said = {"code": "interrupted", "exit_code": code, "message": str(error) or "interrupted"}
        error_object = {"error": {**said, "cause": None, "hint": None}}
        sys.stderr.write(output.with_left_on(error_object, cli.left_on_json()) + "\n")
    return code


def _torn(cli: Cli, error: BaseException) -> int:
    """Ctrl-C came where something could not be left in order: that is said, since what it was may matter."""
    _log.error("interrupted, and then %s", type(error).__name__, exc_info=error)
    if cli.debug:
        _print_traceback(error)
    cli.note(f"note: interrupted, and then {type(error).__name__}: {error}; {_traceback_of(cli)}")
    return _interrupted(cli, KeyboardInterrupt())


def _help_instead(error: click.UsageError) -> int:
    sys.stderr.write((error.ctx.get_help() if error.ctx else error.format_message()) + "\n")
    return UsageError.exit_code


def _translated(cli: Cli, error: BaseException) -> FcctlError:
    if isinstance(error, click.ClickException):
        return _usage(error)
    _log.error("unexpected %s", type(error).__name__, exc_info=error)
    if cli.debug:
        _print_traceback(error)
    return FcctlError(
        f"unexpected {type(error).__name__}: {error}",
        cause="this is a defect of fcctl" if not isinstance(error, OSError) else None,
        hint=_traceback_of(cli),
    )


def _traceback_of(cli: Cli) -> str:
    return f"the traceback is in {cli.log_file}" if cli.log_file else "run it again with --debug for the traceback"


def _usage(error: click.ClickException) -> UsageError:
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "fcctl"
    hint = getattr(error, "fcctl_hint", None) or _nearest_option(error, ctx) or f"{path} --help"
    message = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    message = " ".join(message.split()).replace(" is not a valid float range", " is not a number")
    return UsageError(f"{message[:1].lower()}{message[1:]}".rstrip("."), hint=hint)


def _nearest_option(error: click.ClickException, ctx: click.Context | None) -> str | None:
    name = str(getattr(error, "option_name", None) or getattr(error, "command_name", None) or "")
    if not ctx or not name:
        return None
    options = [opt for param in ctx.command.params for opt in (*param.opts, *param.secondary_opts)]
    near = nearest(name, [opt for opt in options if opt.startswith("--")])
    if near is None and isinstance(ctx.command, click.Group):
        near = nearest(name, ctx.command.list_commands(ctx))
    return f"did you mean '{near}'?" if near else None


def _print_traceback(error: BaseException) -> None:
    import traceback

    sys.stderr.write("".join(traceback.format_exception(error)))
