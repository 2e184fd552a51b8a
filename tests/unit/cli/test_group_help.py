"""What ``--help`` lists is whole, and fits a terminal of 80 columns."""

from __future__ import annotations

import click
import pytest

from orchestrator.cli.main import VERBS, fcctl, load


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
