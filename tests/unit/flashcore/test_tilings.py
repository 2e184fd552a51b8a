"""The table of measured tilings: which row counts for a shape and a GPU, and what is refused."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashcore import registry, sweep, tilings, toolchain, tuned
from flashcore.errors import Unavailable, UsageError
from flashcore.shapes import SHAPES, Shape
from flashcore.tilings import Row
from flashcore.toolchain import Gpu

ROOT = Path(__file__).resolve().parents[3]
FUSED = registry.VARIANTS["fused"]
H200, L4 = Gpu("NVIDIA H200", 132), Gpu("NVIDIA L4", 58)
SMALL, LARGE = Shape(1, 8, 512, 64), Shape(4, 16, 2048, 64)
ROWS = (
    Row("fused", H200, SMALL, {"TILE_M": 32}, "r1"),
    Row("fused", H200, LARGE, {"TILE_M": 128, "WARPS_KV": 1}, "r2"),
    Row("stage5", H200, LARGE, {"TILE_M": 128}, "r3"),
)


def chosen(shape: Shape, gpu: Gpu | None, rows: tuple[Row, ...] = ROWS) -> int:
    return tilings.choose(FUSED, shape, gpu, rows).configuration["TILE_M"]


def test_a_measured_shape_has_its_own_row_and_the_rest_its_defaults() -> None:
    choice = tilings.choose(FUSED, LARGE, H200, ROWS)
    assert choice.configuration == FUSED.configure({"TILE_M": 128, "WARPS_KV": 1})
    assert choice.reason.startswith("measured: 4,16,2048,64 on NVIDIA H200 (132 SMs), run r2")


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        (Shape(1, 8, 64, 64), 32),
        (Shape(2, 8, 512, 64), 32),
        (Shape(8, 16, 4096, 64), 128),
        (Shape(4, 16, 1024, 64), 128),
    ],
)
def test_another_shape_takes_the_row_with_a_like_load_and_like_keys(shape: Shape, tile: int) -> None:
    choice = tilings.choose(FUSED, shape, H200, ROWS)
    assert choice.configuration["TILE_M"] == tile
    assert choice.reason.startswith("nearest measured: ")


def test_on_another_gpu_the_load_of_a_multiprocessor_counts() -> None:
    """As many rows for each of 58 as 132 have of a shape more than twice as large."""
    rows = (Row("fused", H200, Shape(1, 8, 2048, 64), {"TILE_M": 64}, "r1"),
            Row("fused", H200, Shape(1, 8, 4672, 64, S_kv=2048), {"TILE_M": 128, "WARPS_KV": 1}, "r2"))  # fmt: skip
    assert chosen(Shape(1, 8, 2048, 64), H200, rows) == 64
    assert chosen(Shape(1, 8, 2048, 64), L4, rows) == 128
    assert chosen(Shape(1, 8, 2048, 64), None, rows) == 128  # without a GPU: for the L4


def test_the_rows_of_this_gpu_go_before_nearer_ones_of_others() -> None:
    rows = (*ROWS, Row("fused", L4, LARGE, {"TILE_M": 64}, "r4"))
    assert chosen(SMALL, L4, rows) == 64
    assert chosen(SMALL, H200, rows) == 32


def test_without_rows_for_the_variant_or_its_head_dimension_it_has_its_defaults() -> None:
    assert tilings.choose(FUSED, SMALL, H200, ()).configuration == FUSED.configure()
    assert chosen(Shape(4, 16, 2048, 128), H200) == 32


def test_a_library_that_chooses_is_overruled_by_exact_rows_only() -> None:
    flagship = registry.VARIANTS["flagship"]
    rows = (Row("flagship", H200, LARGE, {"TILE_M": 64, "STAGES": 2}, "r"),)
    assert tilings.choose(flagship, LARGE, H200, rows).configuration["TILE_M"] == 64
    for shape, gpu in ((SMALL, H200), (LARGE, L4)):
        assert tilings.choose(flagship, shape, gpu, rows).configuration["TILE_M"] == 0


def test_a_newer_row_replaces_the_older_and_is_read_back() -> None:
    newer = Row("fused", H200, LARGE, {"TILE_M": 64}, "r9")
    text = tilings.render([*ROWS, newer])
    assert tilings.parse(text) == (ROWS[0], newer, ROWS[2])
    assert tilings.render(reversed(tilings.parse(text))) == text, "one order, whoever writes it"
    assert tilings.TABLE.read_text() == tilings.render(tilings.load())


@pytest.mark.parametrize(
    "entry",
    [
        {"set": {"TILE_M": 33}},
        {"set": {"TILES": 1}},
        {"variant": "nobody"},
        {"shape": {"B": 0, "H": 8, "S": 512, "D": 64}},
        {"sms": "many"},
        {"gpu": None, "run": None, "set": None},
    ],
)
def test_a_broken_row_is_refused_with_the_reason(entry: dict[str, object], tmp_path: Path) -> None:
    table = tmp_path / "tilings.json"
    table.write_text(json.dumps({"schema_version": 1, "rows": [{**ROWS[0].as_dict(), **entry}]}))
    with pytest.raises(UsageError):
        tilings.load(table)


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 2, "rows": []}', '{"schema_version": 1}'])
def test_what_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(UsageError, match=r"t\.json is not a table of tilings"):
        tilings.load(tmp_path / "t.json")


def test_every_row_of_the_table_is_legal_and_names_published_evidence() -> None:
    published = {p.parent.name for p in ROOT.glob("results/reference/*/*/run.json")}
    for row in tilings.load():
        assert row.run in published, f"{row.variant} at {row.shape}: no run {row.run} in results/reference"
        assert row.shape.D in registry.VARIANTS[row.variant].head_dims


def test_set_goes_past_the_table_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "gpu", lambda: H200)
    monkeypatch.setattr(tilings, "load", lambda: ROWS)
    table, asked = tuned.Tuned(FUSED), tuned.Tuned(FUSED, {"TILE_M": 32})
    assert table.label == "fused"
    assert table.choice(LARGE).configuration["TILE_M"] == 128
    assert asked.label == "fused:TILE_M=32"  # though it is the default: without the table
    assert asked.choice(LARGE) == tilings.Choice(FUSED.configure(), "as set")
    with pytest.raises(UsageError, match=r"not 1,4,1,64 \(keys 99, heads of keys 2\)"):
        table.choice(Shape(1, 4, 1, 64, S_kv=99, H_kv=2))
    assert tilings.reachable(FUSED, H200) == [FUSED.configure(r.settings) for r in ROWS[:2]]
    assert tilings.reachable(registry.VARIANTS["wmma"], H200) == [registry.VARIANTS["wmma"].configure()]


def test_every_named_shape_has_a_configuration_on_any_machine() -> None:
    for variant in registry.VARIANTS.values():
        for shape in SHAPES.values():
            for gpu in (None, H200, Gpu("a card of tomorrow", 300)):
                assert tilings.choose(variant, shape, gpu).configuration.keys() == variant.configure().keys()


def test_a_variant_means_all_its_configurations_and_a_label_one() -> None:
    wmma = registry.VARIANTS["wmma"]
    assert sweep._configurations(["wmma"]) == [(wmma, c) for c in wmma.space()]
    assert sweep._configurations(["wmma:WARPS=8+WARP_ROWS=16"]) == [
        (wmma, wmma.configure({"WARPS": 8, "WARP_ROWS": 16}))
    ]


@pytest.mark.parametrize("label", ["nobody", "flagship", "cpu", "wmma:WARPS=5"])
def test_what_has_no_configuration_for_each_shape_is_refused(label: str) -> None:
    with pytest.raises(UsageError):
        sweep._configurations([label])


def test_without_a_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "gpu", lambda: None)
    with pytest.raises(Unavailable, match="no GPU to measure on"):
        sweep.run(["wmma"], SHAPES)


ROW = {"gpu": "a card", "sms": 12, "case": "mission", "params": {"TILE_M": 64, "WARPS_KV": 4}, "run": "r7"}


Written = Callable[[Any], tuple[int, str, str]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Written:
    """What `fcctl tune --adopt` gives to the table's own command, and what that prints."""

    def run(given: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(given)))
        return tilings.main(), *capsys.readouterr()

    return run


def test_rows_come_into_the_table_with_the_run_that_found_them(written: Written) -> None:
    there = tilings.TABLE.read_text()
    code, text, _ = written({"env": {"VARIANT": "fused"}, "rows": [ROW], "text": there})
    # WARPS_KV is at its default, and a table holds what differs.
    added = Row("fused", Gpu("a card", 12), SHAPES["mission"], {"TILE_M": 64}, "r7")
    assert code == 0
    assert [row for row in tilings.parse(text) if row != added] == list(tilings.load())
    assert added in tilings.parse(text)


def test_a_card_of_the_table_needs_no_count_of_multiprocessors(written: Written) -> None:
    known = {**ROW, "gpu": "NVIDIA H200", "sms": None, "params": {"TILE_M": 64}}
    code, text, _ = written({"env": {"VARIANT": "stage2"}, "rows": [known]})
    assert code == 0
    assert tilings.parse(text)[0].gpu == Gpu("NVIDIA H200", 132)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"env": {"VARIANT": "fuzed"}, "rows": [ROW]}, "are not from a search"),
        ({"env": {"VARIANT": "fused"}, "rows": [{**ROW, "sms": None}]}, "number of multiprocessors of a a card"),
        ({"env": {"VARIANT": "fused"}, "rows": [{**ROW, "params": {"TILE_M": 7}}]}, "TILE_M"),
        ({"env": {"VARIANT": "fused"}, "rows": [ROW], "text": "{}"}, "not a table of tilings"),
        ([], "standard input is not a JSON object"),
    ],
)
def test_what_is_no_row_is_refused(written: Written, given: Any, said: str) -> None:
    code, text, error = written(given)
    assert (code, text) == (2, "")
    assert said in error
