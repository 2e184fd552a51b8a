"""From a Vega-Lite specification to a picture: SVG that follows the page's light or dark colours, or files of its own.

Charts name their colours by role (``ink``, ``series1``, ...). In a page each is a CSS variable, so that one picture
serves both schemes; in a file it is the value of one of them. vl-convert renders without a browser or a network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from orchestrator.base.errors import FcctlError

Spec = dict[str, Any]
#: Of a picture's plot, in CSS pixels; labels come on top. More lines than this are no picture any more.
WIDTH, MAX_ROWS = 600, 24

#: Series colours are Okabe and Ito's, which people with any colour vision can tell apart, darkened or lightened until
#: each has a contrast of 3:1 to its ground.
LIGHT = {
    "paper": "#ffffff", "ink": "#1b2430", "soft": "#5b6675", "rule": "#dfe4ea", "band": "#f1f4f7",
    "series1": "#0067a3", "series2": "#b85c00", "series3": "#007f5c", "series4": "#a8487f", "series5": "#6a6f00",
    "series6": "#2f7fb8", "series7": "#8f2d1a", "series8": "#5b6675", "alarm": "#b3261e",
}  # fmt: skip
DARK = {
    "paper": "#12171d", "ink": "#e6ebf1", "soft": "#9aa7b5", "rule": "#2c353f", "band": "#1b222a",
    "series1": "#56b4e9", "series2": "#e69f00", "series3": "#2fc59a", "series4": "#dd8fbd", "series5": "#d6cf4c",
    "series6": "#8fbfe0", "series7": "#e8806c", "series8": "#9aa7b5", "alarm": "#ff8a80",
}  # fmt: skip
SERIES = tuple(f"series{i}" for i in range(1, 9))

_COLOUR = re.compile(r"@([a-z]+\d?)@")
_SVG = "http://www.w3.org/2000/svg"
_TAGS = frozenset({"svg", "g", "path", "line", "rect", "text", "tspan", "circle", "title", "defs", "clipPath"})
_ATTRIBUTES = frozenset({
    "width", "height", "viewBox", "transform", "d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "dx", "dy",
    "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-dashoffset",
    "stroke-miterlimit", "stroke-linecap", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight",
    "font-style", "text-anchor", "clip-path", "id", "display",
})  # fmt: skip


def colour(role: str) -> str:
    """What a specification says for ``role``; replaced when the picture is made."""
    return f"@{role}@"


def numeric(name: str, title: str | None = None, **options: Any) -> Spec:
    """The numbers of the field ``name``."""
    return {"field": name, "type": "quantitative", "title": title, **options}


def nominal(name: str, **options: Any) -> Spec:
    """The words of the field ``name``, in the order of the data."""
    return {"field": name, "type": "nominal", "sort": None, "title": None, **options}


def scaled(name: str, domain: Iterable[Any], values: Iterable[Any], **options: Any) -> Spec:
    """A colour, opacity or dash for each word of ``domain``; no legend unless ``options`` has one."""
    return nominal(name, **{"legend": None, "scale": {"domain": [*domain], "range": [*values]}, **options})


def layer(values: Sequence[Spec], mark: str, encoding: Spec, **options: Any) -> Spec:
    """Marks for ``values``. A text ``said`` of a value is its mark's tooltip."""
    said = {"description": {"field": "said"}} if values and "said" in values[0] else {}
    drawn = {"type": mark, **({} if said else {"aria": False}), **options}
    return {"data": {"values": [*values]}, "mark": drawn, "encoding": {**encoding, **said}}


def inline_svg(spec: Spec) -> str:
    """An ``<svg>`` element for a page that defines ``--ink`` and the others; marks have their values as tooltips.

    Only shapes and text can be in it, whatever the data were.
    """
    root = ET.fromstring(_svg(_coloured(spec, lambda role: f"var(--{role})")))  # noqa: S314  vl-convert's own
    _plain(root)
    root.set("viewBox", root.get("viewBox") or f"0 0 {root.get('width')} {root.get('height')}")
    root.set("aria-hidden", "true")  # the words beside it are for those who do not see it
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode")


def svg_file(spec: Spec, *, dark: bool = False) -> bytes:
    """A standalone SVG in one scheme's colours, on that scheme's ground."""
    return _svg(_coloured(spec, _palette(dark), ground=True)).encode()


def png_file(spec: Spec, *, dark: bool = False, scale: float = 2.0) -> bytes:
    """The same as PNG; ``scale`` 2 is 1,300 to 1,500 pixels wide, enough for a slide."""
    converter = _converter()
    made: bytes = converter.vegalite_to_png(_coloured(spec, _palette(dark), ground=True), scale=scale)
    return made


def _svg(spec: Spec) -> str:
    made: str = _converter().vegalite_to_svg(spec)
    return made


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError as exc:
        from orchestrator.base.installation import to_install

        raise FcctlError(
            "this Python cannot draw charts", cause="vl-convert is not installed", hint=to_install("web")
        ) from exc
    return vl_convert


def _palette(dark: bool) -> Any:
    colours = DARK if dark else LIGHT
    return lambda role: colours[role]


def _coloured(spec: Spec, value_of: Any, *, ground: bool = False) -> Spec:
    whole = {**_FRAME, **spec, "background": colour("paper") if ground else None}
    # Data may hold what looks like a role. It never decides a colour, and if a label says @ink@ it may as well be #...
    replaced = _COLOUR.sub(lambda m: value_of(m[1]) if m[1] in LIGHT else m[0], json.dumps(whole, allow_nan=False))
    resolved: Spec = json.loads(replaced)
    return resolved


def _plain(element: ET.Element) -> None:
    """Keep what draws; a mark's own description becomes its tooltip."""
    element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    description = element.get("aria-label") if element.get("role") == "graphics-symbol" else None
    axis = element.get("aria-roledescription") in ("axis", "legend", "title")
    for name in [n for n in element.attrib if n not in _ATTRIBUTES]:
        del element.attrib[name]
    for child in list(element):
        if child.tag.removeprefix(f"{{{_SVG}}}") in _TAGS and not _draws_nothing(child):
            _plain(child)
        else:
            element.remove(child)
    if description and not axis:
        tooltip = ET.Element("title")
        tooltip.text = description
        element.insert(0, tooltip)
    element.tag = f"{{{_SVG}}}{element.tag}"


def _draws_nothing(element: ET.Element) -> bool:
    return element.get("display") == "none" or element.get("d") in ("", "M0,0h0v0h0Z")


#: With the metrics that vl-convert lays out labels by.
_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_FRAME: Spec = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "padding": {"left": 24, "right": 10, "top": 4, "bottom": 4},
    "config": {
        "font": _FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": colour("ink"), "titleColor": colour("soft"), "gridColor": colour("rule"),
            "domainColor": colour("rule"), "tickColor": colour("rule"), "labelFontSize": 12, "titleFontSize": 12,
            "titleFontWeight": "normal", "labelLimit": 220, "titlePadding": 8,
        },
        "legend": {
            "labelColor": colour("ink"), "titleColor": colour("soft"), "labelFontSize": 12, "titleFontSize": 12,
            "titleFontWeight": "normal", "labelLimit": 220, "symbolStrokeWidth": 2, "columnPadding": 26,
            "symbolBaseStrokeColor": colour("soft"),
            "symbolOpacity": 1,
        },
        "text": {"color": colour("ink"), "fontSize": 12},
        "title": {"color": colour("ink"), "fontSize": 13, "fontWeight": 600, "anchor": "start"},
    },
}  # fmt: skip
