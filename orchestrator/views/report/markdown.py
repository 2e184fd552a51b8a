"""A report as GitHub-flavoured Markdown: for a README, a pull request, a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.base.text.escape import markdown as escape
from orchestrator.base.text.escape import markdown_table
from orchestrator.views.report import words
from orchestrator.views.report.blocks import Block, Cell, Chart, Facts, Findings, Folded, Grid, Heading, Picture, Text
from orchestrator.views.report.model import Report
from orchestrator.views.report.sections import sections


def render(report: Report, charts: Sequence[Chart] = (), pictures: Mapping[str, str] | None = None) -> str:
    """The report; ``pictures`` names the file (or address) of each chart that is to be shown."""
    files = pictures or {}
    lines = [f"# {escape(words.title(report))}", "", " ".join(escape(said) for said in words.verdict(report)), ""]
    for section in sections(report, [chart for chart in charts if chart.name in files]):
        lines += [f"## {escape(section.title)}", ""]
        lines += [line for block in section.blocks for line in _block(block, files)]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.rstrip() + "\n"


def _block(block: Block, files: Mapping[str, str]) -> Iterator[str]:
    """Its lines, a blank one last."""
    match block:
        case Text():
            yield "" if block.note else escape(block.text)
        case Heading():
            yield f"### {escape(f'{block.text} {block.soft}'.rstrip())}"
        case Facts():
            yield from (f"- {escape(name)}: {escape(_cell(value))}" for name, value in block.pairs)
        case Grid():
            yield from (escape(block.caption), "")
            yield from markdown_table(block.header, [[_cell(cell) for cell in row] for row in block.rows])
        case Findings():
            yield from _findings(block)
        case Picture():
            yield from (f"### {escape(block.chart.title)}", "")
            yield f"![{escape(block.chart.caption)}](<{files[block.chart.name]}>)"
        case Folded():
            yield from (f"### {escape(block.summary)}", "")
            yield from (line for inner in block.blocks for line in _block(inner, files))
    yield ""


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return cell
    text = cell.text.replace("_", " ") if cell.kind == "status" else cell.text
    return text + (f"{'; ' if cell.kind == 'status' else ' '}{cell.note}" if cell.note else "")


def _findings(block: Findings) -> Iterator[str]:
    for i, (shape, finding) in enumerate(block.findings, 1):
        facts = "; ".join(f"{name} {value} (rule: {threshold})" for name, value, threshold in finding.facts)
        where = f" On {shape}:" if shape else ""
        yield f"{i}. **{escape(finding.bottleneck)}**.{escape(where)} {escape(facts)}. Next: {escape(finding.lever)}."
