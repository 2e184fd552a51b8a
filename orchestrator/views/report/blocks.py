"""What a report is made of, whatever it is printed as: sections of text, facts, tables, findings and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from orchestrator.views.report.drawing import Spec


@dataclass(frozen=True)
class Cell:
    """A cell with a ``note`` beside it; ``kind``: status or code, empty for plain text."""

    text: str
    note: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Grid:
    """A table. Columns in ``numbers`` are aligned right, rows in ``references`` are not ours."""

    kind: ClassVar[str] = "grid"
    header: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    caption: str = ""
    numbers: tuple[int, ...] = ()
    references: tuple[int, ...] = ()


@dataclass(frozen=True)
class Chart:
    """One picture, with its words and its numbers for those who do not see it. ``name``: a file's, without ending."""

    name: str
    title: str
    caption: str
    spec: Spec
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def numbers(self) -> Grid:
        caption = f"{self.title}, the numbers"
        return Grid(self.header, self.rows, caption, numbers=tuple(range(1, len(self.header))))


@dataclass(frozen=True)
class Finding:
    """A bottleneck that a document names: which rule found it, what to try next, and the numbers that triggered it, as
    (name, value, threshold). ``impact``: percent of the kernel's time that it concerns."""

    rule: str
    bottleneck: str
    lever: str
    impact: float
    facts: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Text:
    """A paragraph. Only pages have an explanatory ``note``."""

    kind: ClassVar[str] = "text"
    text: str
    note: bool = False


@dataclass(frozen=True)
class Heading:
    kind: ClassVar[str] = "heading"
    text: str
    soft: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str | Cell], ...]


@dataclass(frozen=True)
class Findings:
    """Findings with the shape that each was found on, the most important first."""

    kind: ClassVar[str] = "findings"
    findings: tuple[tuple[str, Finding], ...]


@dataclass(frozen=True)
class Picture:
    kind: ClassVar[str] = "picture"
    chart: Chart


@dataclass(frozen=True)
class Folded:
    """Shown on a screen once it is unfolded."""

    kind: ClassVar[str] = "folded"
    summary: str
    blocks: tuple[Block, ...]


Block = Grid | Text | Heading | Facts | Findings | Picture | Folded


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: Sequence[Block]
