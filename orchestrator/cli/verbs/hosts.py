"""``fcctl hosts``: the machines behind the targets."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from orchestrator import app
from orchestrator.base.clock import iso
from orchestrator.base.errors import UsageError, plural
from orchestrator.base.json_text import pick
from orchestrator.base.sanitize import clean
from orchestrator.cli.context import Cli, CliGroup, Finite, accepting_prices
from orchestrator.cli.verbs.hosts_machine import exec_, prepare, prune_cache, ssh_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.hosts.audit import Audit, StopResult
    from orchestrator.hosts.hosts import StartResult, UpPlan
    from orchestrator.machines.targets import AcceptedPrices, Target
    from orchestrator.money.audit import Finding
    from orchestrator.runs.machine.left_on import LeftOn

#: Exit code of an audit that found something billed for nobody, and of one that could not ask everywhere.
STRAY_EXIT, UNANSWERED_EXIT = 10, 6


@click.group(cls=CliGroup)
def hosts() -> None:
    """List, start, stop, log in to and audit the machines of the targets."""


@hosts.command()
@click.option("--cloud", is_flag=True, help="Also list machines that fcctl created and that no target names.")
@click.option("--offline", is_flag=True, help="Show only what this computer stored; do not query the cloud or hosts.")
def ls(cli: Cli, cloud: bool, offline: bool) -> None:
    """List the targets and their machines: state, zone, price, start time, time limit and owner."""
    from orchestrator.hosts import hosts as workflow
    from orchestrator.views.tables.hosts import print_rows, row_json

    workspace = cli.workspace()
    targets = workspace.config.targets
    with cli.services() as services:
        if offline:
            rows = workflow.rows_known(services, targets)
        else:
            rows = workflow.rows(services, targets, workspace=workspace.label)
        if cloud and not offline:
            rows += workflow.unnamed_rows(services, targets, workspace=workspace.label)
        now = services.clock.now()
    cli.show({"hosts": [row_json(row) for row in rows]}, lambda: print_rows(rows, cli.console, now))


@hosts.command()
@click.argument("target", required=False)
@click.option(
    "--minutes",
    type=Finite(min=1),
    metavar="N",
    help="How long the machine may stay on; then the cloud stops it.  [60]",
)
@accepting_prices
def up(cli: Cli, target: str | None, minutes: float | None, accepted: AcceptedPrices) -> None:
    """Start TARGET's machine, or create it, and print how to log in. The cloud stops it after --minutes.

    fcctl shows the worst-case cost and asks (`--yes` answers yes), unless [budget] has a per_run_usd that covers it.
    """
    from orchestrator.hosts import hosts as workflow
    from orchestrator.machines.provision.ready import find_machine
    from orchestrator.runs.cost.estimate import with_own_price

    workspace = cli.workspace()
    wanted = workspace.machine(target)
    with app.opened(cli) as services:
        machine = find_machine(services, wanted)
        if machine is None:
            _say_always_there(cli, wanted)
            return
        budget = with_own_price(services, wanted, workspace.config.budget, accepted)
        plan = workflow.up_plan(machine, budget, minutes)
        if wanted.kind != "sandbox":
            _agree(cli, plan, capped=budget.per_run_usd is not None)
        found = workflow.up(services, machine, plan, workspace=workspace.label)
        services.observer.close()
        _say_up(cli, wanted.name, found, plan)


@hosts.command()
@click.argument("target", required=False)
@click.option("--force", is_flag=True, help="Stop it even if a run or a session uses it.")
def down(cli: Cli, target: str | None, force: bool) -> None:
    """Stop TARGET's machine and wait until it is off; its disk is kept. Refused while a run or a session uses it."""
    from orchestrator.hosts import hosts as workflow
    from orchestrator.machines.targets import CloudTarget, SandboxTarget

    workspace = cli.workspace()
    wanted = workspace.machine(target)
    with app.opened(cli) as services:
        if not isinstance(wanted, CloudTarget | SandboxTarget):
            _say_always_there(cli, wanted)
            return
        machine = services.clouds.if_there(wanted)
        done = [] if machine is None else workflow.down(services, machine, workspace=workspace.label, force=force)
    if cli.json:
        stopped = [{"zone": one.zone, "how": one.how} for one in done]
        unread = services.unread.take()
        cli.emit({"target": wanted.name, "stopped": stopped, "left_on": cli.left_on_json(), "unread": unread})
        return
    for one in done:
        cli.note(f"{wanted.name} is off: {one.how} in {one.zone}")
    if not done:
        cli.note(f"{wanted.name} is already off")


@hosts.command(context_settings={"ignore_unknown_options": True})
@click.argument("target")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(cli: Cli, target: str, command: tuple[str, ...]) -> None:
    """Log in to TARGET with OpenSSH, or run a COMMAND there: `fcctl hosts ssh l4 -- nvidia-smi`.

    Only the host keys that fcctl pinned are trusted. This does not start the machine.
    """
    wanted = cli.workspace().machine(target)
    argv = app.ssh_command(wanted, command)
    if not app.may_be_up(wanted):
        cli.note(f"{wanted.name} was off when this computer last checked; to start it: fcctl hosts up {wanted.name}")
    os.execvp(argv[0], argv)  # noqa: S606 - the terminal is its from here on


@hosts.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--stop", "stopping", is_flag=True, help="Stop orphaned machines, and wait until they are off.")
@click.option(
    "--others", is_flag=True, help="With --stop: also stop the named machines of other workspaces or of people."
)
def audit(cli: Cli, names: tuple[str, ...], stopping: bool, others: bool) -> int:
    """Find what is billed, in all zones: its owner, start time, cost, and what will stop it.

    This lists the machines in the cloud projects of all targets, of active runs, and of machines in the ledger: those
    with fcctl's label, those that a target names, and those that fcctl used before. It also lists disks, snapshots and
    static addresses that nothing uses. It compares the ledger with the cloud's list of starts and stops, shows each
    difference, and adds what the ledger lacked. A machine of another workspace, or one that a person started, is
    stopped only if you type its name after `--stop --others`; on a terminal, fcctl asks for it. Exit code 0: every
    machine that is on has an owner. 10: one has no owner, or could not be stopped. 6: a part of a cloud did not answer.
    """
    from orchestrator.hosts import audit as workflow
    from orchestrator.runs.machine.pending_releases import retry_releases
    from orchestrator.views.tables.hosts import print_audit

    if (others and not stopping) or (names and not others):
        raise UsageError("a machine name needs --stop --others", hint="fcctl hosts audit --stop --others NAME")
    workspace = cli.workspace()
    targets = workspace.config.targets
    with cli.services() as services:
        with services.unread.noted():
            if services.store.pending_releases():
                retry_releases(services)
        found = workflow.audit(services, targets, workspace=workspace.label)
        now = services.clock.now()
        workflow.notify_of_strays(services, found)
        if not cli.json:
            print_audit(found, cli.console, now)
        doomed = [*found.strays, *workflow.named(found, names)] if stopping else []
        if others and not names:
            doomed += _typed(cli, found.others)
        ended = workflow.stop(services, targets, doomed, workspace=workspace.label)
        for one in ended:
            if not (one.stopped or one.kept):
                cli.left_on.add(_still_on(one))
    still_on = len(found.strays) - sum(one.stopped or one.kept for one in ended if not one.finding.in_order)
    cli.show(_audit_json(found, ended, still_on), lambda: _say_audited(cli, found, ended, still_on))
    return STRAY_EXIT if still_on else UNANSWERED_EXIT if found.unanswered else 0


@hosts.command()
@click.option("--on", "target", metavar="TARGET", help="Instead, delete this workspace's $FCCTL_CACHE on that machine.")
def prune(cli: Cli, target: str | None) -> int:
    """Delete the snapshots that remain after a rebuild in another zone (`on_stockout = "rebuild"`). Asks first.

    A snapshot that is the only copy of a disk, or less than an hour old, is kept. Disks are never deleted.
    """
    if target is not None:
        prune_cache(cli, target)
        return 0
    from orchestrator.hosts import prune as workflow
    from orchestrator.views.tables.hosts import orphan_json, orphan_lines

    workspace = cli.workspace()
    targets = workspace.config.targets
    with app.opened(cli) as services:
        planned = workflow.plan_pruning(services, targets, workspace=workspace.label)
        for kept in planned.kept:
            cli.note(f"{kept.orphan.thing.name} is kept: {kept.why}")
        for part in planned.unanswered:
            cli.note(f"not checked: {part}")
        problems: list[str] = []
        if planned.doomed:
            now = services.clock.now()
            with services.observer.aside():
                cli.confirm("\n".join(["fcctl will delete:", *(orphan_lines(one, now)[0] for one in planned.doomed)]))
            problems = workflow.prune(services, targets, planned)
        services.observer.close()
    for problem in problems:
        cli.note(problem)
    gone = len(planned.doomed) - len(problems)
    if cli.json:
        cli.emit({
            "snapshots": [orphan_json(one) for one in planned.doomed], "deleted": gone, "problems": problems,
            "kept": [{"name": one.orphan.thing.name, "why": one.why} for one in planned.kept],
            "unanswered": list(planned.unanswered),
        })  # fmt: skip
    else:
        cli.note(f"{plural(gone, 'snapshot')} deleted" if planned.doomed else "no snapshot of a rebuild to delete")
    return UNANSWERED_EXIT if problems or planned.unanswered else 0


for _verb in (prepare, exec_, ssh_config):
    hosts.add_command(_verb)


def _say_always_there(cli: Cli, target: Target) -> None:
    what = "this computer" if target.kind == "local" else "a machine that fcctl does not start or stop"
    cli.show({"target": target.name, "kind": target.kind, "note": what})
    cli.note(f"{target.name} is {what}: nothing to do")


def _agree(cli: Cli, plan: UpPlan, *, capped: bool) -> None:
    text = (
        f"{plan.target} for {plan.minutes:g} minutes may cost ${plan.worst_usd:.2f} at most"
        f" (${plan.usd_per_hour:.2f} an hour): the cloud stops it after that time, even if this computer is off"
    )
    if capped:
        cli.note(text)
    else:
        cli.confirm(text)


def _say_up(cli: Cli, name: str, found: StartResult, plan: UpPlan) -> None:
    deadline = iso(found.way.deadline)
    document = {
        "target": name, "instance": found.machine.name, "zone": found.machine.zone,
        **pick(found.way, "address port user"), "started": found.started, "deadline": deadline,
        "worst_usd": plan.worst_usd, "left_on": cli.left_on_json(),
    }  # fmt: skip
    if cli.show(document):
        return
    how = "is up" if found.started else "was already up"
    limit = f"the cloud stops it at {deadline}" if deadline else "no time limit in the cloud"
    cli.note(f"{name} {how}: {found.machine.name} in {found.machine.zone}, {limit}")
    cli.note(f"  log in:    fcctl hosts ssh {name}")
    cli.note(f"  stop it:   fcctl hosts down {name}")


def _still_on(one: StopResult) -> LeftOn:
    """A machine that could not be stopped; the audit has told of it already."""
    from orchestrator.runs.machine.left_on import LeftOn

    machine, rate = one.finding.machine, one.finding.usd_per_hour
    again = "fcctl hosts audit --stop"
    return LeftOn(machine.name, machine.zone, rate, again, not_stopped=True, as_before=True, project=machine.project)


def _typed(cli: Cli, others: list[Finding]) -> list[Finding]:
    """Those machines of others whose names the user types; on no terminal there is nobody to type them."""
    if cli.json or not sys.stdin.isatty():
        return []
    found = []
    for one in others:
        text = f"{one.machine.name} in {one.machine.zone}: {one.why}. To stop it, type its name; to keep it on, press"
        sys.stderr.write(f"{clean(text, 500)} Enter: ")
        sys.stderr.flush()
        if sys.stdin.readline().strip() == one.machine.name:
            found.append(one)
    return found


def _audit_json(found: Audit, ended: list[StopResult], still_on: int) -> Mapping[str, Any]:
    from orchestrator.views.tables.hosts import account_json, finding_json, orphan_json

    return {
        "projects": found.projects,
        "emulated": found.emulated,
        "machines": [finding_json(finding) for finding in found.findings],
        "leftovers": [orphan_json(orphan) for orphan in found.leftovers],
        "ledger": [account_json(one) for one in found.accounts],
        "unanswered": [pick(one, "project what why hint") for one in found.unanswered],
        "stopped": [{**pick(e.finding.machine, "name zone"), **pick(e, "stopped why")} for e in ended],
        "summary": {
            "billed": sum(finding.machine.billed for finding in found.findings),
            "strays": len(found.strays),
            "others": len(found.others),
            "still_on": still_on,
            "unanswered": len(found.unanswered),
        },
    }


def _say_audited(cli: Cli, found: Audit, ended: list[StopResult], still_on: int) -> None:
    for one in ended:
        machine = one.finding.machine
        what = "off" if one.stopped else "kept on" if one.kept else "NOT stopped"
        cli.note(f"{machine.name} in {machine.zone}: {what} ({one.why})")
    if not found.projects:
        cli.note("no target is a cloud machine: nothing is billed")
    elif still_on:
        cli.note(f"{plural(still_on, 'orphaned machine')} on; to stop: fcctl hosts audit --stop")
    elif not (found.unanswered or found.others):
        cli.note("no orphaned machine is on")
    gone = [one.finding for one in ended if one.stopped]
    for kept in found.others:
        if kept not in gone:
            name = kept.machine.name
            cli.note(
                f"{name} belongs to another workspace or a person and stays on; to stop it: fcctl hosts audit"
                f" --stop --others {name}"
            )
