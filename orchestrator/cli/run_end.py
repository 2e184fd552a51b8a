"""How a run ended, as a command prints it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.results.records import RunRecord


def report(cli: Cli, record: RunRecord, folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Print how a run ended, and leave with its exit code."""
    show(cli, record, folder, more)
    if record.exit_code:
        raise SystemExit(record.exit_code)


def show(cli: Cli, record: RunRecord, folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Print how a run ended. With ``--quiet``, one that passed is not worth a word.

    Args:
        more: what the JSON says besides.
    """
    if cli.json:
        cli.emit({**record.model_dump(mode="json"), **(more or {}), "left_on": cli.left_on_json()})
    elif record.exit_code or not cli.quiet:
        from orchestrator.views.tables.run import print_run_summary

        print_run_summary(record, folder, cli.console)
