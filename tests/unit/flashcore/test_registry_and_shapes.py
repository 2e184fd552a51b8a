from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from math import prod

import pytest
import torch

from flashcore import inputs, ladder, reference, registry, separate, shapes, space
from flashcore.__main__ import main
from flashcore.command.asked import settings_of
from flashcore.errors import UsageError
from flashcore.registry import VARIANTS
from flashcore.tuned import Tuned
from flashcore.variant import Constraint, Parameter, Variant


def variant() -> Variant:
    return Variant(
        name="tiled",
        device="cuda",
        source=registry.CSRC / "baseline.cu",
        summary="",
        parameters=(Parameter("TILE_M", (32, 64), 64, "rows"), Parameter("TILE_N", (32, 64, 128), 64, "keys")),
        constraints=(Constraint("TILE_M * TILE_N fits 4096", lambda c: c["TILE_M"] * c["TILE_N"] <= 4096),),
    )


def test_defaults_hold_where_nothing_is_set() -> None:
    assert variant().configure({"TILE_N": 32}) == {"TILE_M": 64, "TILE_N": 32}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"TILE_K": 32}, "did you mean TILE_"),
        ({"TILE_N": 48}, "legal values: 32, 64, 128"),
        ({"TILE_N": 128}, "TILE_M * TILE_N fits 4096"),
    ],
)
def test_an_illegal_configuration_names_what_is_legal(overrides: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        variant().configure(overrides)
    assert said in str(raised.value)


def test_the_space_is_every_legal_configuration_once_defaults_first() -> None:
    found = [tuple(c.values()) for c in variant().space()]
    assert found[0] == (64, 64)
    assert sorted(found) == [(32, 32), (32, 64), (32, 128), (64, 32), (64, 64)]


@pytest.mark.parametrize("entry", registry.VARIANTS.values(), ids=lambda v: v.name)
def test_every_registered_variant_is_complete(entry: Variant) -> None:
    assert entry.source.is_file()
    assert entry.device in registry.DEFAULTS
    assert entry.configure() == next(entry.space())
    most = list(entry.configure().items())
    some, more = dict(most[:-4]), dict(most[:-3])  # of the flagship all are a quarter of a million
    assert list(entry.space(more)) == [c for c in entry.space(some) if c.items() >= more.items()]
    assert "flashcore_forward" in entry.source.read_text(encoding="utf-8")


def test_a_rung_is_a_variant_by_another_name() -> None:
    """The names that results and jobs know stay; each idea has one of its own, and a rung below it."""
    for at, rung in enumerate(ladder.RUNGS):
        assert rung.below is None if at == 0 else rung.below in [one.name for one in ladder.RUNGS[:at]]
        name, settings = registry.split(rung.name)
        assert (name, settings) == registry.split(rung.label)
        found = registry.VARIANTS[name]
        assert found.label(found.configure(settings_of(settings))) == rung.label, "as documents have it"
    assert {rung.label for rung in ladder.RUNGS} >= {"wmma", "fused", "stage2", "stage5"}
    assert registry.split("staggered:TILE_N=64")[1][-2:] == ["STAGGERED=1", "TILE_N=64"]


def test_an_unknown_variant_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean baseline"):
        registry.find("basline", lambda: "cpu")
    with pytest.raises(UsageError, match="no kernel variant 'stage9'"):
        registry.find("stage9", lambda: "cuda")


def test_auto_follows_the_device() -> None:
    assert registry.find("auto", lambda: "cuda").name == "baseline"
    assert registry.find("auto", lambda: "cpu").name == "cpu"


HIDING = {
    "2,3,7:7,64,w2": "window 2",
    "2,3,3:9,64,w0": "window 0",
    "2,3,9:3,64,w20": "window 20",
    "2,3,5,64,w4": "window 4",
    "3,2,5:20,64,left": "mask left",
    "3,2:1,5:20,64,right": "mask right",
    "2,2,9:25,64,rows": "mask rows",
    "1,2,40,64,n5": "5 sequences",
    "1,2,5,64,n3": "3 sequences",
}


@pytest.mark.parametrize("text", HIDING)
def test_what_a_shape_hides_is_read_counted_and_masked_alike(text: str) -> None:
    shape = shapes.parse(text)[text]
    tensors = inputs.draw(shape, 0, "cpu")
    mask = inputs.visible(shape, "cpu")
    assert mask is not None
    whole = mask.expand(shape.B, shape.H, shape.S, shape.keys)
    assert shape.scores == int(whole.sum())
    assert shape.keys_read == int(whole[:, 0].any(1).sum())
    variant = registry.VARIANTS["extended"]
    right = reference.expected(*tensors, mask=mask)
    found = reference.expected_of(variant, tensors, **inputs.options(shape, "cpu"))
    assert torch.allclose(found.right, right.right, atol=1e-12)
    assert torch.allclose(found.spread.variance, right.spread.variance)
    assert torch.allclose(reference.rival("sdpa", shape, "cpu")(*tensors).double(), right.right, atol=2e-3)
    assert HIDING[text] in str(shape)
    assert shapes.Shape(**shape.as_dict()) == shape
    with pytest.raises(UsageError, match=r"baseline (needs|does not support) "):
        Tuned(registry.VARIANTS["baseline"]).choice(replace(shape, H_kv=None))


def test_shapes_are_parsed_by_name_and_by_numbers() -> None:
    assert list(shapes.parse("all")) == list(shapes.SHAPES)
    assert len(shapes.SHAPES) == 5
    assert shapes.parse("mission") == shapes.parse("1,8,512,64") == {"mission": shapes.Shape(1, 8, 512, 64)}
    assert list(shapes.parse("mission; 1,2,3,64")) == ["mission", "1,2,3,64"]
    assert list(shapes.parse("all;1,2,3,64")) == [*shapes.SHAPES, "1,2,3,64"]
    decode = shapes.Shape(1, 32, 1, 128, S_kv=4096, H_kv=8)
    assert shapes.parse("1,32:8,1:4096,128; 1,8:8,512:512,64") == {
        "1,32:8,1:4096,128": decode,
        "mission": shapes.SHAPES["mission"],
    }
    assert shapes.Shape(**decode.as_dict()) == decode
    assert str(decode) == "1,32,1,128 (keys 4096, heads of keys 8)"


@pytest.mark.parametrize(
    "text",
    ["missoin", "1,8,512", "1,8,0,64", "1,8,x,64", "", "-1,8,512,64", "1,8:3,5,64", "2,8,64,64,n4", "1,8,3,64,n4",
     "1,8,64,64,up"],
)  # fmt: skip
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="shape"):
        shapes.parse(text)


def test_the_missions_compulsory_traffic() -> None:
    assert shapes.SHAPES["mission"].tensor_bytes == 2_097_152
    assert shapes.SHAPES["mission"].input_bytes == 2_097_152 * 3 // 4
    shared_heads = shapes.Shape(1, 32, 1, 128, S_kv=4096, H_kv=8)
    assert shared_heads.input_bytes == 2 * 128 * (32 + 2 * 8 * 4096)
    assert shared_heads.tensor_bytes == shared_heads.input_bytes + 2 * 128 * 32
    longer_keys = shapes.Shape(1, 2, 3, 64, S_kv=5)
    assert (longer_keys.tensor_bytes, longer_keys.input_bytes) == (2 * 128 * 16, 2 * 128 * 13)


def test_the_kernels_process_knows_all_that_decides_a_launch() -> None:
    of_builds = {
        "source",
        "summary",
        "parameters",
        "constraints",
        "chooses",
        "tilings",
        "libraries",
        "library_of",
        "common",
    }
    assert {field.name for field in fields(Variant)} - of_builds == set(separate.OF_A_LAUNCH)


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
