"""A report as one HTML file: no script, no network, light and dark, on paper and read aloud."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from orchestrator.base.errors import FcctlError
from orchestrator.views.report import words
from orchestrator.views.report.blocks import Chart
from orchestrator.views.report.drawing import DARK, LIGHT, inline_svg
from orchestrator.views.report.model import Report
from orchestrator.views.report.sections import sections

if TYPE_CHECKING:
    from jinja2 import Environment

#: Nothing but the page's own styles: should an escape ever fail, there is still no script that could run.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render(report: Report, charts: Sequence[Chart], *, made_by: str = "fcctl", for_paper: bool = False) -> str:
    """The page. ``for_paper`` opens what a reader on a screen would unfold, but for the pictures' numbers.

    Raises:
        FcctlError: Jinja2 or vl-convert is not installed.
    """
    template = environment().get_template("report.html.j2")
    from markupsafe import Markup  # it comes with Jinja2, and so does the error without it

    pictures = {chart.name: Markup(inline_svg(chart.spec)) for chart in charts}  # noqa: S704  shapes and text only
    return template.render(
        title=words.title(report), verdict=" ".join(words.verdict(report)), sections=sections(report, charts),
        several=len(report.runs) > 1, pictures=pictures, made_by=made_by, for_paper=for_paper, policy=POLICY,
        style=Markup(styles()),  # noqa: S704  a file of ours
    )  # fmt: skip


@cache
def styles() -> str:
    """The report's style sheet, the colours of both schemes first."""
    light, dark = ("".join(f"--{role}:{value};" for role, value in colours.items()) for colours in (LIGHT, DARK))
    schemes = (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"@media print{{:root{{color-scheme:light;{light}}}}}"
    )
    return schemes + resources.files(__package__).joinpath("templates/report.css").read_text()


@cache
def environment() -> Environment:
    """Jinja2 with escaping on for every template."""
    try:
        import jinja2
    except ImportError as exc:
        from orchestrator.base.extras import to_install

        raise FcctlError(
            "an HTML report cannot be made here", cause="Jinja2 is not installed", hint=to_install("web")
        ) from exc
    return jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
