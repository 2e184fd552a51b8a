"""Every command says what it does, and docs/cli.md says the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator.cli import reference
from orchestrator.cli.commands import VERBS, load

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
