"""The search over configurations, as far as it needs no GPU: what is timed, and what comes into the table."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from flashcore import registry, sweep, tilings, toolchain
from flashcore.errors import Unavailable, UsageError
from flashcore.shapes import SHAPES
from flashcore.tilings import Row
from flashcore.toolchain import Gpu


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
