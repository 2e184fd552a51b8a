"""The verbs: where each is, and its line in the help. No verb's module is imported before it is invoked."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import click

from orchestrator.base.errors import did_you_mean
from orchestrator.cli.options import adopt


class Verb(NamedTuple):
    module: str
    help: str


#: A command's function has its name, with underscores.
VERBS = {
    "init": Verb(".workspace", "Make this folder a workspace: fcctl.toml and a first job."),
    "doctor": Verb(".checks", "Check this machine, the workspace and a target."),
    "preflight": Verb(".checks", "Check the GPU, CUDA and PyTorch of a target."),
    "run": Verb(".run", "Run a job on a target and collect its results."),
    "tune": Verb(".tune", "Search a kernel's configurations on a target."),
    "ps": Verb(".runs", "List active runs."),
    "logs": Verb(".runs", "Print the logs of a run."),
    "attach": Verb(".runs", "Follow a run again after leaving it."),
    "cancel": Verb(".runs", "Stop runs and collect their results."),
    "pull-results": Verb(".pull_results", "Collect results that are not in the local store yet."),
    "results": Verb(".results", "List, show, compare and export stored runs."),
    "hosts": Verb(".hosts", "List, start, stop and audit the targets' machines."),
    "top": Verb(".watch", "Watch runs, GPUs and spending in the terminal."),
    "ui": Verb(".watch", "Show the dashboard in the browser: live runs and results."),
    "jobs": Verb(".jobs", "List, show and check jobs."),
    "config": Verb(".workspace", "Show the configuration and where it comes from."),
    "cost": Verb(".cost", "Show what a run would cost, the prices, and what was spent."),
    "progress": Verb(".progress", "Show each phase: target, best so far, gap, dollars."),
    "schedule": Verb(".schedule", "Run jobs at set times, each within its budget."),
    "session": Verb(".session", "Keep a machine on for several runs, within a budget."),
    "emulator": Verb(".emulator", "Emulate Compute Engine on this machine."),
    "completion": Verb(".completion", "Print a shell completion script."),
}


class LazyGroup(click.Group):
    """The verbs of :data:`VERBS`, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return load(cmd_name) if cmd_name in VERBS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            error = click.UsageError(f"unknown command '{args[0]}'", ctx)
            hint = "fcctl --help, or fcctl COMMAND --help" if args[0] == "help" else did_you_mean(args[0], VERBS)
            error.fcctl_hint = hint  # type: ignore[attr-defined]  # ours, beside click's own
            raise error
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def load(name: str) -> click.Command:
    """Import one verb."""
    module = importlib.import_module(VERBS[name].module, "orchestrator.cli.verbs")
    command: click.Command = getattr(module, name.replace("-", "_"))
    for one in getattr(command, "commands", {}).values():  # else click cuts the sentence at the line's end
        one.short_help = " ".join((one.help or "").partition("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."
    return adopt(command)
