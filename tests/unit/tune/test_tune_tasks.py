"""A trial's build, check and bench by the commands of a spec, with shell scripts as kernels."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_tune.errors import Failed, SpecError
from fcctl_tune.search.records import Trial
from fcctl_tune.search.space import Space
from fcctl_tune.search.spec import Spec
from fcctl_tune.trial import process, slot, tasks
from fcctl_tune.trial.slot import Slot, Timed, Timing
from fcctl_tune.trial.tasks import TrialSpec
from tests.support.waiting import wait_for

REMOTE = Path(tasks.__file__).resolve().parents[2]
BENCH = 'echo "{\\"us\\": $US}" > $TUNE_OUT/b.json'
PTXAS = """ptxas info    : Compiling entry function 'f' for 'sm_89'
ptxas info    : Function properties for f
    0 bytes stack frame, 8 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""


def trial_spec(tmp_path: Path, **entry: Any) -> TrialSpec:
    spec = {
        "tune": "t",
        "parameters": {"P": [1, 2, 3], "US": [5, 7]},
        "build": "echo x >> $TUNE_OUT/built; echo $P",
        "check": "true",
        "bench": BENCH,
        "metric": {"reader": "metrics", "file": "$TUNE_OUT/b.json", "value": "metrics.us"},
        "cases": ["a", "b"],
        "timeouts": {"build": 60, "check": 60, "bench": 60},
        **entry,
    }
    for folder in ("work/logs", "source"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    return TrialSpec.of(Spec.from_dict(spec), str(tmp_path / "source"), str(tmp_path / "work"), seed=10)


def candidate(made: TrialSpec, p: int = 1, us: int = 5, number: int = 0) -> Trial:
    return Trial(number, {"P": p, "US": us})


def timing(made: TrialSpec, one: Trial) -> Timing:
    return Timing(one, candidate(made), repeats=3, check=True)


def measured(made: TrialSpec, one: Trial | None = None) -> Timed:
    """``one``, or the default, checked and timed once it and the default were built."""
    for each in (candidate(made), one or candidate(made)):
        tasks.build(made, each)
    return slot.measure(made, timing(made, one or candidate(made)))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


# ------------------------------------------------------------------------------------------------ build
def test_a_configuration_is_built_once_and_another_elsewhere(tmp_path: Path) -> None:
    made = trial_spec(tmp_path)
    one, other = candidate(made), candidate(made, p=2)
    assert tasks.build(made, one).state == ""
    again = tasks.build(made, one)
    assert again.cached
    assert lines(Path(made.out(one.environment)) / "built") == 1
    assert not tasks.build(made, other).cached
    assert made.out(one.environment) != made.out(other.environment)


def test_who_builds_the_same_is_waited_for(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    made = trial_spec(tmp_path, build=f"echo x >> $TUNE_OUT/built; until [ -e {gate} ]; do sleep 0.02; done")
    one = candidate(made)
    space = Space.from_dict({"parameters": {"P": [1, 2, 3], "US": [5, 7]}})
    tasks.build_default_soon(made, space)
    wait_for((Path(made.out(one.environment)) / "built").exists)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(tasks.build, made, one)
        gate.touch()
        assert (asked.result().state, asked.result().cached) == ("", True)
    assert lines(Path(made.out(one.environment)) / "built") == 1


def test_builds_let_timings_and_the_build_of_the_default_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yielding: list[int] = []
    monkeypatch.setattr(process, "_yield", yielding.append)
    made = trial_spec(tmp_path)
    default, trial = candidate(made), candidate(made, p=2, number=1)
    for one in (default, trial):
        assert tasks.build(made, one).state == ""
        assert measured(made, one).state == ""
        assert len(yielding) == one.number


def test_what_the_compiler_said_is_the_reason_and_a_failure_is_tried_again(tmp_path: Path) -> None:
    made = trial_spec(tmp_path, build='[ -e ok ] || { echo "saxpy.cu(3): error: no such thing" >&2; exit 2; }')
    failed = tasks.build(made, candidate(made))
    assert failed.state == "build_failed"
    assert failed.reason == "exit code 2: saxpy.cu(3): error: no such thing"
    (tmp_path / "source" / "ok").touch()
    assert tasks.build(made, candidate(made)).state == ""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("a.c:8:20: error: 'X' undeclared\n  8 | X\n    | ^\na.c:8:20: note: once only\n      | ^~", "'X' undeclared"),
        ("ptxas error   : too much shared data\nnvcc error   : 'ptxas' died\nfor good", "ptxas error : too"),
        ("a.o: in function f:\na.c:(.text+1): undefined reference to `g'\ncollect2: error: ld returned 1", "to `g'"),
        ("error[E0308]: mismatched types\n --> src/a.rs:2:5\n  |\n2 |     1\n  |     ^", "error[E0308]: mis"),
        ("a.cu(3): error #20: no X\n" + "    f<int>()\n" * 3000 + "1 error detected", "a.cu(3): error #20: no X"),
        ("Traceback\n  line 1\nRuntimeError: no ninja\n", "RuntimeError: no ninja"),
        ("make: *** [all] Error 1", "make: *** [all] Error 1"),
    ],
)
def test_of_a_build_the_first_errors_are_told(tmp_path: Path, said: str, reason: str) -> None:
    (tmp_path / "said").write_text(said)
    made = trial_spec(tmp_path, build=f"cat {tmp_path}/said; false")
    failed = tasks.build(made, candidate(made))
    assert reason in failed.reason
    assert "^" not in failed.reason


def test_gates_look_at_what_readers_read_of_the_build(tmp_path: Path) -> None:
    (tmp_path / "ptxas.txt").write_text(PTXAS)
    build = f"cat {tmp_path}/ptxas.txt"
    gates = ["params.P == 1", "all(build.kernels[*].spill_store_bytes == 0)"]
    made = trial_spec(tmp_path, build=build, collect=[{"reader": "ptxas", "file": "@log"}], gates=gates)
    spilled = tasks.build(made, candidate(made))
    assert spilled.state == "gate_failed"
    assert "spill_store_bytes" in spilled.reason
    assert "8" in spilled.reason
    assert tasks.build(made, candidate(made)).cached  # it would spill again
    assert tasks.build(made, candidate(made, p=2)).reason.startswith("params.P == 1: 2")


def test_a_document_that_the_build_wrote_counts_and_a_missing_one_is_no_pass(tmp_path: Path) -> None:
    document = json.dumps({"kind": "build", "schema_version": 1, "kernels": [{"registers": 90}]})
    write = f"echo '{document}' > $FCCTL_OUT/build-x.json; echo '[]' > $TUNE_OUT/other.json"
    made = trial_spec(tmp_path, build=write, gates=["max(build.kernels[*].registers) <= 96"])
    assert tasks.build(made, candidate(made)).state == ""
    made = trial_spec(tmp_path, build="true", gates=["max(build.kernels[*].registers) <= 96"])
    built = tasks.build(made, candidate(made))  # no configuration can fulfil it: where it is the default, that is told
    assert (built.state, "'build' does not exist here" in built.reason) == ("build_failed", True)


def test_a_build_that_hangs_or_crashes_is_a_failed_build(tmp_path: Path) -> None:
    made = trial_spec(tmp_path, build="sleep 600", timeouts={"build": 0.2})
    assert tasks.build(made, candidate(made)).state == "build_failed"
    made = trial_spec(tmp_path, build="kill -SEGV $$")
    assert tasks.build(made, candidate(made)).reason == "SIGSEGV"


# ------------------------------------------------------------------------------------------------ check and bench
def test_medians_come_with_those_of_the_default_on_the_same_gpu(tmp_path: Path) -> None:
    made = trial_spec(tmp_path)
    timed = measured(made, candidate(made, us=7, number=4))
    assert timed.state == "", timed.reason
    assert timed.per_case == {"a": 7.0, "b": 7.0}
    assert timed.base == {"a": 5.0, "b": 5.0}


def test_the_default_is_timed_with_as_many_repeats(tmp_path: Path) -> None:
    """A program's first launch takes longer, and weighs more among fewer."""
    cold = 'echo "{\\"us\\": $(( (US * 90 * (TUNE_REPEATS + 9)) / TUNE_REPEATS ))}" > $TUNE_OUT/b.json'
    made = trial_spec(tmp_path, bench=cold, cases=["a"])
    some = [candidate(made), candidate(made, us=7, number=1)]
    for one in some:
        tasks.build(made, one)
    for repeats in (27, 3, 9):
        timed = slot.measure(made, dataclasses.replace(timing(made, some[1]), repeats=repeats))
        assert timed.per_case["a"] / timed.base["a"] == pytest.approx(7 / 5)


def test_commands_are_told_case_seed_repeats_and_trial(tmp_path: Path) -> None:
    said = 'echo "$TUNE_CASE $TUNE_SEED $TUNE_REPEATS $TUNE_TRIAL $P" >> $TUNE_OUT/said; ' + BENCH
    made = trial_spec(tmp_path, bench=said, check='echo "$TUNE_CASE $TUNE_SEED" >> $TUNE_OUT/said')
    one = candidate(made, us=7, number=4)
    assert measured(made, one).state == ""
    assert (Path(made.out(one.environment)) / "said").read_text() == "a 11\nb 11\na 11 3 4 1\nb 11 3 4 1\n"


@pytest.mark.parametrize(
    ("change", "state", "reason"),
    [
        ({"check": "echo max err 3; exit 1"}, "wrong", "exit code 1: max err 3"),
        ({"check": "kill -SEGV $$"}, "crashed", "SIGSEGV"),
        ({"check": "sleep 600", "timeouts": {"check": 0.2}}, "hung", "exceeded its time limit"),
        ({"check": {"run": "true", "gates": ["params.P == 2"]}}, "wrong", "params.P == 2: 1"),
        ({"check": "echo on $TUNE_CASE; [ $TUNE_CASE != b ]"}, "wrong", "b: exit code 1: on b"),
        ({"check": {"run": "true", "collect": [{"reader": "metrics", "file": "c.json"}]}}, "wrong", "no file matches"),
        ({"bench": "exit 4"}, "bench_failed", "benchmark of a: exit code 4"),
        ({"bench": "echo $TUNE_OUT/x; exit 4"}, "bench_failed", "benchmark of a: exit code 4: $TUNE_OUT/x"),
        ({"bench": "bash -c 'kill -ABRT $BASHPID' || exit 4"}, "bench_failed", "bash: line 1: Aborted"),
        ({"bench": "kill -ABRT $$"}, "crashed", "SIGABRT"),
        ({"bench": "true"}, "bench_failed", "no file matches"),
        ({"bench": "echo '{' > $TUNE_OUT/b.json"}, "bench_failed", "b.json: "),
        ({"bench": "echo '{}' > $TUNE_OUT/b.json"}, "bench_failed", "b.json: contains no metric"),
        ({"bench": "echo '{\"us\": 0}' > $TUNE_OUT/b.json"}, "bench_failed", "no value in"),
        ({"bench": "echo '{\"us\": 1e308}' > $TUNE_OUT/b.json"}, "bench_failed", "no value in [1e+308]"),
        ({"bench": "echo '{\"us\": 1e-320}' > $TUNE_OUT/b.json"}, "bench_failed", "no value in"),
        ({"bench": "echo '{\"ns\": 5}' > $TUNE_OUT/b.json"}, "bench_failed", "metric metrics.us"),
    ],
)
def test_a_fault_is_a_result(tmp_path: Path, change: dict[str, Any], state: str, reason: str) -> None:
    made = trial_spec(tmp_path, **change)
    timed = measured(made)
    assert timed.state == state
    assert reason in timed.reason


@pytest.mark.parametrize("read", [{"collect": [{"reader": "metrics", "file": "$TUNE_OUT/c.txt"}]}, {}])
def test_what_an_earlier_check_left_does_not_pass_for_this_ones(tmp_path: Path, read: dict[str, Any]) -> None:
    document = json.dumps({"kind": "metrics", "schema_version": 1, "metrics": {"wrong": 0}})
    name = "c.txt" if read else "c.json"
    check = {
        "run": f"[ $TUNE_CASE = b ] || echo '{document}' > $TUNE_OUT/{name}",
        "gates": ["metrics.metrics.wrong == 0"],
    }
    made = trial_spec(tmp_path, check={**check, **read})
    timed = measured(made)
    assert timed.state == "wrong"
    assert timed.reason.startswith("b: ")


def test_what_the_build_left_stays_for_the_checks(tmp_path: Path) -> None:
    document = json.dumps({"kind": "build", "schema_version": 1, "kernels": [{"registers": 90}]})
    build = f"echo '{document}' > $TUNE_OUT/build.json; echo '{{\"x\": 1}}' > $TUNE_OUT/x.json"
    check = {"run": "echo 2 > $TUNE_OUT/mine", "collect": [{"reader": "metrics", "file": "$TUNE_OUT/x.json"}]}
    made = trial_spec(tmp_path, build=build, check={**check, "gates": ["max(build.kernels[*].registers) <= 96"]})
    assert measured(made).state == ""


def test_a_bench_may_write_a_list_of_its_samples(tmp_path: Path) -> None:
    made = trial_spec(tmp_path, bench='echo "{\\"gpu\\": 0, \\"us\\": [9, 5, 4, 7, 30]}" > $TUNE_OUT/b.json')
    assert measured(made).per_case == {"a": 7, "b": 7}


def test_a_trial_under_which_the_default_fails_says_so(tmp_path: Path) -> None:
    made = trial_spec(tmp_path, bench='[ "$US" = 7 ]; ' + BENCH)
    timed = measured(made, candidate(made, us=7, number=4))
    assert (timed.state, timed.reason) == (
        "bench_failed",
        "the default configuration, measured together with it, failed: benchmark of a: exit code 1",
    )


def test_a_command_that_sweeps_the_logs_away_costs_nothing(tmp_path: Path) -> None:
    sweep = "rm -r $TUNE_OUT/../../logs"
    made = trial_spec(tmp_path, check=sweep, bench=f"{sweep}; {BENCH}")
    timed = measured(made)
    assert (timed.state, timed.per_case) == ("", {"a": 5.0, "b": 5.0})


def test_an_older_figure_does_not_pass_for_this_ones(tmp_path: Path) -> None:
    made = trial_spec(tmp_path, bench="true")
    tasks.build(made, candidate(made))
    (Path(made.out(candidate(made).environment)) / "b.json").write_text('{"us": 1}')
    assert measured(made, candidate(made)).state == "bench_failed"


def test_turns_take_everyone_early_as_often_as_late(tmp_path: Path) -> None:
    made = trial_spec(tmp_path, bench=f'echo "$P" >> {tmp_path}/order; {BENCH}')
    many = [candidate(made, p) for p in (1, 2, 3)]
    for one in many:
        tasks.build(made, one)
    reply = Slot.here(made).turns(many, "a", 3, 6)
    assert reply["per"] == [[5.0] * 6] * 3
    taken = (tmp_path / "order").read_text().split()
    assert taken == ["1", "2", "3", "3", "2", "1", "2", "3", "1", "1", "3", "2", "3", "1", "2", "2", "1", "3"]


@pytest.mark.parametrize(
    ("per", "said"),
    [
        ([[5.0] * 6] * 2, ""),
        ([[5.0] * 14] * 2, ""),
        ([[2.0], [1.0]], "has 1 values for each configuration; 28 were"),
        ([[5.0] * 28, [5.0] * 6], "has 6 or 28 values for each"),
        ([[5.0] * 28], "must have one list for each of the 2"),
    ],
)
def test_one_that_serves_and_leaves_turns_out_measured_nothing(
    tmp_path: Path, per: list[list[float]], said: str
) -> None:
    """Of one figure each, an interval would have no width, and whatever came first would be faster beyond doubt."""
    made = trial_spec(tmp_path, build=None, check=None, bench=None, serve="true", metric=None)
    serving = Slot(made)
    serving._server = SimpleNamespace(ask=lambda *_, **__: {"ok": True, "per": per})  # type: ignore[assignment]
    many = [candidate(made), candidate(made, p=2)]
    if not said:
        assert serving.turns(many, "a", 3, 28)["per"] == per
        return
    with pytest.raises(Failed, match=said):
        serving.turns(many, "a", 3, 28)


def test_a_listing_that_nobody_can_read_is_told_as_such(tmp_path: Path) -> None:
    made = trial_spec(tmp_path)
    with pytest.raises(SpecError, match="did not print JSON"):
        tasks.listing(made, "printf '%0200000d' 0 | tr 0 '['")


@pytest.mark.parametrize(
    "samples", [None, [], "1", [1.0, None], [True], [float("nan")], [-1.0], [float("inf")], [10**400]]
)
def test_what_is_no_time_is_refused(samples: Any) -> None:
    with pytest.raises(Failed, match="no value in"):
        slot._positive(samples)


def test_builds_are_of_a_source_until_one_of_its_files_is_changed(tmp_path: Path) -> None:
    source = tmp_path / "source"

    def seen() -> str:
        return tasks.source_identity(str(source), (str(source / "out"),), str(tmp_path / "source.json"))

    for name in ("a.cu", "out/x", ".git/x", "__pycache__/x"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("1")
    first = seen()
    for name in ("out/x", ".git/x", "__pycache__/x", "a.out"):  # what is no source, and what a build leaves behind
        (source / name).write_text("12")
    assert seen() == first
    (source / "a.cu").write_text("12")
    second = seen()
    assert second != first
    assert seen() == second
    (source / "a.cu").unlink()
    assert seen() not in (first, second)


ALONE = '[ ! -e {0}busy ] || exit 9; touch {0}busy; sleep 0.2; rm {0}busy; echo "{{\\"us\\": $US}}" > {0}b.json'


@pytest.mark.parametrize("is_own", [True, False], ids=["the default's folder", "everybody's"])
def test_two_gpus_that_bench_into_one_file_wait_for_one_another(tmp_path: Path, is_own: bool) -> None:
    place = "$TUNE_OUT/" if is_own else f"{tmp_path}/"
    metric = {"reader": "metrics", "file": f"{place}b.json", "value": "metrics.us"}
    made = trial_spec(tmp_path, bench=ALONE.format(place), metric=metric)
    several = [candidate(made), candidate(made) if is_own else candidate(made, us=7, number=4)]
    for each in several:
        tasks.build(made, each)
    with ThreadPoolExecutor(2) as gpus:
        found = list(gpus.map(lambda one: slot.Slot(made)._bench(one, "a", 1, 3), several))
    assert found == [[5.0], [5.0 if is_own else 7.0]]


def test_two_gpus_whose_checks_leave_one_file_wait_for_one_another(tmp_path: Path) -> None:
    file, gate = {"reader": "metrics", "file": f"{tmp_path}/b.json"}, "metrics.metrics.us > 0"
    made = trial_spec(tmp_path, check={"run": ALONE.format(f"{tmp_path}/"), "collect": [file], "gates": [gate]})
    several = [candidate(made), candidate(made, us=7, number=4)]
    for each in several:
        tasks.build(made, each)
    with ThreadPoolExecutor(2) as gpus:
        list(gpus.map(lambda one: slot.Slot(made).check(one), several))
