"""``fcctl cancel``: stop runs at their hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.runs.services import Services


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--all", "everything", is_flag=True, help="Every active run.")
@click.option("--grace", "grace_s", type=click.FloatRange(0, 600), default=10.0, show_default=True, metavar="SECONDS",
              help="Between asking the step to stop and killing it.")  # fmt: skip
@click.option("--give-up", is_flag=True, help="Ask no host: end the run here as lost, for a host that is gone.")
@click.pass_obj
def cancel(cli: Cli, runs: tuple[str, ...], everything: bool, grace_s: float, give_up: bool) -> None:
    """Stop RUNs and bring home what they have. The step that runs gets SIGTERM, then SIGKILL."""
    from orchestrator.app import opened
    from orchestrator.base.errors import FcctlError, UsageError
    from orchestrator.runs.cancel import with_members

    if not runs and not everything:
        raise UsageError("no run named", hint="fcctl ps lists the active ones; --all cancels every one")
    with opened(cli, quiet=True) as services:
        named = services.store.active() if everything else [services.store.resolve(name) for name in runs]
        ids = with_members(services.store, named)
        results: list[dict[str, Any]] = []
        failed: list[FcctlError] = []
        for run_id in ids:
            if services.store.is_complete(run_id):
                results.append({"run_id": run_id, "status": services.store.get(run_id).status, "changed": False})
                cli.note(f"{run_id} had ended already: {services.store.get(run_id).status}")
                continue
            try:
                status = _end(services, run_id, grace_s, give_up=give_up)
            except FcctlError as error:  # one host that is away must not keep the runs of others going
                failed.append(error)
                results.append({"run_id": run_id, "status": None, "changed": False, "error": error.message})
                cli.note(f"{run_id}: not cancelled: {error.message}")
                continue
            results.append({"run_id": run_id, "status": status or "cancelling", "changed": True})
            cli.note(f"{run_id}: {status or 'cancelling; the fcctl that follows it collects the results'}")
    if failed and (len(ids) == 1 or not cli.json):
        raise failed[0]
    if cli.json:
        cli.emit({"runs": results, "left_on": cli.left_on_json()})
    if failed:
        raise SystemExit(failed[0].exit_code)


def _end(services: Services, run_id: str, grace_s: float, *, give_up: bool) -> str | None:
    from orchestrator.runs import cancel as workflow

    if give_up:
        return workflow.give_up(services, run_id).status
    record = workflow.cancel(services, run_id, reason="cancelled by the user", grace_s=grace_s)
    return record.status if record else None
