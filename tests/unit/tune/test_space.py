from __future__ import annotations

import itertools
import os
import random
import subprocess

import pytest

from fcctl_tune.errors import SpecError
from fcctl_tune.search.records import Trial
from fcctl_tune.search.space import COUNTED, Space


def space(**entry: object) -> Space:
    return Space.from_dict(entry)


TILES = space(
    parameters={"BLOCK": {"values": [256, 64, 128], "default": 128}, "UNROLL": [1, 2, 4], "LAYOUT": ["row", "col"]},
    constraints=["BLOCK * UNROLL <= 512", 'LAYOUT == "row" or UNROLL < 4'],
)


def legal() -> list[dict[str, object]]:
    return [
        {"BLOCK": block, "UNROLL": unroll, "LAYOUT": layout}
        for block, unroll, layout in itertools.product([256, 64, 128], [1, 2, 4], ["row", "col"])
        if block * unroll <= 512 and (layout == "row" or unroll < 4)
    ]


def test_every_legal_configuration_is_there_once_the_default_first() -> None:
    assert TILES.default == {"BLOCK": 128, "UNROLL": 1, "LAYOUT": "row"} == TILES.all[0]
    assert sorted(map(TILES.key, TILES.all)) == sorted(map(TILES.key, legal()))
    assert TILES.size == len(legal()) < TILES.product
    assert all(one in TILES for one in legal())
    assert {"BLOCK": 256, "UNROLL": 4, "LAYOUT": "row"} not in TILES
    assert {"BLOCK": 96, "UNROLL": 1, "LAYOUT": "row"} not in TILES
    assert {"BLOCK": 128} not in TILES


def test_a_key_is_the_same_in_any_order_and_tells_types_apart() -> None:
    assert TILES.key({"LAYOUT": "col", "UNROLL": 2, "BLOCK": 64}) == 'BLOCK=64 UNROLL=2 LAYOUT="col"'
    mixed = space(parameters={"A": [True, False], "B": ["1", "2"], "C": [1, 2.5]})
    assert mixed.key(mixed.default) == 'A=true B="1" C=1'
    assert Trial(1, {"A": False, "B": "2", "C": 2.5}).environment == {"A": "0", "B": "2", "C": "2.5"}
    assert {"A": 1, "B": "1", "C": 1} not in mixed


def test_a_listing_is_the_space() -> None:
    listed = [{"A": 1, "B": 2}, {"A": 3, "B": 2}, {"A": 1, "B": 4}]
    one = space(parameters={"A": [1, 3], "B": [2, 4]}, configurations=listed, default={"A": 3, "B": 2})
    assert one.size == 3
    assert one.all[0] == {"A": 3, "B": 2}
    assert {"A": 3, "B": 4} not in one
    assert {one.key(one.draw(random.Random(i))) for i in range(50)} == {one.key(p) for p in listed}


def test_a_huge_space_is_drawn_from_and_not_walked() -> None:
    wide = {f"P{i}": list(range(16)) for i in range(12)}
    one = space(parameters=wide, constraints=["P0 + P1 <= 16"])
    assert one.product > COUNTED
    assert one.size is None
    assert all(one.draw(random.Random(i)) in one for i in range(20))
    with pytest.raises(ValueError, match="too many"):
        _ = one.all


def test_a_huge_space_that_is_nearly_all_illegal_still_gives_legal_ones() -> None:
    wide = {f"P{i}": list(range(16)) for i in range(12)}
    same = space(parameters=wide, constraints=[f"P{i} == P{i + 1}" for i in range(11)])
    drawn = [same.draw(random.Random(i)) for i in range(8)]
    assert all(one in same for one in drawn)
    assert len({same.key(one) for one in drawn}) > 1


def test_a_constraint_that_cannot_be_decided_is_not_legal() -> None:
    one = space(parameters={"A": {"values": [0, 1, 2], "default": 1}}, constraints=["4 / A >= 2"])
    assert [p["A"] for p in one.all] == [1, 2]


@pytest.mark.parametrize(
    ("entry", "key", "says"),
    [
        ({}, "parameters", "1 to 64"),
        ({"parameters": {"A B": [1]}}, "parameters.A B", "environment variable"),
        ({"parameters": {"TUNE_OUT": [1]}}, "parameters.TUNE_OUT", "choose another name for the parameter"),
        ({"parameters": {"PATH": [1]}}, "parameters.PATH", "choose another name for the parameter"),
        ({"parameters": {"SECONDS": [1]}}, "parameters.SECONDS", "choose another name for the parameter"),
        ({"parameters": {"A": [10**400]}}, "parameters.A", "is not a valid value"),
        ({"parameters": {"A": []}}, "parameters.A", "has 0"),
        ({"parameters": {"A": [1, 1.0]}}, "parameters.A", "twice"),
        ({"parameters": {"A": [1, "1"]}}, "parameters.A", "mixes"),
        ({"parameters": {"A": [1, True]}}, "parameters.A", "mixes"),
        ({"parameters": {"A": [float("nan")]}}, "parameters.A", "is not a valid value"),
        ({"parameters": {"A": [[1]]}}, "parameters.A", "is not a valid value"),
        ({"parameters": {"A": {"values": [1, 2], "default": 3}}}, "parameters.A.default", "is not one of"),
        ({"parameters": {"A": {"value": [1, 2]}}}, "parameters.A", "its keys are values and default"),
        ({"parameters": {"A": [1, 2]}, "constraints": ["A <"]}, "constraints[0]", "column"),
        ({"parameters": {"BLOCK": [1, 2]}, "constraints": ["BLOK < 2"]}, "constraints[0]", "did you mean BLOCK"),
        ({"parameters": {"A": [1, 2]}, "constraints": ["A > 0", "A > 1"]}, "constraints[1]", "A=1, violates A > 1"),
        ({"parameters": {"A": [1, 2]}, "constraints": ["A * 2"]}, "constraints[0]", "is 2 for the default"),
        ({"parameters": {"A": [1, 2], "B": ["x", "y"]}, "constraints": ["A < B"]}, "constraints[0]", "A < B: "),
        ({"parameters": {"A": [1, 2]}, "configurations": []}, "configurations", "1 to"),
        ({"parameters": {"A": [1, 2]}, "configurations": [{"A": 3}]}, "configurations[0]", "is not one of"),
        ({"parameters": {"A": [1, 2]}, "configurations": [{"A": 2}, {"A": 2}]}, "configurations", "twice"),
        ({"parameters": {"A": [1, 2]}, "configurations": [{"A": 2}]}, "default", "is not one of"),
    ],
)  # fmt: skip
def test_an_error_names_its_key(entry: dict[str, object], key: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        Space.from_dict(entry)
    assert caught.value.key == key


def test_bash_gives_a_command_every_parameter_as_it_was_chosen() -> None:
    """Names that bash has a value of its own for are refused, all of them: the shell itself is asked."""
    known = subprocess.run(["bash", "-c", "compgen -v"], capture_output=True, text=True, check=True).stdout.split()
    for name in {*known, "BLOCK", "GROUPS", "N"} - {"PATH"}:
        try:
            space(parameters={name: [128]})
        except SpecError:
            continue
        command = ["bash", "-eo", "pipefail", "-c", f'sleep 0; echo "${{{name}}}"']
        env = {"PATH": os.environ["PATH"], name: "128"}
        assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "128\n", name
