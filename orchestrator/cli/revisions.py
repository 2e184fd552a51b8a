"""``--rev``: the source of a launch from git."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.base.errors import JobError
from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.cli.launching import Launching
    from orchestrator.runs.source.revision import Revision
    from orchestrator.workspace.workspace import Workspace


@contextmanager
def revision(cli: Cli, how: Launching) -> Iterator[Revision | None]:
    """The files of ``--rev`` while the ``with`` statement lasts; None without the option. Raises ConfigError,
    NotFoundError."""
    if how.rev is None:
        yield None
        return
    from orchestrator.runs.source.revision import checked_out

    with checked_out(cli.workspace().root, how.rev) as found:
        cli.note(f"source: revision {found.name}, commit {found.commit[:10]}; the working tree is not used")
        try:
            yield found
        except JobError as error:  # its lines are not those of the working tree
            error.message = f"revision {found.name}: {error.message}"
            raise


def workspace_with(cli: Cli, there: Revision | None, has: Callable[[Workspace], bool], what: str) -> Workspace:
    """The workspace whose job or search counts: the revision's if it ``has`` it, else the working tree's."""
    here = cli.workspace()
    if there is None:
        return here
    other = here.at(there.root)
    if has(other):
        return other
    if has(here):
        cli.note(f"revision {there.name} has no {what}: fcctl uses that of the working tree")
    return here
