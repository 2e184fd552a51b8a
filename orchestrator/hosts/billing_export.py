"""The ledger reconciled with a file of Google's own billing lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.base.errors import NotFoundError, UsageError
from orchestrator.machines.targets import GcpTarget, Target
from orchestrator.money.billing.compare import Comparison, Ours, compare
from orchestrator.money.billing.export import MAX_LINE_BYTES, read_export
from orchestrator.runs.cost.spending import lines
from orchestrator.runs.services import Services


def reconcile_with_export(
    services: Services, targets: Iterable[Target], label: str, path: Path, tolerance_pct: float
) -> Comparison:
    """Both books over the time that the file covers.

    Args:
        label: the workspace as the label of its machines has it.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is no detailed billing export; says in which line, and why.
    """
    machines = [target for target in targets if isinstance(target, GcpTarget)]
    projects = {target.project for target in machines}
    projects |= {seen.project for seen in services.spending.usage()}
    projects |= {seen.project for seen in services.spending.resources()}
    whose = Ours(frozenset(target.instance for target in machines), frozenset(projects), label)
    return compare(read_export(_lines_of(path), str(path)), lines(services), whose, tolerance_pct)


def _lines_of(path: Path) -> Iterator[bytes]:
    """Its lines, as they come; of one that is too long the beginning, which tells that it is."""
    try:
        with path.open("rb") as stream:
            yield from iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b"")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}", hint="docs/ledger.md has the query that makes it") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read", cause=error.strerror or str(error), hint="name another file"
        ) from None
