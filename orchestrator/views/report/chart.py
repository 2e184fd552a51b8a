"""One picture of a report, with its words and its numbers for those who do not see it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.views.report.drawing import Spec

#: Of the plot itself, in CSS pixels; labels come on top.
WIDTH = 600
#: More lines than this are no picture any more.
MAX_ROWS = 24


@dataclass(frozen=True)
class Chart:
    name: str  # a file's name, without its ending
    title: str
    #: What is to be seen, in a sentence or two.
    caption: str
    spec: Spec
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
