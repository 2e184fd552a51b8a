"""``fcctl results report``: runs as one page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.base.errors import plural
from orchestrator.base.installation import version
from orchestrator.cli.context import Cli, CliCommand
from orchestrator.cli.verbs.results_files import form_of, written

if TYPE_CHECKING:
    from orchestrator.views.blocks import Chart
    from orchestrator.views.report.model import Report

ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".pdf": "pdf"}


@click.command(cls=CliCommand)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--html", "form", flag_value="html", help="One self-contained HTML file.")
@click.option("--md", "form", flag_value="md", help="GitHub-flavoured Markdown; the default.")
@click.option("--pdf", "form", flag_value="pdf", help="PDF, through an installed Chromium or Chrome.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Write to this file; its ending chooses the format."
)
@click.option("--charts", "charts_dir", type=click.Path(file_okay=False), metavar="DIR",
              help="Also write every chart to this folder, as SVG and PNG.")  # fmt: skip
@click.option("--dark", is_flag=True, help="Colours of --charts for a dark background.")
def report(
    cli: Cli, runs: tuple[str, ...], form: str | None, output: str | None, charts_dir: str | None, dark: bool
) -> None:
    """Write a report of RUNs: main result, targets, bottlenecks, what to optimize next, and charts.

    Several runs share one report; each roofline chart shows one GPU. --json prints the report as one document.
    """
    from orchestrator.results.look import chosen
    from orchestrator.views.report.build import build
    from orchestrator.views.report.charts import charts

    output = None if output == "-" else output
    form = form or form_of(output or "", ENDINGS, "md", "--html, --md, --pdf")
    if output is None and form == "pdf" and (cli.json or sys.stdout.isatty()):
        raise click.UsageError("cannot write a PDF to the terminal: name a file with -o")
    with cli.services() as services:
        made = build(chosen(services.store, runs, cli.workspace().root))
    pictures = charts(made)
    written = _write_charts(pictures, Path(charts_dir), dark=dark) if charts_dir else {}
    if output is None and cli.json:
        from orchestrator.views.report.outputs import document

        cli.emit(document(made) | ({"charts": sorted(written.values())} if written else {}))
        return
    content = _render(made, pictures, form, _relative(written, output))
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    _replace(Path(output), content)
    if cli.json:
        cli.emit({"written": output, "format": form, "runs": [r.run_id for r in made.runs],
                  "charts": sorted(written.values())})  # fmt: skip
    cli.note(f"wrote {output}" + (f" and {plural(len(written), 'chart')} to {charts_dir}" if written else ""))


def _render(made: Report, pictures: Sequence[Chart], form: str, files: dict[str, str]) -> bytes:
    if form == "md":
        from orchestrator.views.report.outputs import markdown

        return markdown(made, pictures, files).encode()
    from orchestrator.views.report import page

    html = page.render(made, pictures, made_by=f"fcctl {version()}", for_paper=form == "pdf")
    if form == "html":
        return html.encode()
    from orchestrator.views.report.page import print_pdf

    return print_pdf(html)


def _write_charts(pictures: Sequence[Chart], folder: Path, *, dark: bool) -> dict[str, str]:
    """Each chart as SVG and PNG; the SVGs by the charts' names."""
    from orchestrator.views.report import drawing

    names = {}
    for chart in pictures:
        _replace(folder / f"{chart.name}.svg", drawing.svg_file(chart.spec, dark=dark))
        _replace(folder / f"{chart.name}.png", drawing.png_file(chart.spec, dark=dark))
        names[chart.name] = str(folder / f"{chart.name}.svg")
    return names


def _relative(written: dict[str, str], output: str | None) -> dict[str, str]:
    """The charts' places as the Markdown file names them."""
    import os

    start = Path(output).parent if output else Path()
    return {name: Path(os.path.relpath(path, start)).as_posix() for name, path in written.items()}


def _replace(path: Path, content: bytes) -> None:
    with written(path, parents=True) as stream:
        stream.write(content)
