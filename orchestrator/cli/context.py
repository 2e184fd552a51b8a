"""The object that every verb gets: global options, given before or after the verb, output streams, and the workspace.
Also option types for amounts, and the options that accept a price."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from orchestrator.base.errors import NotFoundError, RunCancelled, UsageError
from orchestrator.base.sanitize import clean_text

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rich.console import Console

    from orchestrator.runs.machine.left_on import MachinesLeftOn
    from orchestrator.runs.services import Services
    from orchestrator.workspace.workspace import Workspace


SCHEMA_VERSION = 1
#: Columns of a table where no terminal says how wide it is; nothing is cut in a pipe.
PIPE_WIDTH = 400
#: The variable through which a shell asks for completions.
COMPLETE_VARIABLE = "_FCCTL_COMPLETE"


@dataclass
class Cli:
    """One invocation of ``fcctl``. Nothing slow is imported until it is asked for."""

    json: bool = False
    quiet: bool = False
    verbose: int = 0
    debug: bool = False
    color: str = "auto"
    directory: str | None = None
    yes: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    log_file: Path | None = None
    #: The signal that ended the command, if one did.
    signalled: int | None = None

    @cached_property
    def console(self) -> Console:
        """Standard output, for data."""
        return make_console(sys.stdout, wants_color(self.color, sys.stdout, self.environ))

    @cached_property
    def err(self) -> Console:
        """Standard error, for everything else."""
        return make_console(sys.stderr, self.color_on_stderr)

    @property
    def color_on_stderr(self) -> bool:
        return wants_color(self.color, sys.stderr, self.environ)

    @property
    def start(self) -> Path:
        """Where the search for the workspace begins: ``-C``, else FCCTL_WORKSPACE, else the current folder."""
        named = self.directory or self.environ.get("FCCTL_WORKSPACE")
        try:
            start = Path(named or Path.cwd()).expanduser()
            start.absolute()
            return start
        except FileNotFoundError:
            hint = "cd to a folder that exists, or name the workspace by its whole path: fcctl -C DIR"
            raise NotFoundError("the current folder was deleted", hint=hint) from None
        except RuntimeError:
            hint = "correct -C DIR or FCCTL_WORKSPACE"
            raise NotFoundError(f"{named} is not a folder", cause="no user has that name", hint=hint) from None

    def workspace(self) -> Workspace:
        """The workspace, read once per command. Raises NotFoundError without fcctl.toml here or above, ConfigError if
        it is wrong."""
        if self._workspace is None:
            from orchestrator.workspace.workspace import find_workspace

            self._workspace = find_workspace(self.start, self.environ)
        return self._workspace

    _workspace: Workspace | None = field(default=None, repr=False)

    def forget_workspace(self) -> None:
        """Read fcctl.toml again when it is asked for next; for a command that runs for days."""
        self._workspace = None

    @cached_property
    def left_on(self) -> MachinesLeftOn:
        """The machines that this command leaves on."""
        from orchestrator.runs.machine.left_on import MachinesLeftOn

        return MachinesLeftOn()

    #: What the command used first of all that workflows may touch.
    used: Services | None = field(default=None, repr=False)

    def uses(self, services: Services) -> None:
        self.used = self.used or services

    def left_on_json(self) -> list[dict[str, Any]]:
        """The machines that the command leaves on, for its document."""
        if self.used is None:
            return []
        return [one.as_json() for one in self.left_on.found(self.used.store, self.used.sessions)]

    def services(self) -> AbstractContextManager[Services]:
        """What workflows may touch, for use in a ``with`` statement."""
        from orchestrator import app

        return app.opened(self, quiet=True)

    def emit(self, value: Mapping[str, Any]) -> None:
        """Print one JSON document (or one line of a JSONL stream) on standard output."""
        for piece in pieces(value):
            sys.stdout.write(piece)
        sys.stdout.write("\n")
        sys.stdout.flush()

    def show(self, document: Mapping[str, Any], text: Callable[[], object] | None = None) -> bool:
        """Print ``document`` with ``--json``, else what ``text`` prints; whether it was the document."""
        if self.json:
            self.emit(document)
        elif text is not None:
            text()
        return self.json

    def note(self, message: str) -> None:
        """A line for people on standard error; not with ``--quiet``, and not among JSON."""
        if not self.quiet and not self.json:
            sys.stderr.write(clean_text(message) + "\n")
            sys.stderr.flush()

    def confirm(self, plan_text: str) -> None:
        """Show what is about to happen and return only if the user agrees (``--yes`` agrees beforehand). Raises
        UsageError: stdin is no terminal, or the output is JSON, and ``--yes`` is not given; RunCancelled: the user
        did not confirm."""
        if not self.json:
            sys.stderr.write(clean_text(plan_text).rstrip() + "\n")
        if self.yes:
            return
        if self.json or not sys.stdin.isatty():
            raise UsageError(
                "this command needs your confirmation, but has no terminal to ask on",
                hint="add --yes to confirm in advance",
            )
        sys.stderr.write("Continue? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise RunCancelled("not confirmed: fcctl changed nothing")


def wants_color(choice: str, stream: IO[str], environ: Mapping[str, str]) -> bool:
    """``--color`` decides; else NO_COLOR, then FORCE_COLOR, then whether ``stream`` is a terminal that knows colour."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    return stream.isatty() and environ.get("TERM", "") != "dumb"


def make_console(stream: IO[str], color: bool) -> Console:
    """A rich console on ``stream``."""
    from rich.console import Console

    class QuietPipe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    is_terminal = stream.isatty()
    return QuietPipe(
        file=stream, no_color=not color, color_system=("auto" if is_terminal else "256") if color else None,
        force_terminal=is_terminal, width=None if is_terminal else PIPE_WIDTH, highlight=False, emoji=False,
    )  # fmt: skip


def pieces(value: Mapping[str, Any]) -> Iterator[str]:
    """One versioned JSON document on one line, safe to print: ASCII, and null where JSON has no number. In parts, an
    element of a list at a time: all of it may be long."""
    before = "{"
    for key, part in {"schema_version": SCHEMA_VERSION, **value}.items():
        yield f"{before}{json.dumps(key)}: "
        before = ", "
        if isinstance(part, list):
            for i, element in enumerate(part):
                yield (", " if i else "[") + _text(element)
            yield "]" if part else "[]"
        else:
            yield _text(part)
    yield "}"


def _text(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except (ValueError, TypeError):  # a number that JSON does not have, or a key that is no text
        from orchestrator.base.sanitize import finite

        return json.dumps(finite(value), allow_nan=False, default=str)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


class CliCommand(click.Command):
    """A command whose function gets the :class:`Cli` as its first argument."""

    def invoke(self, ctx: click.Context) -> Any:
        return None if self.callback is None else ctx.invoke(self.callback, ctx.obj, **ctx.params)


class CliGroup(click.Group):
    """A group of such commands."""

    command_class = CliCommand


def global_options(*, hidden: bool) -> list[click.Option]:
    """Fresh options; hidden ones are accepted after a verb without filling its help."""

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, hidden=hidden, callback=_store, **settings)

    return [
        option("--json", "json", is_flag=True, help="Print one JSON document (JSON lines for streams)."),
        option("-q", "--quiet", "quiet", is_flag=True, help="Print only data and errors."),
        option("-v", "--verbose", "verbose", count=True, help="Print more details; repeat for still more."),
        option("--debug", "debug", is_flag=True, help="Show the traceback of an unexpected error."),
        option("--color", "color", type=click.Choice(["auto", "always", "never"]), help="When to use colour."),
        option("-C", "--workspace", "directory", metavar="DIR", help="Use the workspace around DIR."),
        option("--yes", "yes", is_flag=True, help="Assume yes to every question."),
    ]


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    cli = ctx.find_object(Cli)
    if cli is None or not value or param.name is None:
        return
    if param.name == "verbose":
        value += cli.verbose
    setattr(cli, param.name, value)


#: What no person means; ``[budget]`` draws the same line.
MOST_USD = 1_000_000.0


class Finite(click.FloatRange):
    """A number in a range; ``nan`` and ``inf``, which are in every range or past every cap, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not an amount.", param, ctx)
        return float(number)


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """A value that ``parse`` reads, which raises ValueError with what it expects."""

    def __init__(self, parse: Callable[[str], float]) -> None:
        self.name, self._parse = parse.__name__, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


#: Of every verb that runs a job.
ON = click.option(
    "--on", "target", metavar="TARGET", help="Target to run on (default: the workspace's default target)."
)
#: More than nothing.
POSITIVE = Finite(min=0, min_open=True)
#: A budget.
DOLLARS = Finite(min=0, min_open=True, max=MOST_USD)
#: Of every verb that starts a machine.
PRICE_OPTIONS = (
    click.option(
        "--accept-price",
        is_flag=True,
        help="Accept the existing machine's price if it is higher than the configured machine's.",
    ),
    click.option("--accept-old-prices", is_flag=True, help="Accept list prices that are older than a year."),
)


def accepting_prices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that accept a price; it gets them as ``accepted``."""

    from orchestrator.machines.targets import AcceptedPrices

    @functools.wraps(function)
    def with_options(*args: Any, accept_price: bool, accept_old_prices: bool, **given: Any) -> Any:
        return function(*args, accepted=AcceptedPrices(accept_price, accept_old_prices), **given)

    for option in reversed(PRICE_OPTIONS):
        with_options = option(with_options)
    return with_options
