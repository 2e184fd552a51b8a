from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import UsageError
from orchestrator.results.compare import facts as compare_facts
from orchestrator.results.compare.compare import compare_all, with_margin
from orchestrator.results.compare.effect import Effect, Spread
from orchestrator.results.compare.history import SourceChanges, run_to_run
from orchestrator.results.compare.rows import GpuActivity, Machine, Row, rows_of
from orchestrator.results.compare.verdicts import (
    Compared,
    Comparison,
    FailOn,
    Options,
    _moved,
    _verdict,
    compare,
    failures,
    parse,
)
from orchestrator.results.store.store import FileStore
from orchestrator.results.timings import Measurement
from tests.support.measured_runs import COMMITS, document, entry, measured, samples, searched, simple

HOST = {"gpu": {"name": "NVIDIA L4", "driver": "550.54.15", "present": True, "power_limit_w": 72.0}}


def rows(*documents: dict[str, Any], machine: Machine | None = None) -> list[Row]:
    return [row for d in documents for row in rows_of(d, machine or Machine(HOST))]


def verdicts(old: Sequence[Row], new: Sequence[Row], **options: Any) -> dict[str, str]:
    return {b.name: b.verdict for b in compare(old, new, Options(**options)).benchmarks}


def test_the_five_verdicts() -> None:
    old = document(*(entry(name, samples(10.0, seed=i)) for i, name in enumerate("abc")), entry("d", samples(10.0)))
    new = document(
        entry("a", samples(11.0, seed=9)),
        entry("b", samples(9.0, seed=8)),
        entry("c", samples(10.01, seed=7)),
        entry("d", samples(10.0), shape={"B": 2, "H": 8, "S": 512, "D": 64}),
    )
    expected = {"a": "slower", "b": "faster", "c": "same", "d": "incomparable"}
    assert verdicts(rows(old), rows(new), spread=0.01) == expected
    assert verdicts(rows(old), rows(new))["c"] == "inconclusive", "launches may differ by more than the margin"
    noisy = rows(document(entry("a", samples(10.2, noise=0.05, seed=3))))
    assert verdicts(rows(document(entry("a", samples(10.0)))), noisy) == {"a": "inconclusive"}


@pytest.mark.parametrize(
    ("change", "reason", "allow"),
    [
        ({"device": "NVIDIA H200"}, "different device: NVIDIA L4 before, now NVIDIA H200", "gpu"),
        ({"environment": {"driver": "560.1"}}, "different driver: 550.54.15 before, now 560.1", "driver"),
        ({"method_version": 4}, "different measurement method: v3 before, now v4", "method"),
        ({"tool": "nvbench"}, "different measurement method: v3 before, now nvbench v3", "method"),
    ],
)
def test_what_cannot_be_compared_is_not(change: dict[str, Any], reason: str, allow: str) -> None:
    (found,) = compare(rows(simple(10.0)), rows(simple(20.0, **change))).benchmarks
    assert (found.verdict, found.reasons) == ("incomparable", (reason,))
    assert found.effect is not None, "the figures are shown all the same"
    (found,) = compare(rows(simple(10.0)), rows(simple(20.0, **change)), Options(allow=frozenset([allow]))).benchmarks
    assert found.verdict == "slower"
    assert reason in found.notes


def clocks(sm_mhz: float, throttled: int = 0) -> list[dict[str, Any]]:
    reading = {"sm_mhz": sm_mhz, "throttled": []}
    return [{"benchmark": "mission", "against": "mission", "clocks": [reading] * 10, "throttled_blocks": throttled}]


def test_other_clocks_and_other_throttling() -> None:
    old = rows(simple(10.0, comparisons=clocks(2040)))
    assert compare(old, rows(simple(11.0, comparisons=clocks(1700)))).benchmarks[0].reasons == (
        "different clocks: 2040 MHz before, now 1700 MHz",
    )
    assert compare(old, rows(simple(11.0, comparisons=clocks(2030)))).benchmarks[0].verdict == "slower"
    assert compare(old, rows(simple(11.0, comparisons=clocks(2040, 5)))).benchmarks[0].reasons == (
        "different throttling: no before, now yes",
    )
    both = rows(simple(10.0, comparisons=clocks(2040, 5)))
    assert compare(both, rows(simple(11.0, comparisons=clocks(2040, 6)))).benchmarks[0].verdict == "slower"


def test_telemetry_speaks_where_the_document_does_not() -> None:
    old = rows(simple(10.0), machine=Machine(HOST, GpuActivity(2040.0, throttled=False)))
    slow = rows(simple(11.0), machine=Machine(HOST, GpuActivity(1500.0, throttled=True)))
    assert len(compare(old, slow).benchmarks[0].reasons) == 2


def test_clocks_within_the_tolerance_still_count_as_uncertainty() -> None:
    old = rows(simple(10.0, comparisons=clocks(2040)))
    stated = Options(spread=0.01)
    near = compare(old, rows(simple(10.4, comparisons=clocks(1990))), stated).benchmarks[0]
    alike = compare(old, rows(simple(10.4, comparisons=clocks(2040))), stated).benchmarks[0]
    assert alike.verdict == "slower"
    assert near.verdict == "inconclusive"
    assert near.notes[0] == "the clocks differ by 2.5 %, so the times may differ as much"
    for mhz, said in ((2030, False), (2029, True)):
        (found,) = compare(old, rows(simple(10.0, comparisons=clocks(mhz)))).benchmarks
        assert any("clocks differ by 0.5 %" in note for note in found.notes) is said


def test_a_processor_is_told_from_another() -> None:
    old = rows(
        document(entry("a", samples(10.0)), device="cpu", environment={}), machine=Machine({"cpu": {"model": "A"}})
    )
    new = rows(
        document(entry("a", samples(12.0)), device="cpu", environment={}), machine=Machine({"cpu": {"model": "B"}})
    )
    assert compare(old, new).benchmarks[0].reasons == ("different device: A before, now B",)


def test_code_that_did_not_change_shows_how_restless_the_machine_is() -> None:
    old = rows(simple(10.0, seed=1))
    new = rows(simple(10.6, seed=2))
    assert verdicts(old, new, spread=0.01) == {"mission": "slower"}
    moved = document(entry("mission", samples(10.6)), entry("mission/sdpa", samples(21.5), variant="sdpa"))
    (found,) = compare(old, rows(moved), Options(spread=0.01)).benchmarks
    assert found.verdict == "inconclusive", "SDPA moved by 7 %, and nobody touched it"
    (control,) = compare(old, rows(moved)).controls
    assert control.effect is not None
    shown = 100 * math.log(control.effect.ratio) / 0.6745 / math.sqrt(2)
    assert found.notes[0] == f"unchanged code differed too: fcctl assumes that launches differ by {shown:.1f} %"


def test_references_are_controls_and_no_regression() -> None:
    old, new = rows(simple(10.0)), rows(
        document(entry("mission", samples(10.0)), entry("mission/sdpa", samples(30.0), variant="sdpa"))
    )  # fmt: skip
    found = compare(old, new)
    assert [b.name for b in found.benchmarks] == ["mission"]
    assert [(c.name, c.verdict) for c in found.controls] == [("mission/sdpa", "slower")]
    assert failures(found, [FailOn("slower")]) == []


def test_torch_in_a_name_alone_makes_no_reference() -> None:
    old, new = (rows(document(entry("torch_ext_matmul", samples(t)))) for t in (10.0, 11.0))
    assert verdicts(old, new) == {"torch_ext_matmul": "slower"}


def test_one_variant_against_another() -> None:
    old = rows(document(entry("mission", samples(10.0), variant="fused")))
    new = rows(document(entry("mission", samples(5.0), variant="flagship")))
    (found,) = compare(old, new).benchmarks
    assert (found.verdict, found.notes) == ("faster", ("variant fused against flagship",))
    two = rows(document(entry("mission", samples(5.0), variant="x"), entry("mission", samples(5.0), variant="y")))
    ambiguous = compare(old, two)
    assert ambiguous.benchmarks == ()
    assert len(ambiguous.only_new) == 2


def test_several_documents_are_several_launches() -> None:
    old = rows(*(simple(10.0 * f, seed=i) for i, f in enumerate((1, 1.002, 0.999, 1.001))))
    new = rows(*(simple(10.2 * f, seed=9 + i) for i, f in enumerate((1, 1.002, 0.999, 1.001))))
    (found,) = compare(old, new).benchmarks
    assert (found.verdict, found.effect.basis, found.effect.launches) == ("slower", "launches", (4, 4))


def test_many_benchmarks_need_more_evidence() -> None:
    """A rise that one benchmark alone would carry does not carry when it is one of many."""
    alone = rows(document(entry("a", samples(10.0)))), rows(document(entry("a", samples(10.34, seed=5))))
    assert verdicts(*alone, spread=0.01) == {"a": "slower"}
    others = [entry(f"case{i}", samples(10.0, seed=i)) for i in range(25)]
    crowd = (
        rows(document(entry("a", samples(10.0)), *others)),
        rows(document(entry("a", samples(10.34, seed=5)), *others)),
    )
    assert verdicts(*crowd, spread=0.01)["a"] == "inconclusive"


def test_calls_from_a_program_are_less_certain() -> None:
    old, new = (rows(document(entry("a", samples(t), mode="eager"))) for t in (10.0, 10.5))
    assert verdicts(old, new) == {"a": "inconclusive"}
    assert verdicts(old, new, spread=0.005) == {"a": "slower"}


def test_names_that_come_twice_stay_apart() -> None:
    found = rows(document(entry("a", samples(10.0)), entry("a", samples(20.0)), entry("a", samples(30.0))))
    assert [row.key.name for row in found] == ["a", "a#2", "a#3"]


def effect_of(ratio: float = 1.1, **changes: Any) -> Effect:
    values = {"low": 1.05, "high": 1.2, "inner_low": 1.06, "inner_high": 1.18, "p": 0.01, "rank_p": 0.01}
    rest = {"basis": "launches", "old": 1.0, "new": ratio, "launches": (4, 4), "samples": (9, 9), "spread": 0.01}
    return Effect(**{"ratio": ratio, "spread_from": "assumed", **values, **rest, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "p", "verdict"),
    [
        (effect_of(), 0.05, "slower"),
        (effect_of(rank_p=0.05), 0.01, "slower"),
        (effect_of(0.9, low=0.8, high=0.95), 0.05, "faster"),
        (effect_of(), 0.051, "inconclusive"),
        (effect_of(rank_p=0.051), 0.01, "inconclusive"),
        (effect_of(low=1.0), 0.01, "inconclusive"),
        (effect_of(0.9, low=0.8, high=1.0), 0.01, "inconclusive"),
        (effect_of(1.0051, low=1.005, inner_low=1.005, inner_high=1.0052), 0.01, "slower"),
        (effect_of(1.0049, low=1.004, inner_low=1.004, inner_high=1.0051), 0.01, "same"),
        (effect_of(0.9949, low=0.99, high=0.999, inner_low=0.99, inner_high=0.999), 0.01, "faster"),
        (effect_of(0.9951, low=0.99, high=0.999, inner_low=0.99, inner_high=0.999), 0.01, "same"),
        (effect_of(1.0, low=0.9, inner_low=0.97, inner_high=1.03), 1.0, "same"),
        (effect_of(1.0, low=0.9, inner_low=0.969, inner_high=1.03), 1.0, "inconclusive"),
        (effect_of(1.0, low=0.9, inner_low=0.97, inner_high=1.031), 1.0, "inconclusive"),
    ],
)
def test_where_one_verdict_ends_and_another_begins(found: Effect, p: float, verdict: str) -> None:
    assert _verdict(found, p, Options()) == verdict


def test_the_worst_come_first_and_of_one_verdict_what_moved_most() -> None:
    moved = {"a": 10.0, "b": 12.0, "c": 14.0, "d": 8.0, "e": 5.0}
    old = rows(document(*(entry(name, samples(10.0, seed=i)) for i, name in enumerate(moved))))
    new = rows(document(*(entry(name, samples(p50, seed=9)) for name, p50 in moved.items())))
    found = compare(old, new, Options(spread=0.005))
    assert [b.name for b in found.benchmarks] == ["c", "b", "e", "d", "a"]
    assert found.counts() == {"slower": 2, "faster": 2, "same": 1, "inconclusive": 0, "incomparable": 0}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ([clocks(2040), clocks(2040, 5)], "different throttling: no before, now in some launches"),
        ([clocks(2040, 1)], "different throttling: no before, now yes"),
        ([clocks(2040, 0)], None),
        ([[{"benchmark": "mission", "clocks": [{"sm_mhz": 2040}]}]], None),
        ([[{"benchmark": "mission", "clocks": {"sm_mhz": [2030, 2050], "readings": 10}, "throttled_blocks": 1}]],
         "different throttling: no before, now yes"),
        ([[{"benchmark": "mission", "clocks": {"sm_mhz": 2040, "readings": 11}, "throttled_blocks": 1}]], None),
        ([[{"benchmark": "mission", "clocks": {"sm_mhz": [1500, 1600]}}]],
         "different clocks: 2040 MHz before, now 1550 MHz"),
    ],
)  # fmt: skip
def test_a_tenth_of_the_blocks_counts_as_throttled(changed: list[Any], said: str | None) -> None:
    old = rows(simple(10.0, comparisons=clocks(2040)))
    new = rows(*(simple(10.0, comparisons=comparisons, seed=i) for i, comparisons in enumerate(changed)))
    assert compare(old, new).benchmarks[0].reasons == ((said,) if said else ())


def test_groups_within_a_launch_are_its_replicates() -> None:
    for replicates, groups in ((3, 3), (None, 1), ("x", 1), (0, 1)):
        beside = [{"benchmark": "mission", "against": "b", "replicates": replicates}, {"benchmark": "mission"}]
        assert [row.launch.groups for row in rows(simple(10.0, comparisons=beside))] == [groups, 1]


def test_a_sample_may_be_a_million_times_the_median_and_a_twentieth_may_be_none() -> None:
    (row,) = rows(document({**entry("a", [2.0] * 9), "samples": [2.0] * 9 + [2e6, 2e-6, 2.1e6, 1.9e-6]}))
    assert (row.launch.samples[-2:], row.launch.left_out) == ((2e6, 2e-6), 2)

    def left_out(odd: int) -> tuple[str, ...]:
        good = samples(10.0, 100 - odd)
        broken = document({**entry("a", good), "samples": [*good, *[0.0] * odd]})
        return compare(rows(broken, broken), rows(document(entry("a", good)))).benchmarks[0].reasons

    assert left_out(5) == ()
    assert left_out(6) == ("6 of 100 samples of a launch are not valid times",), "one launch stands for both"


@pytest.mark.parametrize(("factor", "same"), [(99.0, True), (101.0, False), (1 / 101.0, False)])
def test_times_a_hundred_times_apart_are_in_other_units(factor: float, same: bool) -> None:
    old, new = ({**entry("a", samples(t)), "unit": None} for t in (10.0, 10.0 * factor))
    assert (compare(rows(document(old)), rows(document(new))).benchmarks[0].reasons == ()) is same


@pytest.mark.parametrize(("n", "alike"), [(110, True), (111, False)])
def test_the_lowest_of_a_tenth_more_samples_is_comparable(n: int, alike: bool) -> None:
    old, new = (rows(document(entry("a", samples(10.0, count)))) for count in (100, n))
    for sides in ((old, new), (new, old)):
        assert (compare(*sides, Options(metric="min")).benchmarks[0].reasons == ()) is alike


def test_history_counts_for_the_median_of_fewer_than_four_launches_only() -> None:
    known = Spread(0.02, "history", 7)
    for count, metric, source in ((3, "p50", "history"), (4, "p50", "launches"), (3, "mean", "assumed")):
        side = rows(*(document(entry("a", samples(10.0 + 0.001 * i, seed=i))) for i in range(count)))
        (found,) = compare(side, side[:3] + side[3:], Options(metric=metric), lambda _: known).benchmarks
        assert found.effect is not None
        assert found.effect.spread_from in (source, "launches")
        assert (found.effect.spread_from == "history") is (source == "history")


def test_a_device_is_that_of_the_document_its_environment_or_the_host() -> None:
    cpu = {"model": "Xeon"}
    facts = [
        ({"device": "A", "environment": {"device": "B"}}, {}, ("A", None)),
        ({"device": None, "environment": {"device": "B", "driver": "1"}}, {"gpu": {"name": "C"}}, ("B", "1")),
        ({"device": None, "environment": {}}, {"gpu": {"name": "C", "driver": "2", "mig": True}}, ("C", "2")),
        ({"device": None, "environment": {}}, {"gpu": {"present": True}, "cpu": cpu}, (None, None)),
        ({"device": None, "environment": {}, "threads": 3}, {"gpu": {"present": False}, "cpu": cpu}, ("Xeon", None)),
        ({"device": "cpu", "environment": {}}, {"gpu": {"name": "C"}, "machine": "arm64"}, ("arm64", None)),
    ]  # fmt: skip
    for changes, host, expected in facts:
        (row,) = rows(document(entry("a", samples(1.0)), **changes), machine=Machine(host))
        assert (row.conditions.device, row.conditions.driver) == expected
        assert row.conditions.threads == changes.get("threads")
        assert row.conditions.mig is (True if "mig" in host.get("gpu", {}) else None)


def test_documents_from_a_host_may_hold_anything() -> None:
    odd: list[Any] = [
        {"benchmarks": "x"}, {"benchmarks": [None, 3, {"name": {}, "stats": [], "samples": {"a": 1}}]},
        {"benchmarks": [{"name": "a", "stats": {"p50": -1}, "samples": [1, "x"]}], "comparisons": 4},
        {"benchmarks": [{"name": "a", "stats": {"p50": 1e308}, "samples": [1e308] * 30}], "environment": [],
         "comparisons": [{"benchmark": [], "against": {}, "clocks": {"sm_mhz": "x"}, "throttled_blocks": "many"}]},
    ]  # fmt: skip
    for content in odd:
        found = compare(rows(content, machine=Machine({"gpu": "L4"})), rows(simple(10.0)))
        assert found.benchmarks == found.controls == ()
        assert len(found.only_new) == 2


# ------------------------------------------------------------------------------------------------ odd samples
@pytest.mark.parametrize(
    "odd", [0, 0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-320, "1", None, True, [1.0]], ids=repr
)
def test_a_sample_that_is_no_time_is_said_and_hides_no_regression(odd: object) -> None:
    def launches(p50: float) -> list[Row]:
        taken = [samples(p50, seed=int(p50) + i) for i in range(4)]
        return rows(*(document({**entry("a", s), "samples": [*s[:50], odd, *s[50:]]}) for s in taken))

    for metric in ("p50", "mean", "min"):
        (found,) = compare(launches(10.0), launches(11.0), Options(metric=metric)).benchmarks
        assert found.verdict == "slower"
        assert found.effect.ratio == pytest.approx(1.1, rel=0.01)
        assert any(note.startswith("fcctl does not use 8 of 904 samples") for note in found.notes)


def test_one_figure_of_an_entry_is_enough() -> None:
    stats = {"a": {"p50": 1.0}, "b": {"mean": 1.0}, "c": {"n": 3}}
    found = rows(document(*({**entry(name, [1.0]), "samples": None, "stats": of} for name, of in stats.items())))
    assert [row.key.name for row in found] == ["a", "b"]


def test_many_samples_that_are_no_times_decide_nothing() -> None:
    good = samples(10.0)
    broken = document({**entry("a", good), "samples": [*good[:100], *[float("nan")] * 12]})
    slow = document(entry("a", samples(20.0)))
    (found,) = compare(rows(broken), rows(slow)).benchmarks
    assert (found.verdict, found.reasons) == ("incomparable", ("12 of 112 samples of a launch are not valid times",))
    nothing = document({**entry("a", good), "samples": [0.0] * 112, "stats": {}})
    (found,) = compare(rows(nothing), rows(slow)).benchmarks
    assert found.verdict == "incomparable"
    assert found.reasons == ("112 of 112 samples of a launch are not valid times", "no p50")


def test_a_launch_without_the_metric_is_said() -> None:
    old = rows(*(document(entry("a", samples(10.0, seed=i))) for i in range(5)))
    new = rows(*(document(entry("a", samples(10.0, n=112 if i else 90, seed=i))) for i in range(5)))
    (found,) = compare(old, new, Options(metric="p99")).benchmarks
    assert "fcctl does not use 1 of 10 launches: p99 is missing" in found.notes


@pytest.mark.parametrize("metric", ["min", "p90", "p99"])
def test_ends_of_a_distribution_take_as_many_samples_on_both_sides(metric: str) -> None:
    def sides(n: int) -> tuple[list[Row], list[Row]]:
        old = rows(*(document(entry("a", samples(10.0, n=120, noise=0.02, seed=i))) for i in range(5)))
        return old, rows(*(document(entry("a", samples(10.0, n=n, noise=0.02, seed=9 + i))) for i in range(5)))

    (found,) = compare(*sides(800), Options(metric=metric)).benchmarks
    said = f"the {metric} of 120 samples against that of 800: compare --metric p50"
    assert (found.verdict, found.reasons) == ("incomparable", (said,))
    assert compare(*sides(800)).benchmarks[0].verdict == "same"
    assert compare(*sides(125), Options(metric=metric)).benchmarks[0].reasons == ()


def test_a_missing_unit_never_makes_milliseconds_of_microseconds() -> None:
    in_us, in_ms = samples(10.0), samples(0.01)
    unstated = {**entry("a", in_ms), "unit": None}
    (found,) = compare(rows(document(entry("a", in_us))), rows(document(unstated))).benchmarks
    assert found.verdict == "incomparable"
    assert found.reasons[0] == "different unit: us before, now not stated"
    (found,) = compare(rows(document({**entry("a", in_us), "unit": None})), rows(document(unstated))).benchmarks
    assert found.verdict == "incomparable"
    assert found.reasons == ("the unit is not stated, and the times differ by a factor of 1000",)
    (found,) = compare(rows(document(unstated)), rows(document(unstated)), Options(spread=0.005)).benchmarks
    assert (found.verdict, found.notes) == (
        "same",
        ("the unit is not stated: fcctl assumes the same unit on both sides",),
    )


# ------------------------------------------------------------------------------------------------ measured in turns
def launches(p50: float, times: Sequence[float], sdpa: float | None = None, role: str = "", n: int = 40) -> list[Row]:
    found = []
    for i, time in enumerate(times):
        entries = [entry("mission", samples(p50, n, seed=int(1000 * p50) + i))]
        if sdpa is not None:
            theirs = samples(sdpa, n, seed=int(1000 * sdpa) + i)
            plain = {"role": role} if role else {"variant": "sdpa"}
            entries.append(entry("warm_copy" if role else "mission/sdpa", theirs, **plain))
        found += rows(document(*entries), machine=Machine(HOST, time=time))
    return found


BEFORE, AFTER = (0.0, 1.0, 2.0, 3.0), (10.0, 11.0, 12.0, 13.0)


@pytest.mark.parametrize(
    ("old", "new", "in_turns"),
    [
        ((0, 2, 4), (1, 3, 5), True),  # a third
        ((0, 3, 4, 7), (1, 2, 5, 6), True),
        ((0, 1, 4, 6), (2, 3, 5, 7), False),  # three eighths
        ((0, 1, 4), (2, 3, 5), False),
        ((2, 3, 5), (0, 1, 4), False),
        ((0, 1), (2, 3), False),
    ],
)
def test_sides_are_in_turns_up_to_a_third(old: Sequence[float], new: Sequence[float], in_turns: bool) -> None:
    assert compare(launches(10.0, old), launches(10.0, new)).interleaved is in_turns


def test_what_nobody_minds_is_the_same_however_certain() -> None:
    (found,) = compare(launches(10.0, (0, 2, 4, 6), n=400), launches(10.03, (1, 3, 5, 7), n=400)).benchmarks
    assert found.effect is not None
    assert found.effect.p < 0.001
    assert (found.verdict, found.notes) == ("same", ())


def test_calls_from_a_program_drift_more() -> None:
    def eager(p50: float, at: float) -> list[Row]:
        made = (document(entry("a", samples(p50, seed=i), mode="eager")) for i in range(4))
        return [row for i, one in enumerate(made) for row in rows(one, machine=Machine(HOST, time=at + i))]

    (found,) = compare(eager(10.0, 0.0), eager(10.0, 10.0)).benchmarks
    assert "allows for a drift of 2.5 % between them" in found.notes[0]


def test_in_turns_a_control_within_its_own_interval_has_not_moved() -> None:
    turns = launches(10.0, (0, 2, 4, 6), 20.0), launches(10.1, (1, 3, 5, 7), 20.001)
    assert compare(*turns).benchmarks[0].notes == ()
    for effect, moved in ((effect_of(1.05, low=0.9), 0.0), (effect_of(1.05, low=1.01), math.log(1.05) / 0.6745)):
        control = Compared("sdpa", "", "hot", "us", "inconclusive", effect=effect)
        assert _moved([control], "hot", interleaved=True) == pytest.approx(moved)


def test_sides_that_were_measured_in_turns_need_no_allowance_for_drift() -> None:
    found = compare(launches(10.0, (0, 2, 4, 6)), launches(10.1, (1, 3, 5, 7)))
    assert (found.interleaved, found.benchmarks[0].verdict, found.benchmarks[0].notes) == (True, "slower", ())
    assert compare(launches(10.0, (0, 3, 4, 7)), launches(10.1, (1, 2, 5, 6))).interleaved is True


def test_sides_that_were_not_are_said_and_widened() -> None:
    found = compare(launches(10.0, BEFORE), launches(10.1, AFTER))
    said = "the launches of both sides were not interleaved: the verdict allows for a drift of 1.0 % between them "
    said += "(assumed, without a measurement)"
    assert (found.interleaved, found.benchmarks[0].verdict, found.benchmarks[0].notes) == (False, "same", (said,))
    assert compare(launches(10.0, AFTER), launches(10.5, BEFORE)).benchmarks[0].verdict == "slower"
    sides = launches(10.0, BEFORE), launches(10.5, AFTER)
    (found_here,) = compare(*sides, history=lambda _: Spread(0.03, "history", 7)).benchmarks
    assert found_here.verdict == "inconclusive"
    basis = "from the difference between runs of the same source on this machine"
    assert found_here.notes == (said.replace("1.0", "3.0").replace("assumed, without a measurement", basis),)
    unknown = compare(rows(*[simple(10.0)] * 4), rows(*[document(entry("mission", samples(10.1)))] * 4))
    assert unknown.interleaved is None
    assert "may not have been interleaved" in unknown.benchmarks[0].notes[0]


@pytest.mark.parametrize("role", ["", "anchor"])
def test_a_control_that_moved_as_much_takes_the_verdict_away(role: str) -> None:
    old = launches(10.0, BEFORE, 20.0, role)
    (found,) = compare(old, launches(10.3, AFTER, 20.6, role)).benchmarks
    said = (
        "the launches of both sides were not interleaved: the verdict allows for a drift of 4.4 % between them "
        "(unchanged code differed by this much)"
    )
    assert (found.verdict, found.notes) == ("inconclusive", (said,))
    (found,) = compare(old, launches(10.3, AFTER, 20.0, role)).benchmarks
    assert found.verdict == "slower", "the control shows that nothing drifted"
    assert found.notes == (said.replace("4.4", "0.0"),)
    turns = launches(10.0, (0, 2, 4, 6), 20.0, role), launches(10.3, (1, 3, 5, 7), 20.6, role)
    (found,) = compare(*turns).benchmarks
    said = "unchanged code differed too: the verdict allows for a drift of 4.4 % between the sides"
    assert (found.verdict, found.notes) == ("inconclusive", (said,))


def test_history_says_how_much_runs_differ_where_one_launch_cannot() -> None:
    def run(i: int, p50: float, tree: str, **changed: Any) -> Measurement:
        values = {
            "run_id": f"r{i}", "created": "", "job": "bench", "target": "l4", "status": "passed",
            "benchmark": "mission", "variant": "fused", "mode": "hot", "unit": "us", "shape": "", "method": "",
            "reference": False, "p50": p50, "n": 100, "gpu": "L4", "driver": "1", "git_commit": None,
            "tree_sha256": tree,
        }  # fmt: skip
        return Measurement(**{**values, **changed})

    calm = [run(i, 10.0 + 0.02 * i, "a") for i in range(3)] + [run(9 + i, 20.0 + 0.04 * i, "b") for i in range(3)]
    found = run_to_run(calm)
    assert (found.share, found.freedom, found.source) == (pytest.approx(0.002, rel=0.01), 4, "history")
    assert run_to_run(calm[:3]) is None, "three runs are too few"
    spoilt = [run(20, 90.0, "a", status="failed"), run(0, 80.0, "a"), run(21, 70.0, "c")]
    assert run_to_run([*calm, *spoilt]) == found, "failed runs, second launches and other sources do not count"

    one, other = rows(document(entry("mission", samples(10.0)))), rows(document(entry("mission", samples(10.4))))
    for known, verdict, source in ((None, "inconclusive", "assumed"), (found, "slower", "history"),
                                   (Spread(0.02, "history", 7), "inconclusive", "history")):  # fmt: skip
        (compared,) = compare(one, other, None, lambda _, known=known: known).benchmarks  # type: ignore[misc]
        assert (compared.verdict, compared.effect.spread_from) == (verdict, source)


# ------------------------------------------------------------------------------------------------ failing on it
def test_conditions_as_typed() -> None:
    assert parse("slower:3%") == FailOn("slower", 0.03)
    assert parse("Slower : 0.03".replace(" ", "")) == FailOn("slower", 0.03)
    assert parse("slower") == FailOn("slower", 0.0)
    assert parse("missing") == FailOn("missing")
    assert (parse("slower:100%"), parse("slower:.99")) == (FailOn("slower", 1.0), FailOn("slower", 0.99))
    with pytest.raises(UsageError, match="did you mean 1 times slower"):
        parse("slower:1")
    for text in ("slowr:3%", "slower:", "slower:x%", "faster:-3%", ""):
        with pytest.raises(UsageError):
            parse(text)
    with pytest.raises(UsageError, match="did you mean 3 times slower") as caught:
        parse("slower:3")
    assert "slower:3%" in str(caught.value.hint)


def test_what_is_tolerated_may_be_called_the_same() -> None:
    for shares, margin in (([], 0.03), ([0.0], 0.03), ([0.0, 0.05, 0.04], 0.04)):
        assert with_margin(Options(), [FailOn("slower", share) for share in shares]).margin == margin


def test_failing_takes_a_verdict_and_a_size() -> None:
    def told(p50: float, *conditions: str) -> list[str]:
        found: Comparison = compare(rows(simple(10.0)), rows(simple(p50, seed=4)))
        return [f"{f.kind} {f.message}" for f in failures(found, [parse(c) for c in conditions])]

    assert told(11.0, "slower:3%") == ["slower 10.0 % slower"]
    assert told(11.0, "slower:20%") == []
    same = Compared("a", "", "hot", "us", "slower", effect=effect_of(1.25))
    for share, count in ((0.25, 1), (0.26, 0)):
        assert len(failures(Comparison(Options(), (same,), ()), [FailOn("slower", share)])) == count
    assert told(9.0, "slower:3%", "inconclusive") == []
    assert told(10.2, "slower:1%", "inconclusive") == ["inconclusive inconclusive"]
    gone = compare(rows(simple(10.0)), rows(document(entry("other", samples(1.0)))))
    assert [f.kind for f in failures(gone, [parse("missing")])] == ["missing"] * 2


# ------------------------------------------------------------------------------------------------ facts
def test_the_environment_without_what_is_fleeting() -> None:
    old = {
        "gpu": {"name": "L4", "driver": "1", "temperature_c": 33, "clocks": {"sm_mhz": 1, "max_sm_mhz": 9}},
        "time": 1,
    }
    new = {
        "gpu": {"name": "L4", "driver": "2", "temperature_c": 70, "clocks": {"sm_mhz": 2, "max_sm_mhz": 8}},
        "time": 2,
    }
    found = compare_facts.environment([old], [new, {"gpu": {"driver": "3"}}])
    assert [(d.name, d.old, d.new) for d in found] == [
        ("gpu.driver", "1", "2 and 3"), ("gpu.clocks.max_sm_mhz", 9, 8),
    ]  # fmt: skip
    assert [d.weight for d in found] == [0.0, 0.0]
    one_sided = compare_facts.environment([{"os": "a", "old": 1}], [{"os": "a", "new": 2}])
    assert [(d.name, d.old, d.new) for d in one_sided] == [("old", 1, None), ("new", None, 2)]


def test_a_document_is_looked_at_five_levels_deep() -> None:
    def nested(levels: int, value: str) -> dict[str, Any]:
        return {"a": nested(levels - 1, value)} if levels else {"b": value, "c": [value, {}], "d": None, "e": "x" * 300}

    (four, listed) = compare_facts.environment([nested(4, "1")], [nested(4, "2")])
    assert (four.name, four.old, four.new) == ("a.a.a.a.b", "1", "2")
    assert (listed.name, listed.new) == ("a.a.a.a.c", "2")
    assert compare_facts.environment([nested(5, "1")], [nested(5, "2")]) == []
    (many,) = compare_facts.environment([{"a": [7] * 20}], [{"a": [*[7] * 19, "x" * 41, 9]}])
    assert many.new == ", ".join([*"7" * 19, "x" * 40]), "twenty of a list, forty characters of each"
    (cut,) = compare_facts.environment([nested(0, "1")], [{"b": "1", "c": ["1"], "e": "x" * 201}, {"e": "y" * 201}])
    assert cut.new == f"{'x' * 200} and {'y' * 200}"


def kernel(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "arch": "sm_89", **facts}


def test_resources_that_changed() -> None:
    old = {"label": "fused", "kernels": [kernel("k", registers=100, spill_load_bytes=0), kernel("gone", registers=1)]}
    new = {"label": "fused", "kernels": [kernel("k", registers=128, spill_load_bytes=0), kernel("a"), kernel("b")]}
    found = compare_facts.resources([old], [new])
    assert (found[0].name, found[0].fact, found[0].old, found[0].new) == ("k [fused, sm_89]", "registers", 100, 128)
    assert {(d.name, d.old is None) for d in found[1:]} == {
        ("gone [fused, sm_89]", False), ("a [fused, sm_89]", True), ("b [fused, sm_89]", True),
    }  # fmt: skip


def test_the_profile_shows_what_moved_furthest_first() -> None:
    def profile(tensor: float, wait: float, tiny: float) -> dict[str, Any]:
        stalls = {"wait": wait, "drain": tiny, "barrier": 1.0}
        return {"shape": {"name": "mission"}, "kernels": [{"name": "k<1>", "metrics": {"tensor_active_pct": tensor,
                "l1_hit_pct": 50.0}, "stalls": stalls}]}  # fmt: skip

    found = compare_facts.profile([profile(20.0, 1.0, 1e-6)], [profile(60.0, 1.3, 1e-3)])
    assert [d.fact for d in found] == ["tensor_active_pct", "stall wait", "stall drain"]
    assert compare_facts.profile([profile(0.0, 1.0, 1.0)], [profile(250.0, 1.0, 1.0)])[0].weight == 1.0
    renamed = {**profile(60.0, 1.0, 1.0), "kernels": [{"name": "other<2>", "metrics": {"tensor_active_pct": 70.0}}]}
    assert compare_facts.profile([profile(20.0, 1.0, 1.0)], [renamed])[0].name == "mission: k -> other"


def test_metrics_show_what_moved_furthest_first_by_its_share() -> None:
    old, new = {"a": 100.0, "b": 10.0, "c": 1.0, "d": 5.0, "gone": 1.0}, {"a": 101.0, "b": 5.0, "c": 1.2, "d": 5.0}
    found = compare_facts.metrics([{"metrics": old}], [{"metrics": new}])
    assert [(d.name, d.change) for d in found] == [
        ("b", -0.5), ("c", pytest.approx(1 / 6)), ("a", pytest.approx(1 / 101)), ("gone", None),
    ]  # fmt: skip


def test_earlier_runs_of_the_machine_decide_what_one_launch_can_show(store: FileStore) -> None:
    earlier = [measured(store, [simple(10.0 + 0.01 * i, seed=i)], at=60 * i, commit="c") for i in range(4)]
    old = measured(store, [simple(10.0, seed=8)], at=600)
    new = measured(store, [simple(10.4, seed=9)], at=660, commit="b")
    (found,) = compare_all(store, (old, new))[0].comparison.benchmarks
    assert (found.verdict, found.effect.spread_from) == ("slower", "history")
    (found,) = compare_all(store, (",".join(earlier[:2]), new))[0].comparison.benchmarks
    assert found.effect.spread_from == "assumed", "what is compared is no history of itself"


def test_a_report_has_what_differs_of_each_kind_the_old_side_first(store: FileStore, tmp_path: Path) -> None:
    def documents(number: int) -> list[dict[str, Any]]:
        plain = {"schema_version": 1}
        profiled = {"name": "k", "metrics": {"tensor_active_pct": 10.0 * number}}
        return [
            simple(10.0 * number),
            {**plain, "kind": "environment", "os": f"os {number}"},
            {**plain, "kind": "build", "label": "fused", "kernels": [kernel("k", registers=number)]},
            {**plain, "kind": "profile", "shape": {"name": "m"}, "kernels": [profiled]},
            {**plain, "kind": "metrics", "metrics": {"score": float(number)}},
            searched(0.5 + number / 10),
        ]

    asked: list[tuple[str, str]] = []

    def between(_: Path, one: str, other: str) -> SourceChanges:
        asked.append((one, other))
        return SourceChanges((("sha", "subject"),), ())

    old = measured(store, documents(1), at=0)
    new = measured(store, documents(2), at=60, commit="b")
    (report,) = compare_all(store, (old, new), history=between, root=tmp_path)
    for differences, before, after in (
        (report.environment, "os 1", "os 2"), (report.resources, 1, 2), (report.profile, 10.0, 20.0),
        (report.metrics, 1.0, 2.0), (report.searches, 0.6, 0.7),
    ):  # fmt: skip
        assert [(d.old, d.new) for d in differences] == [(before, after)]
    assert asked == [(COMMITS["a"], COMMITS["b"])]
    assert report.source.changes == SourceChanges((("sha", "subject"),), ())
    assert (report.source.same_tree, report.source.dirty, report.old.first.run_id) == (False, (), old)
    (again,) = compare_all(store, (old, old), history=between, root=tmp_path)
    assert (again.source.changes, again.source.same_tree, len(asked)) == (None, True, 1)
    unknown = measured(store, documents(3), at=120, commit=None)
    (other,) = compare_all(store, (old, unknown), history=between, root=tmp_path)
    assert (other.source.changes, len(asked)) == (None, 1)
    for how in ({"history": between}, {"root": tmp_path}):
        (plain,) = compare_all(store, (old, new), **how)  # type: ignore[arg-type]
        assert plain.source.changes is None
