"""The documents of a complete run, read back. Names and content came from a host and are not trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base import json_text, safe_paths
from orchestrator.base.json_text import Budget
from orchestrator.results.records import RunRecord, StepRecord

#: Documents of a run that are looked at.
MAX_DOCUMENTS = 500
#: Of a step.
WENT_WELL = ("passed", "warned")
#: Kind of a search's document, and its name.
TUNING = "tuning"


@dataclass(frozen=True)
class Document:
    """One JSON document a step wrote. ``path`` is relative to the run's folder."""

    step: str
    kind: str
    path: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Documents:
    """What could be read, in the order of the steps, and a line for each that could not."""

    items: tuple[Document, ...]
    problems: tuple[str, ...] = ()

    def of(self, kind: str) -> list[Document]:
        return [d for d in self.items if d.kind == kind]


def load(record: RunRecord, folder: Path, budget: Budget | None = None) -> Documents:
    """Read the documents that ``record`` names from the run's ``folder``, and what cut-off searches had found.
    ``budget`` is the memory that they may take together; a run's own if absent."""
    items, problems = [], []
    budget, room = budget or Budget(), MAX_DOCUMENTS
    for step in record.steps:
        if len(step.documents) > room:
            rest = len(step.documents) - room
            problems.append(f"{step.id}: fcctl reads at most {MAX_DOCUMENTS} documents of a run; not read: {rest}")
        for ref in step.documents[:room]:
            room -= 1
            try:
                items.append(Document(step.id, ref.kind, ref.path, read(folder, ref.path, budget)))
            except (OSError, ValueError) as exc:
                problems.append(f"{step.id}: {ref.path}: {exc.strerror if isinstance(exc, OSError) else exc}")
        items += _untold(step, folder, budget)
    return Documents(tuple(items), tuple(problems))


def _untold(step: StepRecord, folder: Path, budget: Budget) -> Iterator[Document]:
    """What a search had found that was cut off: its record does not name it, since nobody looked at what a cancelled
    step had left. Of one that went well it does not name what the host found fault with."""
    if step.status in WENT_WELL or any(ref.kind == TUNING for ref in step.documents):
        return
    path = f"steps/{step.id}/out/{TUNING}.json"
    try:
        content = read(folder, path, budget)
    except (OSError, ValueError):
        return
    if content.get("kind") == TUNING:
        yield Document(step.id, TUNING, path, content)


def label(document: Document) -> str:
    """What ties documents of one kernel together: its label (the variant with its settings); empty without one."""
    return str(document.content.get("label") or document.content.get("variant") or "")


def read(folder: Path, path: str, budget: Budget) -> dict[str, Any]:
    """The document ``path`` of the run in ``folder``. Raises OSError: it is not there, or may not be read; ValueError:
    it is none, or takes more memory than ``budget`` has left."""
    stream, size = safe_paths.open_result(folder, path)
    with stream:
        if size > budget.left:
            raise json_text.TooLarge(f"its {size} bytes need more memory than fcctl allows for documents")
        content = stream.read(size)
    value = budget.loads(content)
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004  one kind of error for everything a host can get wrong
    return value
