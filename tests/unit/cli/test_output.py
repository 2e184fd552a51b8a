from __future__ import annotations

import io
import json

import pytest

from orchestrator.base.errors import ConfigError, HostUnreachable
from orchestrator.cli import output


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
    assert output.wants_color(choice, Stream(terminal), environ) is color


@pytest.mark.parametrize("color", [True, False])
def test_a_console_in_a_pipe_cuts_nothing_and_obeys_color(color: bool) -> None:
    stream = Stream(terminal=False)
    output.make_console(stream, color).print("[red]" + "x" * 300 + "[/red]")
    assert "x" * 300 in stream.getvalue()
    assert ("\x1b[31m" in stream.getvalue()) is color


def test_documents_are_versioned_json_even_with_numbers_json_lacks() -> None:
    text = output.document({"a": float("nan"), "b": [float("inf"), {"c": 1}], "d": "\x1b[31m"})
    assert json.loads(text) == {"schema_version": 1, "a": None, "b": [None, {"c": 1}], "d": "\x1b[31m"}
    assert "\x1b" not in text
    assert "\n" not in text


def test_error_lines() -> None:
    error = HostUnreachable("cannot reach box", reason="port", cause="refused", hint="ssh box true")
    assert output.error_text(error, color=False) == "error: cannot reach box\ncause: refused\nhint:  ssh box true"
    assert "\x1b[1;31merror:\x1b[0m" in output.error_text(error, color=True)


def test_what_a_host_says_cannot_drive_the_terminal() -> None:
    error = ConfigError("evil \x1b]0;title\x07\x1b[2Jname", hint="\x9b31mred")
    assert output.error_text(error, color=False) == "error: evil name\nhint:  red"


def test_errors_as_json() -> None:
    shown = json.loads(output.error_json(ConfigError("wrong", hint="fix it")))
    assert shown == {
        "schema_version": 1,
        "error": {"code": "config", "exit_code": 3, "message": "wrong", "cause": None, "hint": "fix it"},
    }
