"""The search over configurations, as far as it needs no GPU: what is timed, and what comes into the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashcore import registry, sweep, tilings, toolchain
from flashcore.errors import Unavailable, UsageError
from flashcore.shapes import SHAPES
from flashcore.tilings import Row
from flashcore.toolchain import Gpu


def test_a_variant_means_all_its_configurations_and_a_label_one() -> None:
    wmma = registry.VARIANTS["wmma"]
    assert sweep._configurations(["wmma"]) == [(wmma, c) for c in wmma.space()]
    assert sweep._configurations(["wmma:WARPS=8+PAIR_ROWS=16"]) == [
        (wmma, wmma.configure({"WARPS": 8, "PAIR_ROWS": 16}))
    ]


@pytest.mark.parametrize("label", ["nobody", "flagship", "cpu", "wmma:WARPS=5"])
def test_what_has_no_configuration_for_each_shape_is_refused(label: str) -> None:
    with pytest.raises(UsageError):
        sweep._configurations([label])


def test_without_a_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "gpu", lambda: None)
    with pytest.raises(Unavailable, match="no GPU to time on"):
        sweep.run(["wmma"], SHAPES)


def test_rows_come_into_the_table_with_the_run_that_found_them(tmp_path: Path) -> None:
    row = Row("fused", Gpu("a card", 12), SHAPES["mission"], {"TILE_M": 64}, "")
    run, table = tmp_path / "run", tmp_path / "tilings.json"
    out = run / "steps" / "sweep" / "out"
    out.mkdir(parents=True)
    (out / "sweep.json").write_text(json.dumps({"kind": "metrics", "rows": [row.as_dict()]}))
    (run / "run.json").write_text(json.dumps({"run_id": "r7"}))
    assert sweep.adopt(run, table) == 1
    assert tilings.load(table) == (Row("fused", Gpu("a card", 12), SHAPES["mission"], {"TILE_M": 64}, "r7"),)


def test_a_run_without_a_sweep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main(["--adopt", str(tmp_path)]) == 2
    assert "not the folder of a run" in capsys.readouterr().err
    (tmp_path / "run.json").write_text(json.dumps({"run_id": "r7"}))
    with pytest.raises(UsageError, match="has no sweep"):
        sweep.adopt(tmp_path, tmp_path / "t.json")
