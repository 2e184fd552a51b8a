"""``fcctl results history``: a benchmark over the runs."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli


@click.command()
@click.option("--benchmark", metavar="NAME", help="Whose history; all names are listed without it.")
@click.option("--variant", help="Only this variant of the kernel.")
@click.option("--mode", help="Only times taken so: hot, cold, eager, ...")
@click.option("--gpu", help="Only on this GPU, by its full name.")
@click.option("--job", help="Only runs of this job.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="The newest so many times."
)
@click.pass_obj
def history(
    cli: Cli, benchmark: str | None, variant: str | None, mode: str | None, gpu: str | None, job: str | None, limit: int
) -> None:
    """Show how a benchmark developed: its trend, where its level changed and at which commits, and its records.

    Times that cannot be compared (another GPU, mode, shape, unit or method) are series of their own.
    """
    from orchestrator.results.compare.git_history import source_changes
    from orchestrator.results.compare.history import history as look_up

    with cli.services() as services:
        if benchmark is None:
            _names(cli, services.store.benchmarks())
            return
        trends = look_up(
            services.store,
            benchmark,
            variant=variant,
            mode=mode,
            gpu=gpu,
            job=job,
            limit=limit,
            commits=source_changes,
            root=cli.workspace().root,
        )
    if cli.json:
        cli.emit({"benchmark": benchmark, "series": [trend.as_json() for trend in trends]})
        return
    from orchestrator.views.tables.history import print_history

    print_history(trends, cli.console)


def _names(cli: Cli, names: list[tuple[str, str]]) -> None:
    if cli.json:
        cli.emit({"benchmarks": [{"benchmark": b, "variant": v} for b, v in names]})
        return
    if not names:
        from orchestrator.results.measurement import HOW_TO

        cli.note(f"no run measured anything yet; {HOW_TO}")
        return
    from orchestrator.views.tables.history import print_names

    print_names(names, cli.console)
