"""The templates of pages and reports, and blocks as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import FcctlError
from orchestrator.views.blocks import Block, Chart
from orchestrator.views.figures import kind, scale, sign
from orchestrator.views.report.machine_charts import DARK, LIGHT, inline_svg

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@cache
def environment() -> Environment:
    """Jinja2 with escaping on for every template.

    Raises:
        FcctlError: Jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as exc:
        from orchestrator.base.installation import to_install

        raise FcctlError(
            "this Python cannot write HTML", cause="Jinja2 is not installed", hint=to_install("web")
        ) from exc
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"kind": kind, "sign": sign, "polyline": polyline}
    made.globals["draw"] = draw
    return made


def polyline(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    """Points of a small line in a box of 160 by 28, the newest at the right, from ``low`` to ``high`` if given."""
    least, most = scale(values) if low is None or high is None else (low, high)
    step = 160 / max(1, len(values) - 1)
    heights = (27 - 26 * min(1.0, max(0.0, (v - least) / (most - least))) for v in values)
    return " ".join(f"{i * step:.1f},{height:.1f}" for i, height in enumerate(heights))


def draw(chart: Chart) -> Markup:
    """The chart as an ``<svg>`` element."""
    from markupsafe import Markup

    return Markup(inline_svg(chart.spec))  # noqa: S704  shapes and text only


def fragment(blocks: Iterable[Block], root: str = "", level: int = 2) -> str:
    """The blocks as a part of a page whose paths begin with ``root``; headings are of ``level``."""
    known = {"root": root, "level": level, "for_paper": False}
    macros: Any = environment().get_template("blocks.html.j2").make_module(known)
    return "".join(macros.block(one) for one in blocks)


@cache
def styles(name: str) -> str:
    """``name``.css after what pages and reports share: the colours of both schemes, tables, bars."""
    light, dark = ("".join(f"--{role}:{value};" for role, value in colours.items()) for colours in (LIGHT, DARK))
    schemes = (
        f":root{{color-scheme:light dark;{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}@media "
        f"print{{:root{{color-scheme:light;{light}}}}}"
    )
    folder = resources.files(__package__).joinpath("templates")
    return schemes + "".join(folder.joinpath(f"{part}.css").read_text() for part in ("blocks", name))
