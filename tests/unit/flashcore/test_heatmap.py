"""The sweep's drawing: what the documents say, in colours that are told apart and text that can be read."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from flashcore import heatmap
from flashcore.errors import UsageError

DOCS = Path(__file__).resolve().parents[3] / "docs"
NS = "{http://www.w3.org/2000/svg}"


def document(ratios: dict[tuple[int, int, int], dict[str, float]], **changes: Any) -> dict[str, Any]:
    rows, comparisons = [], []
    for number, ((B, H, S), of) in enumerate(ratios.items()):
        name = f"shape{number}"
        rows.append({"name": name, "shape": {"B": B, "H": H, "S": S, "D": 64}, "mode": "hot"})
        comparisons.append({"benchmark": name, "against": name, "mode": "hot", "null": True, "ratio": 1.0})
        comparisons += [
            {"benchmark": name, "against": f"{name}/{rival}", "mode": "hot", "null": False, "ratio": ratio}
            for rival, ratio in of.items()
        ]
    source = {"label": "flagship", "environment": {"device": "a GPU"}}
    return {**source, "benchmarks": rows, "comparisons": comparisons, **changes}


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def test_each_shape_has_its_numbers_in_both_maps(tmp_path: Path) -> None:
    given = {(1, 8, 64): {"sdpa-flash": 0.5, "sdpa-cudnn": 0.75}, (4, 16, 512): {"sdpa-flash": 1.3, "sdpa-cudnn": 0.9}}
    label, gpu, ratios = heatmap.read([write(tmp_path, "a.json", document(given))])
    assert (label, gpu, ratios) == ("flagship", "a GPU", given)
    root = ET.fromstring(heatmap.svg("A & B", ratios))
    assert [t.text for t in root.iter(f"{NS}text") if t.get("class") == "cell"] == ["0.50", "1.30", "0.75", "1.30"]
    assert [t.text for t in root.iter(f"{NS}text") if t.get("class") == "title"] == ["A & B"]
    empty = [r for r in root.iter(f"{NS}rect") if r.get("class") == "none"]
    assert len(empty) == 4  # two of four places in each map were not measured
    assert heatmap.slower(ratios) == ["4,16,512: 1.30 of FlashAttention-2's time"]


def test_several_documents_are_one_map_if_they_are_of_one_kernel_on_one_gpu(tmp_path: Path) -> None:
    one = write(tmp_path, "a.json", document({(1, 8, 64): {"sdpa-flash": 0.5}}))
    two = write(tmp_path, "b.json", document({(1, 8, 128): {"sdpa-flash": 0.6}}))
    assert len(heatmap.read([one, two])[2]) == 2
    other = write(tmp_path, "c.json", document({}, label="fused"))
    for paths in ([one, other], []):
        with pytest.raises(UsageError, match="one kernel on one GPU"):
            heatmap.read(paths)
    for broken in ({"kind": "build"}, [], document({(1, 8, 64): {"sdpa-flash": 0.5}}, benchmarks=[])):
        with pytest.raises(UsageError, match="not a benchmark document"):
            heatmap.read([write(tmp_path, "d.json", broken)])
    assert heatmap._exit([str(tmp_path / "missing.json"), "--to", str(tmp_path / "x.svg")]) == 2


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_black_text_is_legible_and_faster_differs_from_slower_without_red_and_green() -> None:
    for ratio in (0.01, 0.4, 0.7, 0.99, 1.0, 1.01, 1.4, 2.0, 9.0):
        assert (luminance(heatmap.colour(ratio)) + 0.05) / 0.05 >= 7, ratio
    assert heatmap.colour(0.2) == heatmap.colour(0.4) != heatmap.colour(0.6)
    blue = [int(heatmap.colour(r)[5:], 16) for r in (0.4, 1.0, 2.0)]
    red = [int(heatmap.colour(r)[1:3], 16) for r in (0.4, 1.0, 2.0)]
    assert blue[0] - red[0] > 80  # the axis that people who mix up red and green see
    assert red[2] - blue[2] > 80


def test_the_published_drawing_is_that_of_the_published_figures() -> None:
    label, gpu, ratios = heatmap.read([DOCS / "flagship-sweep.json"])
    assert len(ratios) >= 40
    drawn = (DOCS / "flagship-sweep.svg").read_text(encoding="utf-8")
    title = re.search(r'class="title"[^>]*>([^<]*)<', drawn)
    assert title is not None
    assert drawn == heatmap.svg(title.group(1), ratios)
    assert label in title.group(1)
    assert gpu in title.group(1)
