from __future__ import annotations

from typing import Any

import pytest

from orchestrator.results.timings import Peers, timings


def entry(name: str, p50: float = 10.0, **more: Any) -> dict[str, Any]:
    return {"name": name, "unit": "us", "stats": {"p50": p50}, **more}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"name": "mission", "variant": "cpu"}, {"name": "mission/sdpa", "variant": "sdpa"}),
        ({"name": "mission"}, {"name": "mission.sdpa"}),
        ({"name": "mission"}, {"name": "sdpa/mission"}),
        ({"name": "mission/baseline", "variant": "baseline"}, {"name": "mission/pytorch"}),
        ({"name": "mission", "variant": "wmma"}, {"name": "mission", "variant": "sdpa_flash"}),
        ({"name": "mission:hot", "mode": "hot"}, {"name": "mission:sdpa", "mode": "hot"}),
        ({"name": "x", "case": "mission"}, {"name": "y", "case": "mission", "role": "reference"}),
    ],
)
def test_ours_meets_its_reference(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    found = timings({"benchmarks": [{**entry("", 10.0), **ours}, {**entry("", 25.0), **theirs}]})
    assert [t.is_reference for t in found] == [False, True]
    assert [t.case for t in found] == ["mission", "mission"]
    peers = Peers(found, {})
    assert [peers.references(timing) for timing in found] == [[found[1]], []]
    ratio = peers.ratio(*found)
    assert ratio is not None
    assert ratio.value == 0.4
    assert not ratio.paired


def test_other_cases_modes_and_units_are_not_compared() -> None:
    found = timings(
        {
            "benchmarks": [
                entry("mission", mode="hot"),
                entry("s64/sdpa", mode="hot"),
                entry("mission/sdpa", mode="eager"),
                entry("mission/sdpa", mode="hot") | {"unit": "ms"},
            ]
        }
    )
    assert Peers(found, {}).references(found[0]) == []


def test_the_fastest_of_several_backends_is_the_reference() -> None:
    names = ["mission", "mission/sdpa-math", "mission/sdpa-flash", "mission/sdpa-efficient"]
    found = timings({"benchmarks": [entry(n, p) for n, p in zip(names, (10.0, 60.0, 20.0, 30.0), strict=True)]})
    fastest, *_ = Peers(found, {}).references(found[0])
    assert fastest.name == "mission/sdpa-flash"


def test_a_measured_ratio_wins_over_the_quotient() -> None:
    comparison = {"benchmark": "mission", "against": "mission/sdpa", "ratio": 0.5, "ci_low": 0.45, "ci_high": 0.55}
    document = {"benchmarks": [entry("mission"), entry("mission/sdpa", 25.0)], "comparisons": [comparison]}
    ours, theirs = timings(document)
    ratio = Peers((ours, theirs), document).ratio(ours, theirs)
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high, ratio.paired) == (0.5, 0.45, 0.55, True)


def test_names_that_only_look_like_a_reference() -> None:
    found = timings({"benchmarks": [entry("torchlight"), entry("nosdpa2"), entry("matmul/1024")]})
    assert [t.is_reference for t in found] == [False, False, False]
    assert [t.case for t in found] == ["torchlight", "nosdpa2", "matmul"]


def test_entries_without_a_median_are_left_out() -> None:
    bad: list[Any] = [None, 1, {}, {"name": "a"}, entry("b", 0.0), entry("c", -1), entry("d", float("nan"))]
    assert timings({"benchmarks": bad}) == []
    assert timings({"benchmarks": "no"}) == []
