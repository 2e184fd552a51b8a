"""``fcctl completion``: the shell's part."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli
from orchestrator.cli.options import COMPLETE_VARIABLE

PROGRAM = "fcctl"


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(cli: Cli, shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish.

    \b
    bash:  fcctl completion bash > ~/.local/share/bash-completion/completions/fcctl
    zsh:   fcctl completion zsh > "${fpath[1]}/_fcctl"
    fish:  fcctl completion fish > ~/.config/fish/completions/fcctl.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    settings = {"complete_func": f"_{PROGRAM}_completion", "complete_var": COMPLETE_VARIABLE, "prog_name": PROGRAM}
    script = found.source_template % settings  # source() would start bash to look at its version
    if cli.json:
        cli.emit({"shell": shell, "script": script})
    else:
        click.echo(script)


def answer(root: click.Command, instruction: str) -> int:
    """Print the completions of ``root`` that the shell asked for through the environment; 0 if it asked rightly."""
    from click.shell_completion import get_completion_class

    shell, _, verb = instruction.partition("_")
    found = get_completion_class(shell)
    if found is None or verb != "complete":
        return 1
    try:
        click.echo(found(root, {"obj": Cli()}, PROGRAM, COMPLETE_VARIABLE).complete())
    except Exception:  # noqa: BLE001 - a broken file must not spill a traceback into someone's prompt
        return 1
    return 0
