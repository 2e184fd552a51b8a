"""The end of a command: what the user sees of an exception, notices, machines left on, and the exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from orchestrator.base.errors import CloudError, FcctlError, UsageError, nearest
from orchestrator.base.files import unforeseen_disk_error
from orchestrator.base.sanitize import clean_text
from orchestrator.cli import interrupts
from orchestrator.cli.context import Cli, pieces

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from orchestrator.results.records import RunRecord
    from orchestrator.runs.machine.left_on import LeftOn
    from orchestrator.runs.services import Services

SIGPIPE_EXIT = 141
_log = logging.getLogger("orchestrator.cli")
_RED, _CYAN, _DIM, _OFF = "\x1b[1;31m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


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
    text = _document(cli, known.as_json()) if cli.json else error_text(known, cli.color_on_stderr)
    sys.stderr.write(text + "\n")
    return known.exit_code


def _interrupted(cli: Cli, error: BaseException) -> int:
    """Ctrl-C needs no words on a terminal, but whoever asked for JSON gets the one object."""
    code = 128 + cli.signalled if cli.signalled else interrupts.SIGINT_EXIT
    if cli.json:
        facts = {"code": "interrupted", "exit_code": code, "message": str(error) or "interrupted"}
        error_object = {"error": {**facts, "cause": None, "hint": None}}
        sys.stderr.write(_document(cli, error_object) + "\n")
    return code


def _document(cli: Cli, value: Mapping[str, Any]) -> str:
    """The JSON document, with the machines that the command leaves on, if there are any."""
    left_on = cli.left_on_json()
    return "".join(pieces({**value, "left_on": left_on} if left_on else value))


def error_text(error: FcctlError, color: bool) -> str:
    """``error:``, ``cause:`` and ``hint:`` lines. What a host wrote into them cannot drive the terminal."""
    lines = [_labelled("error:", error.message, _RED, color)]
    if error.cause:
        lines.append(_labelled("cause:", error.cause, _DIM, color))
    if error.hint:
        lines.append(_labelled("hint:", error.hint, _CYAN, color))
    return "\n".join(lines)


def _labelled(label: str, text: str, code: str, color: bool) -> str:
    shown = f"{code}{label}{_OFF}" if color else label
    return f"{shown}{' ' * (7 - len(label))}{clean_text(text)}"


def _torn(cli: Cli, error: BaseException) -> int:
    """Ctrl-C came where something could not be left in order: that is said, since what it was may matter."""
    _log.error("interrupted, and then %s", type(error).__name__, exc_info=error)
    if cli.debug:
        _print_traceback(error)
    cli.note(f"note: interrupted, then another error: {type(error).__name__}: {error}; {_traceback_of(cli)}")
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
    if isinstance(error, OSError) and (of_disk := unforeseen_disk_error(error)):
        return of_disk
    return FcctlError(
        f"unexpected {type(error).__name__}: {error}",
        cause="this is a bug in fcctl" if not isinstance(error, OSError) else None,
        hint=_traceback_of(cli),
    )


def _traceback_of(cli: Cli) -> str:
    return f"the traceback is in {cli.log_file}" if cli.log_file else "to see the traceback, add --debug"


def _usage(error: click.ClickException) -> UsageError:
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "fcctl"
    hint = getattr(error, "fcctl_hint", None) or _nearest_option(error, ctx) or _list_of(error) or f"{path} --help"
    message = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    if unknown := getattr(error, "command_name", None):
        message = f"unknown command '{unknown}'"  # click's own repeats the hint
    message = " ".join(message.split()).replace(" is not a valid float range", " is not a number")
    return UsageError(f"{message[:1].lower()}{message[1:]}".rstrip("."), hint=hint)


def _list_of(error: click.ClickException) -> str | None:
    """The command that lists the values of an argument that is missing."""
    param = error.param if isinstance(error, click.MissingParameter) else None
    lists = {"JOB": "jobs ls", "TARGET": "hosts ls", "RUN": "results ls"}
    listed = lists.get((param.metavar or (param.name or "").upper()).strip("[].")) if param else None
    return f"to see what there is: fcctl {listed}" if listed else None


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


def finish(cli: Cli, code: int) -> int:
    """Send notices, and print the machines that stay on; the command's exit code.

    If all else went well, and a machine that was to be stopped is not known to be off, that is the code of a cloud that
    did not do what it was told.
    """
    services = cli.used
    if services is None:
        return code
    left: Sequence[LeftOn] = ()
    for line in services.unread.take():
        cli.note(f"note: {line}")
    try:
        left = cli.left_on.found(services.store, services.sessions)
        for line in _notices(services, left):
            cli.note(f"note: {line}")
    except KeyboardInterrupt:  # a notice is not waited for
        pass
    except Exception:  # noqa: BLE001 - the command itself is over, and its exit code stands
        _log.exception("the end of the command")
    if not cli.json:  # there, it is a field of the document
        with suppress(OSError, ValueError):
            sys.stderr.write("".join(clean_text(one.text) + "\n" for one in left))
            sys.stderr.flush()
    return CloudError.exit_code if code == 0 and any(one.not_stopped for one in left) else code


def _notices(services: Services, left: Sequence[LeftOn]) -> list[str]:
    """Sends the notices about machines left on and about caps; returns send errors and damaged book lines, one each."""
    problems: list[str] = []
    news = [one for one in left if not one.as_before]
    if news and services.notifier.wants("left_running"):
        from orchestrator.runs.notices import of_left_on

        problems += services.notifier.send(of_left_on(news))
    if not services.has_opened_book:
        return problems
    try:
        from orchestrator.runs.cost.outlook import send_cap_notices

        problems += send_cap_notices(services)
        damaged = len(services.spending.state().damaged)
    except FcctlError as error:
        return [*problems, error.one_line]
    if damaged:
        lines, are = ("1 line", "is") if damaged == 1 else (f"{damaged} lines", "are")
        problems.append(f"{lines} of the ledger cannot be read, and {are} not counted: fcctl cost rebuild")
    return problems


def report_run(cli: Cli, record: RunRecord, folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Print how a run ended, and leave with its exit code."""
    show_run(cli, record, folder, more)
    if record.exit_code:
        raise SystemExit(record.exit_code)


def show_run(cli: Cli, record: RunRecord, folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Print how a run ended, in JSON with what ``more`` has. With ``--quiet``, one that passed is not worth a word."""
    if cli.json:
        cli.emit({**record.model_dump(mode="json"), **(more or {}), "left_on": cli.left_on_json()})
    elif record.exit_code or not cli.quiet:
        from orchestrator.views.tables.run import print_run_summary

        print_run_summary(record, folder, cli.console)
