from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from fcctl_tune.errors import SpecError
from fcctl_tune.search.spec import Spec, Timeouts

SAXPY: dict[str, Any] = {
    "tune": "saxpy",
    "title": "block size and unrolling",
    "parameters": {"BLOCK": [64, 128, 256], "UNROLL": {"values": [1, 2, 4], "default": 2}},
    "constraints": ["BLOCK * UNROLL <= 512"],
    "env": {"N": 1048576, "FAST": True},
    "build": "nvcc -DBLOCK=$BLOCK saxpy.cu -o $TUNE_OUT/saxpy",
    "collect": [{"reader": "ptxas", "file": "$TUNE_OUT/build.log"}],
    "gates": ["sum(build.kernels[*].spill_store_bytes) == 0", {"expr": "len(build.kernels) > 0", "hint": "none"}],
    "check": "$TUNE_OUT/saxpy --check --seed $TUNE_SEED",
    "bench": "$TUNE_OUT/saxpy --bench",
    "metric": {"reader": "metrics", "file": "$TUNE_OUT/bench.json", "value": "metrics.us"},
    "cases": ["n20", "1,8,512,64"],
    "held_out": ["n22"],
    "timeouts": {"build": "2m", "check": 30, "bench": "1m30s"},
    "trials": 64,
    "elites": 4,
}


def test_a_spec_survives_the_way_to_the_host() -> None:
    spec = Spec.from_dict(SAXPY)
    assert Spec.from_dict(json.loads(json.dumps(spec.entry))) == spec
    assert spec.timeouts == Timeouts(120.0, 30.0, 90.0)
    assert spec.env == {"N": "1048576", "FAST": "1"}
    assert [gate.hint for gate in spec.build.gates] == [None, "none"]
    assert spec.known_space.default == {"BLOCK": 64, "UNROLL": 2}


def test_the_least_that_works() -> None:
    spec = Spec.from_dict({"tune": "x", "parameters": {"A": [1, 2]}, "serve": "python serve.py"})
    assert (spec.trials, spec.elites, spec.cases, spec.metric.unit) == (128, 6, ("default",), "us")
    assert Spec.from_dict(spec.entry) == spec


def test_a_space_that_a_command_prints_comes_later() -> None:
    entry = {"tune": "x", "space": "python space.py", "serve": "python serve.py", "env": {"B": 1}}
    spec = Spec.from_dict(entry)
    assert Spec.from_dict(spec.entry) == spec
    with pytest.raises(SpecError, match="has not run yet"):
        _ = spec.known_space
    whole = spec.with_space({"parameters": {"A": [1, 2]}, "configurations": [{"A": 2}], "default": {"A": 2}})
    assert whole.known_space.size == 1
    assert Spec.from_dict(whole.entry).known_space == whole.known_space
    with pytest.raises(SpecError, match="B is already a parameter"):
        spec.with_space({"parameters": {"B": [1]}})
    with pytest.raises(SpecError, match="must print"):
        spec.with_space([1])


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"trails": 3}, "trails"),
        ({"tune": "a b"}, "tune"),
        ({"title": "two\nlines"}, "title"),
        ({"space": "cmd"}, "space"),
        ({"bench": None}, "bench"),
        ({"serve": "cmd"}, "bench"),
        ({"bench": 3}, "bench"),
        ({"check": None}, "check"),
        ({"check": {"run": "x", "gate": []}}, "check.gate"),
        ({"check": {"run": "x", "gates": ["1 <"]}}, "check.gates[0]"),
        ({"build": None}, "collect"),
        ({"collect": [{"reader": "ptx", "file": "x"}]}, "collect[0].reader"),
        ({"collect": {"reader": "ptxas"}}, "collect"),
        ({"gates": [{"when": "true"}]}, "gates[0]"),
        ({"gates": ["no("]}, "gates[0]"),
        ({"metric": None}, "metric"),
        ({"metric": {"reader": "metrics", "file": "x"}}, "metric.value"),
        ({"metric": {"reader": "times", "file": "x", "value": "metrics.us"}}, "metric.value"),
        ({"gates": ["biuld.kernels == 0"]}, "gates[0]"),
        ({"metric": {**SAXPY["metric"], "file": "$TUNEOUT/bench.json"}}, "metric.file"),
        ({"metric": {**SAXPY["metric"], "file": "${HOME}/bench.json"}}, "metric.file"),
        ({"collect": [{"reader": "ptxas", "file": "../build.log"}]}, "collect[0].file"),
        ({"check": {"run": "x", "collect": [{"reader": "ptxas", "file": "~/x"}]}}, "check.collect[0].file"),
        ({"check": {"run": "x", "gates": [{"expr": "1 == 1", "when": "host.gpus > 0"}]}}, "check.gates[0]"),
        ({"metric": {**SAXPY["metric"], "direction": "down"}}, "metric.direction"),
        ({"cases": []}, "cases"),
        ({"cases": ["a", "a"]}, "cases"),
        ({"cases": ["-rf"]}, "cases[0]"),
        ({"held_out": ["n20"]}, "held_out"),
        ({"timeouts": {"build": "2 minutes"}}, "timeouts.build"),
        ({"timeouts": {"run": 3}}, "timeouts.run"),
        ({"trials": 0}, "trials"),
        ({"trials": True}, "trials"),
        ({"elites": 65}, "elites"),
        ({"env": {"TUNE_OUT": 1}}, "env.TUNE_OUT"),
        ({"env": {"X": [1]}}, "env.X"),
        ({"env": {"BLOCK": 1}}, "env"),
    ],
)
def test_an_error_names_its_key(change: dict[str, Any], key: str) -> None:
    entry = {**copy.deepcopy(SAXPY), **change}
    with pytest.raises(SpecError) as caught:
        Spec.from_dict(entry)
    assert caught.value.key == key
