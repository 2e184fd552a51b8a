"""``fcctl hosts exec``: one command on several machines at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import FcctlError
from orchestrator.machines.targets import Target

if TYPE_CHECKING:
    from orchestrator.machines.connect.ssh.fabric_connection import Connection


def run_on(
    targets: Sequence[Target],
    command: str,
    connect: Callable[[Target], Connection],
    line: Callable[[str, bool, str], None] | None = None,
) -> list[Any]:
    """Runs ``command`` on all targets at once: for each the result of Invoke, or the exception that ended it. ``line``
    gets the output as it comes: target, whether it is of standard error, text."""
    from orchestrator.machines.connect.ssh.fabric_connection import in_parallel

    outcomes: dict[str, Any] = {}
    with ExitStack() as opened:
        connections = []
        for target in targets:
            try:
                connections.append(opened.enter_context(connect(target)))
            except FcctlError as error:
                outcomes[target.name] = error
        results = in_parallel(connections, command, line) if connections else []
        outcomes.update((one.host, result) for one, result in zip(connections, results, strict=True))
    return [outcomes[target.name] for target in targets]
