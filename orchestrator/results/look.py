"""Looking at runs that are home: list, show, and build the index anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.results.documents import Documents, load
from orchestrator.results.last import Last
from orchestrator.results.name_runs import newest
from orchestrator.results.records import SCHEMA_VERSION, RunRecord
from orchestrator.results.store_api import Store


@dataclass(frozen=True)
class Shown:
    """A complete run with all that is worth showing of it."""

    record: RunRecord
    folder: Path
    documents: Documents

    def as_json(self) -> dict[str, Any]:
        """One document: the record, the documents' content, and where the files are."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run": self.record.model_dump(mode="json"),
            "documents": [
                {"step": d.step, "kind": d.kind, "path": d.path, "content": d.content} for d in self.documents.items
            ],
            "problems": list(self.documents.problems),
            "folder": str(self.folder),
        }


def show(store: Store, name: str = "last") -> Shown:
    """The run called ``name``; here ``last`` and ``last:<job>`` mean the newest *complete* one.

    Raises:
        RunNotFound, RunNotFinished: as the store does.
    """
    run_id = find(store, name)
    record, folder = store.get(run_id), store.folder(run_id)
    return Shown(record, folder, load(record, folder))


def find(store: Store, name: str) -> str:
    """The id of a run to look at; ``last`` passes over runs that are not complete, and a tag names its first run."""
    if last := Last.of(name):
        return newest(store, last)
    tag = store.tags().get(name) if name[:1].isalpha() else None  # run ids begin with a digit
    return store.resolve(tag.runs[0] if tag else name)


def chosen(store: Store, names: Sequence[str]) -> list[Shown]:
    """The runs called ``names`` as :func:`show` takes them, each once, in the order given."""
    found: dict[str, Shown] = {}
    for name in names:
        shown = show(store, name)
        found.setdefault(shown.record.run_id, shown)
    return list(found.values())
