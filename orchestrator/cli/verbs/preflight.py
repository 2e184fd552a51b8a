"""``fcctl preflight``: is the machine fit for GPU work?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli
from orchestrator.cli.prices import accepting_prices, own_price

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.machines.provision.wake_options import AcceptedPrices
    from orchestrator.machines.targets import Target
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.services import Services

#: The job that does the same as a run, its step, and the document that the step leaves.
JOB, STEP, DOCUMENT = "preflight", "preflight", "environment"
LOG_BYTES = 1024 * 1024


@click.command()
@click.option("--on", "target", metavar="TARGET", help="Where to look; the workspace's default target otherwise.")
@accepting_prices
@click.pass_obj
def preflight(cli: Cli, target: str | None, accepted: AcceptedPrices) -> None:
    """Check GPU, CUDA toolkit, Nsight Compute, PyTorch CUDA and environment of a target.

    If the target is a cloud machine that is off, this starts the machine, checks it, and stops it again, as `fcctl run
    preflight` does. It shows what that may cost and asks first; `--yes` answers yes.

    Exit code 0: all pass; 1: warnings; 2: critical errors.
    """
    from orchestrator.app import opened
    from orchestrator.base.errors import HostUnreachable
    from orchestrator.base.sanitize import clean_text
    from orchestrator.runs.reopen import new_link

    chosen = cli.workspace().target(target)
    with opened(cli) as services:
        services.observer.phase("preflight", chosen.name)
        link = new_link(services, chosen)
        try:
            found = link.call(lambda s: s.probe(chosen.env))
        except HostUnreachable:
            if not _is_off(services, chosen):
                raise
            _run_it(cli, services, chosen, accepted)
            return
        finally:
            link.close()
    if cli.json:
        cli.emit(found["document"])
    else:
        click.echo(clean_text(found["text"]))
    raise SystemExit(found["exit_code"])


def _is_off(services: Services, target: Target) -> bool:
    """Whether the target's machine is one of a cloud, which says that it is off or that there is none."""
    from orchestrator.base.errors import FcctlError
    from orchestrator.machines.provision.find import find_machine, find_machines

    machine = find_machine(services, target)
    if machine is None:
        return False
    try:
        return not any(one.billed for one in find_machines(services.clouds.open(machine), machine, everywhere=True))
    except FcctlError:
        return False


def _run_it(cli: Cli, services: Services, target: Target, accepted: AcceptedPrices) -> None:
    """Wake the machine for a run of the preflight job, and let it go."""
    from orchestrator.cli.launching import collect_and_finish, confirm
    from orchestrator.runs.job.prepare import RunRequest, prepare
    from orchestrator.runs.reopen import new_link
    from orchestrator.runs.run import run

    workspace = cli.workspace()
    services.observer.note(f"the machine of {target.name} is off, and is woken for this")
    budget = own_price(services, target, workspace.config.budget, accepted)
    wanted = RunRequest(workspace.jobs.built_in(JOB), target, {})
    prepared = prepare(services, workspace.root, workspace.config.project.name, budget, wanted)
    with services.observer.aside():
        confirm(cli, prepared.saved, capped=False)
    link = new_link(services, target)
    goes = partial(run, services, link, prepared.saved, prepared.source)
    collect_and_finish(cli, services, goes, prepared.saved, tell=partial(_tell, cli))


def _tell(cli: Cli, record: RunRecord, folder: Path) -> None:
    """What the preflight found, as if the machine had been on; or how the run ended, if it found nothing."""
    from orchestrator.base import result_file
    from orchestrator.base.sanitize import clean_text
    from orchestrator.cli.run_end import report
    from orchestrator.results.documents import load

    step = next((step for step in record.steps if step.id == STEP and step.exit_code in (0, 1, 2)), None)
    log = result_file.tail(folder, step.log, LOG_BYTES) if step is not None and step.log else None
    documents = load(record, folder).of(DOCUMENT)
    if step is None or log is None or not documents:
        report(cli, record, folder)
        return
    if cli.json:
        cli.emit(documents[0].content)
    else:
        click.echo(clean_text(log.data.decode(errors="replace")))
        emulated = " (emulated)" if record.cost.emulated else ""
        cli.note(f"waking it cost ${record.cost.usd:.4f}{emulated}; the run is {record.run_id}")
    raise SystemExit(step.exit_code)
