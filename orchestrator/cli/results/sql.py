"""``fcctl results sql``: questions to the index of the runs."""

from __future__ import annotations

import csv
import sys
from typing import Any

import click

from orchestrator.cli.context import Cli


@click.command()
@click.argument("query", required=False)
@click.option("--schema", is_flag=True, help="Show the tables and their columns.")
@click.option(
    "--time-limit", type=click.FloatRange(0.01, 3600), default=10.0, show_default=True, help="Seconds a query may take."
)
@click.option("--max-rows", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True, help="Rows at most.")
@click.pass_obj
def sql(cli: Cli, query: str | None, schema: bool, time_limit: float, max_rows: int) -> None:
    """Answer a SELECT on the index: tables `runs` (a row a run) and `benchmarks` (a row a measurement).

    Nothing can be changed. A table on a terminal, CSV elsewhere, one document with --json.
    """
    from orchestrator.base.errors import UsageError

    if schema:
        _tables(cli)
        return
    if not query:
        raise UsageError(
            "no query", hint='for instance: fcctl results sql "SELECT job, count(*) FROM runs GROUP BY job"'
        )
    with cli.services() as services:
        columns, rows, more = services.store.query(query, time_limit, max_rows)
    if cli.json:
        cli.emit({"columns": columns, "rows": [[_value(v) for v in row] for row in rows], "more": more})
        return
    if sys.stdout.isatty():
        _print(cli, columns, rows)
    else:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([[_value(v) for v in row] for row in rows])
    if more:
        cli.note(f"there are more than {max_rows} rows; --max-rows shows them")


def _tables(cli: Cli) -> None:
    from dataclasses import fields

    from orchestrator.results.measurement import Measurement
    from orchestrator.results.records import RunRow

    known = {"runs": list(RunRow.model_fields), "benchmarks": [field.name for field in fields(Measurement)]}
    if cli.json:
        cli.emit({"tables": known})
        return
    for table, columns in known.items():
        click.echo(f"{table}: {', '.join(columns)}")


def _print(cli: Cli, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    from orchestrator.base.sanitize import clean
    from orchestrator.views.table import Table, show

    table = Table(*(clean(column, 40) for column in columns))
    for row in rows:
        table.add_row(*("" if v is None else clean(_value(v), 80) for v in row))
    show(cli.console, table)


def _value(value: Any) -> Any:
    """Bytes have no place in text."""
    return value.hex() if isinstance(value, bytes) else value
