"""Runs for a report, looked up once each."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.results.look import RunReader, Shown, show


def chosen(store: RunReader, names: Sequence[str]) -> list[Shown]:
    """The runs called ``names`` (:func:`~orchestrator.results.look.show`), each once, in the order given.

    Raises:
        RunNotFound, RunNotFinished: as the store does.
    """
    found: dict[str, Shown] = {}
    for name in names:
        shown = show(store, name)
        found.setdefault(shown.record.run_id, shown)
    return list(found.values())
