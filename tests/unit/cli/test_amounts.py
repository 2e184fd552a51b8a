"""Amounts that mean nothing are refused before anything is looked at."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from orchestrator.cli.amounts import DOLLARS, POSITIVE, Finite
from orchestrator.money.caps import Budget, dollars
from orchestrator.money.deadline import Cap


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
