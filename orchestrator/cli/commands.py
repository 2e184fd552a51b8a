"""The verbs: where each is, and its line in the help. No verb's module is imported before it is invoked."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import click

from orchestrator.base.errors import did_you_mean
from orchestrator.cli.options import adopt


class Verb(NamedTuple):
    module: str
    attribute: str
    help: str


VERBS: dict[str, Verb] = {
    "init": Verb("orchestrator.cli.verbs.init", "init", "Make this folder a workspace: fcctl.toml and a first job."),
    "doctor": Verb("orchestrator.cli.verbs.doctor", "doctor", "Check this machine, the workspace and a target."),
    "preflight": Verb("orchestrator.cli.verbs.preflight", "preflight", "Check the GPU, CUDA and PyTorch of a target."),
    "run": Verb("orchestrator.cli.verbs.run", "run", "Run a job on a target and bring its results home."),
    "tune": Verb("orchestrator.cli.verbs.tune", "tune", "Search a kernel's configurations on a target."),
    "ps": Verb("orchestrator.cli.verbs.ps", "ps", "List the runs that are not complete."),
    "logs": Verb("orchestrator.cli.verbs.logs", "logs", "Print the logs of a run."),
    "attach": Verb("orchestrator.cli.verbs.attach", "attach", "Follow a run again after leaving it."),
    "cancel": Verb("orchestrator.cli.verbs.cancel", "cancel", "Stop runs and bring home what they have."),
    "pull-results": Verb(
        "orchestrator.cli.verbs.pull_results", "pull_results", "Bring home results that are not here yet."
    ),
    "results": Verb("orchestrator.cli.results.group", "results", "Look at the runs that are home."),
    "hosts": Verb("orchestrator.cli.verbs.hosts", "hosts", "List, wake, stop and audit the targets' machines."),
    "top": Verb("orchestrator.cli.verbs.top", "top", "Watch runs, GPUs and spending in the terminal."),
    "ui": Verb("orchestrator.cli.verbs.ui", "ui", "Watch runs in the browser: live, history, compare, reports."),
    "jobs": Verb("orchestrator.cli.verbs.jobs", "jobs", "List, show and check jobs."),
    "config": Verb("orchestrator.cli.verbs.config", "config", "Show the configuration and where it comes from."),
    "cost": Verb("orchestrator.cli.verbs.cost", "cost", "Say what a run would cost, and by which prices."),
    "schedule": Verb("orchestrator.cli.verbs.schedule", "schedule", "Run jobs at set times, each within its budget."),
    "session": Verb(
        "orchestrator.cli.verbs.session", "session", "Keep a machine warm for several runs, within a budget."
    ),
    "emulator": Verb("orchestrator.cli.verbs.emulator", "emulator", "Emulate Compute Engine on this machine."),
    "completion": Verb("orchestrator.cli.completion", "completion", "Print a shell completion script."),
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
            error = click.UsageError(f"there is no command '{args[0]}'", ctx)
            hint = "fcctl --help, or fcctl COMMAND --help" if args[0] == "help" else did_you_mean(args[0], VERBS)
            error.fcctl_hint = hint  # type: ignore[attr-defined]  # ours, beside click's own
            raise error
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def load(name: str) -> click.Command:
    """Import one verb."""
    verb = VERBS[name]
    command: click.Command = getattr(importlib.import_module(verb.module), verb.attribute)
    return adopt(command)
