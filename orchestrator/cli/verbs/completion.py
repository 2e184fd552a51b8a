"""``fcctl completion``: the shell's script, and the names of jobs, targets and runs while a person types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from orchestrator.base.errors import UsageError
from orchestrator.base.files import read_bounded
from orchestrator.base.safe_paths import open_plain
from orchestrator.base.sanitize import table
from orchestrator.cli.context import COMPLETE_VARIABLE, Cli, CliCommand
from orchestrator.workspace.root import FILE_NAME, roots

PROGRAM = "fcctl"


@click.command(cls=CliCommand)
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish", "install"]))
def completion(cli: Cli, shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish. `install` writes it where the shell of $SHELL looks.

    \b
    bash: fcctl completion bash > ~/.local/share/bash-completion/completions/fcctl
    zsh:  fcctl completion zsh > "${fpath[1]}/_fcctl"
    fish: fcctl completion fish > ~/.config/fish/completions/fcctl.fish
    """
    if shell == "install":
        _install(cli)
        return
    script = _script(shell)
    cli.show({"shell": shell, "script": script}, lambda: click.echo(script))


def _script(shell: str) -> str:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"unsupported shell '{shell}'")
    settings = {"complete_func": f"_{PROGRAM}_completion", "complete_var": COMPLETE_VARIABLE, "prog_name": PROGRAM}
    return kind.source_template % settings  # source() would start bash to look at its version


#: Where each shell looks for the script, below the home.
_PLACES = {
    "bash": ".local/share/bash-completion/completions/fcctl",
    "zsh": ".zfunc/_fcctl",
    "fish": ".config/fish/completions/fcctl.fish",
}
#: zsh looks into no folder of a user by itself.
_ZSHRC = "fpath=(~/.zfunc $fpath); autoload -Uz compinit && compinit\n"


def _install(cli: Cli) -> None:
    from orchestrator.base.files import make_folders, write_atomic

    shell = Path(cli.environ.get("SHELL") or "").name
    if shell not in _PLACES:
        raise UsageError(
            f"unsupported shell '{shell}' in $SHELL", hint="fcctl completion bash, zsh or fish prints a script"
        )
    home = Path.home()
    path = home / _PLACES[shell]
    make_folders(path.parent)
    write_atomic(path.parent, path.name, _script(shell).encode())
    written, rc = [path], Path(cli.environ.get("ZDOTDIR") or home) / ".zshrc"
    before = rc.read_text(errors="replace") if shell == "zsh" and rc.is_file() else ""
    if shell == "zsh" and ".zfunc" not in before:
        with rc.open("a") as stream:
            stream.write(_ZSHRC if before.endswith("\n") or not before else f"\n{_ZSHRC}")
        written.append(rc)
    if not cli.show({"shell": shell, "written": written}):
        for one in written:
            click.echo(f"wrote  {one}")
        cli.note("open a new terminal to use it")


def answer(root: click.Command, instruction: str) -> int:
    """Print the completions of ``root`` that the shell asked for through the environment; 0 if it asked rightly."""
    from click.shell_completion import get_completion_class

    shell, _, verb = instruction.partition("_")
    completer = get_completion_class(shell)
    if completer is None or verb != "complete":
        return 1
    try:
        click.echo(completer(root, {"obj": Cli()}, PROGRAM, COMPLETE_VARIABLE).complete())
    except Exception:  # noqa: BLE001 - a broken file must not spill a traceback into someone's prompt
        return 1
    return 0


_MAX_RUNS = 200
_MAX_TAGS_BYTES = 1024 * 1024
_RUN_ID = re.compile(r"\d{8}t\d{6}z-[a-z0-9-]{1,50}")


def names_for(param: click.Parameter) -> Callable[[], Iterable[str]] | None:
    """The function that lists the values of a parameter, chosen by its placeholder in the help, such as RUN or TARGET;
    None if nothing lists them."""
    if isinstance(param.type, click.Choice):
        return None
    word = "SEARCH" if param.name == "search" else param.metavar or (param.name or "").upper()
    return _NAMES.get(word.strip("[].").partition("|")[0])


def complete_with(names: Callable[[], Iterable[str]]) -> Any:
    """A click completer that offers what starts as typed, or contains it if nothing does."""

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
        known = list(names())
        return [n for n in known if n.startswith(typed)] or [n for n in known if typed in n]

    return complete


def job_names() -> list[str]:
    from orchestrator.runs.job.files import BUILT_IN

    root, data = _workspace()
    folder = root / str(table(data.get("project")).get("jobs", "jobs"))
    return sorted({path.stem for path in folder.glob("*.yaml")} | set(BUILT_IN)) if root.parts else []


def search_names() -> list[str]:
    """Files of searches; what variants they name is for those who read them."""
    root, _ = _workspace()
    return sorted(path.stem for path in (root / "tune").glob("*.yaml")) if root.parts else []


def target_names() -> list[str]:
    _, data = _workspace()
    return sorted({"local", "sandbox", *table(data.get("targets"))})


def page_names() -> list[str]:
    from orchestrator.cli.verbs.help import pages

    return list(pages())


def run_names() -> list[str]:
    """Tags, then the newest runs first, active ones included."""
    root, data = _workspace()
    results = root / str(table(data.get("project")).get("results", "results"))
    names: set[str] = set()
    for folder in (results / "runs", results / "active"):
        if folder.is_dir():
            names.update(path.name for path in folder.iterdir() if _RUN_ID.fullmatch(path.name))
    return ["last", *_tags(results), *sorted(names, reverse=True)[:_MAX_RUNS]]


def _tags(results: Path) -> list[str]:
    from orchestrator.base import toml

    try:
        stream, _ = open_plain(results / "tags.toml")
        with stream:
            return sorted(table(toml.loads(stream.read(_MAX_TAGS_BYTES).decode()).get("tags")))
    except (OSError, ValueError):
        return []


#: A and B are the runs that are compared.
_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "RUN": run_names, "A": run_names, "B": run_names, "JOB": job_names, "SEARCH": search_names, "TARGET": target_names,
    "TOPIC": page_names,
}  # fmt: skip


def _workspace() -> tuple[Path, dict[str, Any]]:
    """The nearest fcctl.toml's folder and content; an empty path and nothing if there is none."""
    from orchestrator.base import toml

    for folder in roots(Cli().start.absolute()):
        try:
            return folder, toml.loads(read_bounded(folder / FILE_NAME))
        except (OSError, ValueError):
            continue
    return Path(), {}
