"""The search on a real GPU, from the space of a variant to the last word; skipped where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashcore import registry, tune
from flashcore.tune import Service

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("builds"),
]

ROOT = Path(__file__).resolve().parents[3]
VARIANT = "fused"


@pytest.mark.parametrize("mode", ["hot", "eager", "cold"])
def test_two_configurations_are_checked_and_timed_in_turns(mode: str) -> None:
    variant = registry.VARIANTS[VARIANT]
    service = Service(variant, mode)
    default, other = variant.configure(), variant.configure({"TILE_M": 64})
    for params in (default, other):
        checked = service.answer({"id": 1, "op": "check", "params": params, "seed": 5, "cases": ["mission", "s64"]})
        assert checked["ok"], checked
        timed = service.answer({"id": 2, "op": "bench", "params": params, "seed": 5, "case": "s64", "repeats": 27})
        assert timed["ok"], timed
        assert len(timed["samples"]) == 27
    many = [{"params": default}, {"params": other}, {"params": default}]
    turns = service.answer({"id": 3, "op": "turns", "many": many, "seed": 6, "case": "mission", "turns": 28})
    assert turns["ok"], turns
    first, _, again = (sorted(per)[14] for per in turns["per"])
    near = 0.3 if mode == "eager" else 0.05  # Python's own time varies from call to call
    assert first / again == pytest.approx(1, abs=near)  # the same kernel
    assert turns["clocks"]["sm_mhz"] > 0


def test_the_last_check_of_a_kernel_looks_at_the_target_cards_resources_too() -> None:
    variant = registry.VARIANTS[VARIANT]
    request = {"id": 1, "op": "check", "params": variant.configure(), "seed": 5, "cases": ["s64"], "final": True}
    reply = Service(variant).answer(request)
    assert reply["ok"], reply
    assert reply["cases"] == 3 + 5


def test_a_search_finds_something_and_keeps_the_gpu_busy(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("distributed")
    flashcore = f"cd {ROOT / 'kernels'} && exec {sys.executable} -m flashcore tune {VARIANT}"
    spec = {
        "tune": VARIANT,
        "space": flashcore + " --space", "build": flashcore + " --build", "serve": flashcore + " --serve",
        "gates": ["all(build.kernels[*].spill_store_bytes == 0)", "all(build.kernels[*].stack_bytes == 0)"],
        "cases": ["mission"], "held_out": ["s128"], "trials": 24, "elites": 3,
    }  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    argv = [sys.executable, "-m", "fcctl_tune", "run", "spec.json", "--out", "out"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "remote"), *filter(None, sys.path)])}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert document["complete"]
    assert document["gpu"]["name"] == torch.cuda.get_device_name()
    assert document["gpu"]["sms"] == torch.cuda.get_device_properties(0).multi_processor_count
    assert document["summary"]["trials"] == 24
    assert {entry["verdict"] for entry in document["final"]} <= {"faster", "slower", "undecided"}
    assert document["effort"]["gpu_timed_share"] > 0
    assert tune.space(registry.VARIANTS[VARIANT], {})["default"] == document["default"]["params"]
