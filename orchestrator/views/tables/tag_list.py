"""The table of ``fcctl results tag``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.base.sanitize import clean
from orchestrator.results.tags import Tag
from orchestrator.views.tables.cells import print_trimmed, table, text

if TYPE_CHECKING:
    from rich.console import Console


def print_tags(tags: Sequence[Tag], console: Console) -> None:
    """One line a tag, and one for each further run of it."""
    rows = table("TAG", "RUN", "COMMIT", "GPU", "NOTE")
    for tag in tags:
        about = (clean(tag.git_commit[:10]), clean(tag.gpu, 24), clean(tag.note, 80))
        rows.add_row(text(tag.name), text(tag.runs[0]), *(text(cell) for cell in about))
        for run in tag.runs[1:]:
            rows.add_row(text(""), text(run), text(""), text(""), text(""))
    print_trimmed(console, rows, console.width)
