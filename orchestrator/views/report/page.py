"""A report as one HTML file: no script, no network, light and dark, on paper and read aloud."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import FcctlError
from orchestrator.views.live.run import duration
from orchestrator.views.report import markdown, words
from orchestrator.views.report.chart import Chart
from orchestrator.views.report.drawing import DARK, LIGHT, inline_svg
from orchestrator.views.report.model import Report
from orchestrator.views.tables.figures import microseconds, small

if TYPE_CHECKING:
    from jinja2 import Environment

#: Nothing but the page's own styles: should an escape ever fail, there is still no script that could run.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render(report: Report, charts: Sequence[Chart], *, made_by: str = "fcctl", for_paper: bool = False) -> str:
    """The page. ``for_paper`` opens what a reader on a screen would unfold, but for the pictures'
    numbers.

    Raises:
        FcctlError: Jinja2 or vl-convert is not installed.
    """
    template = environment().get_template("report.html.j2")
    from markupsafe import Markup  # it comes with Jinja2, and so does the error without it

    pictures = {chart.name: Markup(inline_svg(chart.spec)) for chart in charts}  # noqa: S704  shapes and text only
    return template.render(
        report=report, charts=charts, pictures=pictures, levers=words.levers(report), made_by=made_by,
        for_paper=for_paper, policy=POLICY, style=Markup(styles()),  # noqa: S704  a file of ours
    )  # fmt: skip


@cache
def styles() -> str:
    """The report's style sheet, the colours of both schemes first."""
    light = "".join(f"--{role}:{value};" for role, value in LIGHT.items())
    dark = "".join(f"--{role}:{value};" for role, value in DARK.items())
    schemes = (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"@media print{{:root{{color-scheme:light;{light}}}}}"
    )
    return schemes + resources.files(__package__).joinpath("templates/report.css").read_text()


@cache
def environment() -> Environment:
    """Jinja2 with escaping on for every template, and the words of a report as filters."""
    try:
        import jinja2
    except ImportError as exc:
        from orchestrator.base.extras import to_install

        raise FcctlError(
            "an HTML report cannot be made here", cause="Jinja2 is not installed", hint=to_install("web")
        ) from exc
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    named: dict[str, Any] = {
        "us": microseconds, "small": small, "duration": duration, "heading": words.heading, "unit": words.unit,
        "profile_cells": words.profile_cells, "timing_columns": markdown.timing_columns, "spaced": _spaced,
        "sentence": _sentence,
    }  # fmt: skip
    made.filters.update(named)
    made.globals.update(
        timing_cell=markdown.timing_cell, verdict=words.verdict, title=words.title, run_facts=words.run_facts,
        profile_header=words.PROFILE_HEADER, good=words.GOOD,
    )  # fmt: skip
    return made


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _spaced(text: str) -> str:
    return text.replace("_", " ")
