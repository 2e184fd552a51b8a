"""Output: JSON documents, errors, help and amounts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from orchestrator.base.errors import ConfigError, HostUnreachable
from orchestrator.cli import context, failures, reference
from orchestrator.cli.context import DOLLARS, POSITIVE, Finite
from orchestrator.cli.main import VERBS, fcctl, load
from orchestrator.money.caps import Budget, Cap, dollars


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("choice", "terminal", "environ", "color"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"TERM": "dumb"}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", False, {"FORCE_COLOR": "1"}, True),
        ("auto", True, {"FORCE_COLOR": "0"}, False),
        ("auto", False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {"FORCE_COLOR": "1"}, False),
    ],
)
def test_who_decides_on_color(choice: str, terminal: bool, environ: dict[str, str], color: bool) -> None:
    assert context.wants_color(choice, Stream(terminal), environ) is color


@pytest.mark.parametrize("color", [True, False])
def test_a_console_in_a_pipe_cuts_nothing_and_obeys_color(color: bool) -> None:
    stream = Stream(terminal=False)
    context.make_console(stream, color).print("[red]" + "x" * 300 + "[/red]")
    assert "x" * 300 in stream.getvalue()
    assert ("\x1b[31m" in stream.getvalue()) is color


def test_documents_are_versioned_json_even_with_numbers_json_lacks() -> None:
    text = "".join(context.pieces({"a": float("nan"), "b": [float("inf"), {"c": 1}], "d": "\x1b[31m"}))
    assert json.loads(text) == {"schema_version": 1, "a": None, "b": [None, {"c": 1}], "d": "\x1b[31m"}
    assert "\x1b" not in text
    assert "\n" not in text


def test_error_lines() -> None:
    error = HostUnreachable("cannot reach box", reason="port", cause="refused", hint="ssh box true")
    assert failures.error_text(error, color=False) == "error: cannot reach box\ncause: refused\nhint:  ssh box true"
    assert "\x1b[1;31merror:\x1b[0m" in failures.error_text(error, color=True)


def test_what_a_host_says_cannot_drive_the_terminal() -> None:
    error = ConfigError("evil \x1b]0;title\x07\x1b[2Jname", hint="\x9b31mred")
    assert failures.error_text(error, color=False) == "error: evil name\nhint:  red"


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "-1", "0", "1e12", "five"])
def test_no_budget(text: str) -> None:
    command = click.Command("x", params=[click.Option(["--budget"], type=DOLLARS)], callback=lambda budget: None)
    assert CliRunner().invoke(command, ["--budget", text]).exit_code == 2
    with pytest.raises(ValueError, match="per_run_usd"):
        Budget(per_run_usd=text)  # type: ignore[arg-type]  # as a file has it
    with pytest.raises(ValueError, match="usd"):
        Cap(name="--budget", usd=text)  # type: ignore[arg-type]


def test_what_is_one() -> None:
    assert DOLLARS.convert("2.5", None, None) == 2.5
    assert POSITIVE.convert("1e9", None, None) == 1e9
    assert Finite(min=2).convert("2", None, None) == 2.0


@pytest.mark.parametrize(("usd", "shown"), [(2.5, "$2.50"), (0.01, "$0.01"), (0.001, "$0.001"), (0.0, "$0.00")])
def test_less_than_a_cent_is_not_nothing(usd: float, shown: str) -> None:
    assert dollars(usd) == shown


ROOT = Path(__file__).resolve().parents[3]


def tree(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    for child, below in getattr(command, "commands", {}).items():
        yield from tree(below, f"{name} {child}")


ALL = [pair for verb in VERBS for pair in tree(load(verb), verb)]


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_every_command_and_option_has_help(name: str, command: click.Command) -> None:
    assert command.help, f"fcctl {name} has no help text"
    assert command.help.strip().splitlines()[0].endswith((".", ":")), "help begins with a sentence"
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, f"fcctl {name} {param.opts[0]} has no help text"


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_of_commands_is_short_and_right(verb: str) -> None:
    assert load(verb).name == verb
    assert VERBS[verb].help.endswith(".")
    assert len(VERBS[verb].help) <= 60


def test_the_reference_is_up_to_date() -> None:
    stored = (ROOT / "docs" / "cli.md").read_text()
    assert stored == reference.reference(), "run: python -m orchestrator.cli.reference > docs/cli.md"


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_fits_80_columns_and_cuts_no_sentence(verb: str) -> None:
    command = load(verb)
    context = click.Context(command, info_name=verb, parent=click.Context(fcctl, info_name="fcctl"), terminal_width=80)
    lines = command.get_help(context).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith("...") and not line.startswith("Usage:")] == []
    for one in getattr(command, "commands", {}).values():
        inner = one.get_help(click.Context(one, info_name=one.name, parent=context, terminal_width=80))
        assert max(map(len, inner.splitlines())) <= 80
