"""Compares the ledger with a file of Google's billing export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.base.errors import NotFoundError, UsageError
from orchestrator.machines.targets import CloudTarget, Target
from orchestrator.money.billing.compare import Comparison, Ours, compare
from orchestrator.money.billing.export import MAX_LINE_BYTES, read_export
from orchestrator.runs.cost.spending import lines
from orchestrator.runs.services import Services


def reconcile_with_export(
    services: Services, targets: Iterable[Target], label: str, path: Path, tolerance_pct: float
) -> Comparison:
    """Compares both over the period that the file covers.

    Args:
        label: the workspace as the label of its machines has it.

    Raises NotFoundError: there is no such file; UsageError: it is no detailed billing export; names the line and the
    reason.
    """
    machines = [target for target in targets if isinstance(target, CloudTarget)]
    projects = {target.project for target in machines}
    projects |= {seen.project for seen in services.spending.usage()}
    projects |= {seen.project for seen in services.spending.resources()}
    whose = Ours(frozenset(target.instance for target in machines), frozenset(projects), label)
    return compare(read_export(_lines_of(path), str(path)), lines(services), whose, tolerance_pct)


def _lines_of(path: Path) -> Iterator[bytes]:
    """The lines of the file; of a line that is too long only the beginning, which the reader then rejects."""
    try:
        with path.open("rb") as stream:
            yield from iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b"")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}", hint="docs/ledger.md has the query that makes it") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read", cause=error.strerror or str(error), hint="name another file"
        ) from None
