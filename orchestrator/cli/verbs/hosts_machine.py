"""``fcctl hosts prepare`` and ``exec``: what a machine needs, and commands on several at once."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from orchestrator import app
from orchestrator.base.errors import ConfigError, ConflictError, FcctlError, UsageError
from orchestrator.base.sanitize import clean_text
from orchestrator.cli.context import Cli, CliCommand

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from orchestrator.hosts.prepare import Preparation, StepOutcome
    from orchestrator.machines.targets import Target

#: A machine is not fit; a command failed on a machine; a machine could not be reached.
UNFIT_EXIT, FAILED_EXIT, UNREACHED_EXIT = 10, 100, 6


@click.command(cls=CliCommand)
@click.argument("target")
@click.option("--dry-run", is_flag=True, help="Only show what each step found and would change.")
@click.option("--reboot", is_flag=True, help="Reboot the machine if a step needs a reboot.")
def prepare(cli: Cli, target: str, dry_run: bool, reboot: bool) -> int:
    """Prepare TARGET's machine for GPU work.

    The steps: tmux and rsync, GPU counters for all users, persistence mode, CUDA in login shells, swap for big builds,
    no upgrades during a run. Each step first shows what it found, and changes only what is missing. fcctl asks before
    it changes a machine that it does not own. This does not start the machine. Exit code 10: a step failed or was
    refused.
    """
    wanted = cli.workspace().machine(target)
    if wanted.kind == "sandbox":
        raise ConfigError("cannot prepare the sandbox: its machine is this computer", hint="fcctl doctor")
    with _machine(cli, wanted) as machine:
        found = machine.look()
        for one in found:
            cli.note(f"{_MARKS[one.state]} {one.line}")
        done = found
        if any(one.state == "missing" for one in found) and not dry_run:
            _agree(cli, wanted, machine, found)
            done = [_told(cli, one) for one in machine.change(found)]
        waiting = [one for one in done if one.state == "at_reboot"]
        rebooted = bool(waiting) and _reboot(cli, wanted, machine, reboot)
    if rebooted:
        done = _look_again(cli, wanted)
    unfit = [one for one in done if one.state in ("denied", "failed")]
    document = {"target": wanted.name, "steps": [one.as_json for one in done], "rebooted": rebooted}
    if not cli.show(document):
        _conclude(cli, wanted.name, done, dry_run=dry_run)
    return UNFIT_EXIT if unfit else 0


def _machine(cli: Cli, target: Target) -> AbstractContextManager[Preparation]:
    from orchestrator.hosts.prepare import preparation

    return preparation(target, app.fabric_connection, app.clock(), cli.note)


_MARKS = {
    "fit": "  ok     ", "missing": "  to do  ", "not_here": "  -      ", "changed": "  done   ",
    "at_reboot": "  reboot ", "denied": "  refused", "failed": "  failed ",
}  # fmt: skip


def _told(cli: Cli, one: StepOutcome) -> StepOutcome:
    if one.change is not None:
        cli.note(f"{_MARKS[one.state]} {one.line}")
    return one


def _agree(cli: Cli, target: Target, machine: Preparation, found: list[StepOutcome]) -> None:
    """Raises ConflictError: a run is on the machine; UsageError, RunCancelled: no yes."""
    if not machine.is_free():
        raise ConflictError(
            f"a run uses {target.name}", hint="wait until the run has ended; to list active runs: fcctl ps"
        )
    if not target.owned:
        titles = ", ".join(one.step.title for one in found if one.state == "missing")
        cli.confirm(
            f"{target.name} is not a machine that fcctl owns. fcctl will change these settings there as root: {titles}"
        )


def _reboot(cli: Cli, target: Target, machine: Preparation, agreed: bool) -> bool:
    if not agreed:
        if cli.json or not sys.stdin.isatty():
            return False
        cli.confirm(f"these changes need a reboot of {target.name}")
    machine.reboot()
    cli.note(f"{target.name} is rebooting")
    return True


#: How long a machine may take to reboot, and the pause between logins meanwhile, seconds.
REBOOT_S, KNOCK_S = 300.0, 2.0


def _look_again(cli: Cli, target: Target) -> list[StepOutcome]:
    """Checks all steps again after the reboot. Raises HostUnreachable: the machine did not answer within REBOOT_S."""
    deadline = time.monotonic() + REBOOT_S
    while True:
        time.sleep(KNOCK_S)
        try:
            with _machine(cli, target) as machine:
                found = machine.look()
        except FcctlError:
            if time.monotonic() > deadline:
                raise
        else:
            cli.note(f"{target.name} has rebooted")
            return found


def _conclude(cli: Cli, name: str, done: list[StepOutcome], *, dry_run: bool) -> None:
    states = {one.state for one in done}
    if "missing" in states and dry_run:
        cli.note(f"nothing was changed; to change it: fcctl hosts prepare {name}")
    elif "denied" in states:
        cli.note(
            "sudo was refused; allow it on the machine, as root: echo 'USER ALL=(root) NOPASSWD: ALL' >"
            " /etc/sudoers.d/fcctl; or do the steps by hand"
        )
    elif "at_reboot" in states:
        cli.note(f"a reboot is needed: fcctl hosts prepare {name} --reboot")
    elif not states & {"failed", "missing"}:
        without = [one.found for one in done if (one.step.id, one.state) == ("counters", "not_here")]
        why = f"not ready for GPU work: {without[0]}; fcctl preflight --on {name}" if without else "ready for GPU work"
        cli.note(f"{name} is {why}")


@click.command("exec", cls=CliCommand, context_settings={"ignore_unknown_options": True})
@click.option(
    "--on", "targets", multiple=True, required=True, metavar="TARGET", help="A target; repeat for several targets."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(cli: Cli, targets: tuple[str, ...], command: tuple[str, ...]) -> int:
    """Run COMMAND on several machines at once, and print each one's output as it comes, and its exit code.

    Example: `fcctl hosts exec --on a --on b -- nvidia-smi -L`. A single argument is passed to the shell unchanged;
    several arguments are quoted. This does not start machines. Exit code 100: COMMAND failed on a machine; 6: a machine
    did not answer.
    """
    wanted = [cli.workspace().machine(name) for name in dict.fromkeys(targets)]
    line = command[0] if len(command) == 1 else shlex.join(command)
    if not line.strip():
        raise UsageError("COMMAND is empty", hint="fcctl hosts exec --on TARGET -- COMMAND")
    from orchestrator.machines.connect.ssh.fabric_connection import run_on

    results = run_on(wanted, line, app.fabric_connection, None if cli.json else _print_line)
    rows = [_row(target.name, result) for target, result in zip(wanted, results, strict=True)]
    if not cli.show({"hosts": rows}):
        for row in rows:
            end = row["error"] or f"exit code {row['exit_code']}"
            click.echo(f"--- {row['target']}: {clean_text(end)}", err=True)
    unreached = any(row["error"] for row in rows)
    return UNREACHED_EXIT if unreached else FAILED_EXIT if any(row["exit_code"] for row in rows) else 0


def _row(name: str, result: Any) -> dict[str, Any]:
    if isinstance(result, BaseException):
        text = result.message if isinstance(result, FcctlError) else str(result) or type(result).__name__
        return {"target": name, "exit_code": None, "stdout": "", "stderr": "", "error": text}
    outputs = {"stdout": result.stdout, "stderr": result.stderr}
    return {"target": name, "exit_code": result.return_code, **outputs, "error": None}


def _print_line(target: str, of_stderr: bool, text: str) -> None:
    click.echo(f"{target}: {clean_text(text)}", err=of_stderr)


@click.command("ssh-config", cls=CliCommand)
@click.argument("target")
@click.option("--remove", is_flag=True, help="Remove the entry.")
def ssh_config(cli: Cli, target: str, remove: bool) -> None:
    """Write an SSH configuration entry, so that plain `ssh TARGET`, rsync and editors can log in to the machine.

    Writes an entry with the address, the user and the pinned host keys to a file that ~/.ssh/config includes. `hosts
    down` or the end of a session removes the entry. Run this command again after the next start.
    """
    from orchestrator.machines.connect.ssh.terminal import remove_entry

    wanted = cli.workspace().machine(target)
    if remove:
        was_there = remove_entry(wanted.name)
        if not cli.show({"target": wanted.name, "removed": was_there}):
            cli.note(f"your SSH configuration has no entry for {wanted.name}" + (" any more" if was_there else ""))
        return
    path = app.write_ssh_entry(wanted)
    if not cli.show({"target": wanted.name, "file": str(path)}):
        cli.note(f"added to {path}; log in: ssh {wanted.name}")


def prune_cache(cli: Cli, target: str) -> None:
    """Shows the caches on a target's machine and deletes this workspace's, after asking."""
    from orchestrator.hosts.prune import cache_sizes, delete_cache
    from orchestrator.runs.transfer import amount

    wanted, workspace = cli.workspace().machine(target), cli.workspace().label
    with _machine(cli, wanted) as machine:
        sizes = cache_sizes(machine)
        for name, bytes_ in sizes.items():
            cli.note(f"{name}: {amount(bytes_)}" + ("" if name == workspace else ", of another workspace"))
        deleted = workspace in sizes
        if deleted:
            cli.confirm(f"fcctl will delete this workspace's cache on {wanted.name}")
            delete_cache(machine, workspace)
    if not cli.show({"target": wanted.name, "caches": sizes, "deleted": deleted}):
        cli.note(f"{amount(sizes[workspace])} deleted" if deleted else f"this workspace has no cache on {wanted.name}")
