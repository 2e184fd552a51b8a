"""``fcctl run --compare``: what a run is compared with once it has passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from orchestrator.cli import run_end
from orchestrator.cli.context import Cli
from orchestrator.cli.results.compare import fail, show

if TYPE_CHECKING:
    from orchestrator.results.compare.fail_on import FailOn
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.services import Services


@dataclass(frozen=True)
class Comparing:
    """What the run of ``fcctl run --compare`` is compared with. The runs are chosen before it starts: `last` is the
    one before it, and a baseline that is not there is told before anything is paid for."""

    name: str
    runs: tuple[str, ...]
    fail_on: tuple[FailOn, ...]

    @classmethod
    def of(cls, services: Services, against: str, fail_on: tuple[str, ...]) -> Comparing:
        """
        Raises:
            RunNotFound: there is no such run.
            UsageError: ``fail_on`` is no condition.
        """
        from orchestrator.results.compare.fail_on import conditions
        from orchestrator.results.name_runs import named

        runs = tuple(named(services.store, against))
        for run_id in runs:
            services.store.get(run_id)
        return cls(against, runs, conditions(fail_on))

    def report(self, cli: Cli, services: Services, record: RunRecord) -> None:
        """Print the run and the comparison, with --json as one document; leave with the run's exit code.

        Raises:
            RegressionFound: as ``fail_on`` says.
        """
        from orchestrator.results.compare.compare import compare_runs, with_margin
        from orchestrator.results.compare.git_history import source_changes
        from orchestrator.results.compare.verdicts import Options

        if not cli.json:
            run_end.show(cli, record, services.store.folder(record.run_id))
        found = compare_runs(
            services.store,
            ",".join(self.runs),
            record.run_id,
            options=with_margin(Options(), self.fail_on),
            fail_on=self.fail_on,
            history=source_changes,
            root=cli.workspace().root,
        )
        if cli.json:
            left_on = cli.left_on_json()
            cli.emit({**record.model_dump(mode="json"), "comparison": found.as_json(), "left_on": left_on})
        else:
            click.echo()
            show(cli, found)
        fail(found)
        if record.exit_code:
            raise SystemExit(record.exit_code)
