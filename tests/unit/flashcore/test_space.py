"""Configurations are counted without going through them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod

import pytest

from flashcore import space
from flashcore.__main__ import main
from flashcore.registry import VARIANTS
from flashcore.variant import Constraint, Parameter, Variant

FEW = [v for v in VARIANTS.values() if prod(len(p.values) for p in v.parameters) <= 5000]


@pytest.mark.parametrize("variant", FEW, ids=lambda v: v.name)
def test_as_many_as_going_through_them_finds(variant: Variant) -> None:
    assert space.count(variant.parameters, variant.constraints) == sum(1 for _ in variant.space())


def parameter(name: str, *values: int) -> Parameter:
    return Parameter(name, values, values[0], "")


A, B, C = parameter("A", 0, 1, 2), parameter("B", 0, 1, 2), parameter("C", 0, 1)


@pytest.mark.parametrize(
    ("rule", "legal"),
    [
        (lambda c: c["A"] == 0 or c["B"] == c["A"], 3 * 2 + 2 * 2),
        (lambda c: c == {"A": 1, "B": 2, "C": 0}, 1),  # asks for all at once
        (lambda c: sum(c.values()) == 0, 1),
        (lambda c: len(c) == 3 and "C" in c, 18),
        (lambda c: c.get("C", 7) == 1, 9),
        (lambda c: False, 0),
        (lambda c: True, 18),
    ],
)
def test_whatever_way_a_constraint_looks(rule: object, legal: int) -> None:
    assert space.count((A, B, C), (Constraint("", rule),)) == legal  # type: ignore[arg-type]  # lambdas of a table


def test_a_constraint_on_a_parameter_that_there_is_not_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        space.count((A,), (Constraint("", lambda c: c["Z"] == 0),))


def test_nothing_to_choose_is_one_configuration() -> None:
    assert space.count((), ()) == 1


def test_the_largest_space_is_counted_with_few_questions() -> None:
    asked = 0

    def counted(constraint: Constraint) -> Constraint:
        def holds(chosen: Mapping[str, int]) -> bool:
            nonlocal asked
            asked += 1
            return constraint.holds(chosen)

        return Constraint(constraint.text, holds)

    largest = max(VARIANTS.values(), key=lambda v: prod(len(p.values) for p in v.parameters))
    found = space.count(largest.parameters, [counted(c) for c in largest.constraints])
    combinations = prod(len(p.values) for p in largest.parameters)
    assert 0 < found < combinations
    assert asked < combinations / 10


def test_the_listing_tells_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    listed = {v["name"]: v["configurations"] for v in json.loads(capsys.readouterr().out)["variants"]}
    assert listed.keys() == VARIANTS.keys()
    assert all(listed[v.name] == sum(1 for _ in v.space()) for v in FEW)
