"""``fcctl results compare``, ``history`` and ``tag`` as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store.store import FileStore
from tests.integration.results.conftest import Typed
from tests.support.measured_runs import document, entry, measured, samples, searched, simple

BUILD = {"kind": "build", "schema_version": 1, "label": "fused"}


@pytest.fixture
def store(workspace_store: FileStore) -> FileStore:
    return workspace_store


def build(registers: int) -> dict[str, Any]:
    return {**BUILD, "kernels": [{"name": "fused", "arch": "sm_89", "registers": registers}]}


def test_a_regression_is_exit_code_9(store: FileStore, results: Typed) -> None:
    old = measured(store, [simple(10.0), build(100)], at=0, commit="a")
    new = measured(store, [simple(11.0), build(128)], at=60, commit="b")
    out = results("compare", old, new, "--fail-on", "none").out
    assert "slower" in out
    assert "+10.0 %" in out
    assert "registers" in out
    results("compare", old, new, code=9)  # slower, unless something else is asked
    results("compare", old, new, "--fail-on", "inconclusive")
    done = results("compare", old, new, "--fail-on", "slower:3%", code=9)
    assert "error: mission (hot): 10.0 % slower" in done.err
    assert "fails: mission hot" in done.out
    results("compare", old, new, "--fail-on", "slower:20%")
    results("compare", new, old, "--fail-on", "slower:3%")  # faster is no regression


def test_json_holds_it_all_and_the_markdown_too(store: FileStore, results: Typed) -> None:
    measured(store, [simple(10.0), build(100)], at=0)
    measured(store, [simple(11.0), build(128)], at=60, commit="b")
    results("tag", "baseline", "20261121t083320z")
    words = ["compare", "baseline", "last", "--fail-on", "slower:3%", "--json", "--markdown"]
    done = results(*words, code=9)
    found = done.json
    assert json.loads(done.err)["error"]["code"] == "regression"
    assert found["regression"] is True
    assert found["counts"] == {"slower": 1, "faster": 0, "same": 0, "inconclusive": 0, "incomparable": 0}
    (mission,) = found["benchmarks"]
    assert mission["verdict"] == "slower"
    assert mission["low"] < mission["ratio"] < mission["high"]
    assert mission["launches"] == [1, 1]
    assert [c["name"] for c in found["controls"]] == ["mission/sdpa"]
    assert [(d["fact"], d["old"], d["new"]) for d in found["resources"]] == [("registers", 100, 128)]
    assert found["markdown"].startswith("<!-- fcctl results compare -->\n### ❌ Benchmarks: 1 slower")


def test_markdown_is_safe_to_post(store: FileStore, results: Typed) -> None:
    evil = "a|b @someone <script>alert(1)</script> `x` [y](http://z)"
    for i in range(2):
        measured(store, [document(entry(evil, samples(10.0 + i)))], at=60 * i)
    old = store.rows()[1].run_id
    out = results("compare", old, "last", "--markdown", code=9).out
    named = [line for line in out.splitlines() if "alert" in line]
    assert len(named) > 2, "the caption of the sides, the table's row, what fails"
    for line in named:
        assert "<script" not in line
        assert "@" not in line
        assert "](" not in line.replace("\\]", "")
    (row,) = (line for line in named if line.startswith("|"))
    assert row.replace("\\|", "").count("|") == 9


def test_the_same_run_on_both_sides_is_said(store: FileStore, results: Typed) -> None:
    run = measured(store, [simple(10.0)])
    out = results("compare", run, run, "--fail-on", "slower:3%").out
    assert "both sides are the same run" in out
    assert "1 inconclusive" in out, "one launch shows nothing of how much launches differ"


def test_nothing_in_common_is_no_pass(store: FileStore, results: Typed) -> None:
    old = measured(store, [simple(10.0)], at=0)
    measured(store, [document(entry("other", samples(1.0)))], at=60)
    assert "no benchmark in common: old has mission, mission/sdpa; new has other" in results("compare", old).out
    assert "no benchmark in common" in results("compare", old, "last", "--fail-on", "slower:3%", code=7).err


def test_two_runs_without_a_benchmark_say_how_to_have_one(store: FileStore, results: Typed) -> None:
    old = measured(store, [], at=0)
    measured(store, [], at=60)
    out = results("compare", old).out
    assert "neither side has a benchmark; let a step" in out
    assert "fcctl help jobs" in out


def test_two_searches_are_compared_by_what_they_found(store: FileStore, results: Typed) -> None:
    old = measured(store, [searched(0.8, us=4.2, tile=128)], at=0)
    new = measured(store, [searched(0.7, us=3.6, tile=32)], at=60)
    out = results("compare", old, new).out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "best saxpy TILE=128 TILE=32" in lines
    assert "best on mission, us saxpy 4.2 3.6 -14 %" in lines
    assert "no verdict: the ratios of a search are relative to its own default" in lines
    assert "no benchmark in common" not in out
    facts = {one["fact"]: (one["old"], one["new"]) for one in results("compare", old, new, "--json").json["searches"]}
    assert facts["time over default, on what was searched"] == (0.8, 0.7)
    assert "| best on mission, us | saxpy | 4.2 | 3.6 | -14 % |" in results("compare", old, new, "--markdown").out
    results("compare", old, new, "--fail-on", "slower")


def test_several_runs_make_one_side(store: FileStore, results: Typed) -> None:
    old = [measured(store, [simple(10.0, seed=i)], at=60 * i) for i in range(4)]
    new = [measured(store, [simple(10.3, seed=9 + i)], at=600 + 60 * i) for i in range(4)]
    (mission,) = results("compare", ",".join(old), ",".join(new), "--json", code=9).json["benchmarks"]
    assert (mission["basis"], mission["launches"], mission["verdict"]) == ("launches", [4, 4], "slower")


def test_mistakes_are_told_with_a_way_out(store: FileStore, results: Typed) -> None:
    run = measured(store, [simple(10.0)])
    for words, code, said in (
        ([run, "baseline"], 102, "fcctl results tag baseline"),
        ([run, run, "--fail-on", "slowr:3%"], 2, "did you mean"),
        ([run, run, "--fail-on", "slower:3"], 2, "slower:3%"),
        ([run, run, "--margin", "lots"], 2, "such as 1%"),
        ([run, "nope"], 102, "fcctl results ls"),
    ):
        assert said in results("compare", *words, code=code).err


# ------------------------------------------------------------------------------------------------ git
def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def commits(store: FileStore, tmp_path: Path) -> list[str]:
    """Two commits of the workspace; the second changes one file and adds another."""
    git(tmp_path, "init", "-q")
    (tmp_path / "kernel.cu").write_text("// slow\n")
    git(tmp_path, "add", "kernel.cu")
    git(tmp_path, "commit", "-qm", "A kernel")
    first = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "kernel.cu").write_text("// fast\n")
    (tmp_path / "naïve name.cu").write_text("\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "Faster: \x1b[31mtiles")
    return [first, git(tmp_path, "rev-parse", "HEAD")]


def with_commit(commit: str) -> dict[str, Any]:
    return {"source": {"tree_sha256": commit, "git_commit": commit, "dirty": False}}


def test_the_way_from_commit_to_commit(store: FileStore, commits: list[str], results: Typed) -> None:
    runs = [measured(store, [simple(10.0 - i)], at=60 * i, **with_commit(c)) for i, c in enumerate(commits)]
    source = results("compare", *runs, "--json").json["source"]
    assert (source["old"], source["new"]) == tuple(commits)
    assert [subject[:7] for _, subject in source["changes"]["commits"]] == ["Faster:"]
    assert ["modified", "kernel.cu"] in source["changes"]["files"]
    assert ["added", "naïve name.cu"] in source["changes"]["files"]
    out = results("compare", *runs).out
    assert f"{commits[0][:10]}..{commits[1][:10]}" in out
    assert "\x1b" not in out


def test_commits_that_git_does_not_know_are_no_error(store: FileStore, commits: list[str], results: Typed) -> None:
    evil = "--output=/tmp/x"
    one = measured(store, [simple(10.0)], at=0, **with_commit(evil))
    other = measured(store, [simple(10.0)], at=60, **with_commit("f" * 40))
    assert "git in this workspace does not have these commits" in results("compare", one, other).out


def test_history_ties_a_change_to_its_commit(store: FileStore, commits: list[str], results: Typed) -> None:
    for i in range(24):
        measured(store, [simple(10.0 if i < 12 else 9.0, seed=i)], at=60 * i, **with_commit(commits[i // 12]))
    (found,) = results("history", "--benchmark", "mission", "--variant", "fused", "--json").json["series"]
    (change,) = found["changes"]
    assert change["ratio"] == pytest.approx(0.9, abs=0.01)
    assert change["commits"] == f"{commits[0]}..{commits[1]}"
    assert change["source"]["commits"][0][0] == commits[1]
    assert len(found["points"]) == 24
    assert found["ladder"][-1]["gain"] == pytest.approx(1.11, abs=0.01)
    out = results("history", "--benchmark", "mission").out
    assert "█" in out
    assert "1.11x faster since" in out
    assert f"{commits[0][:10]}..{commits[1][:10]}" in out


def test_history_of_what_nobody_measured(store: FileStore, results: Typed) -> None:
    assert "no run has a measurement yet" in results("history").err
    results("history", "--benchmark", "mission", code=7)
    measured(store, [simple(10.0)])
    assert "did you mean 'mission'" in results("history", "--benchmark", "misson", code=7).err
    assert "did you mean 'fused'" in results("history", "--benchmark", "mission", "--variant", "fusd", code=7).err
    assert "mission" in results("history").out


# ------------------------------------------------------------------------------------------------ tags
def test_tags_are_given_listed_moved_and_taken_away(store: FileStore, tmp_path: Path, results: Typed) -> None:
    old, new = (measured(store, [simple(10.0)], at=60 * i) for i in range(2))
    assert "no tags yet" in results("tag").err
    results("tag", "baseline", old, "--note", "before")
    assert "--move" in results("tag", "baseline", "last", code=8).err
    results("tag", "--move", "baseline", "last")
    assert [t["runs"] for t in results("tag", "--json").json["tags"]] == [[new]]
    results("tag", "both", old, "baseline")
    results("export", "both", "--format", "jsonl")
    assert '[tags."both"]' in (tmp_path / "results" / "tags.toml").read_text()
    results("tag", "--delete", "both")
    results("tag", "both", code=7)
    results("tag", "last", old, code=2)
    results("tag", "x", "nope", code=102)


def test_a_tag_whose_runs_are_elsewhere_says_how_to_bring_them(
    store: FileStore, tmp_path: Path, results: Typed
) -> None:
    measured(store, [simple(10.0)])
    (tmp_path / "results" / "tags.toml").write_text('[tags.baseline]\nruns = ["20261121t081530z-bench-l4-3fa9c1"]\n')
    assert "fcctl results import" in results("compare", "baseline", code=102).err
    (tmp_path / "results" / "tags.toml").write_text("<<<<<<< HEAD\n")
    results("compare", "baseline", code=3)
    results("ls")  # who only looks is not kept from it
    results("tag", "x", "last", code=3)
    assert (tmp_path / "results" / "tags.toml").read_text() == "<<<<<<< HEAD\n", "nothing is overwritten"


# ------------------------------------------------------------------------------------------------ at the end of a run
BENCH = """\
import json, os, random, sys
rng = random.Random(1)
took = [float(sys.argv[1]) * rng.gauss(1, 0.002) for _ in range(100)]
stats = {"n": 100, "p50": sorted(took)[50]}
entry = {"name": "mission", "mode": "hot", "unit": "us", "stats": stats, "samples": took}
found = {"kind": "benchmark", "schema_version": 1, "device": "NVIDIA L4", "benchmarks": [entry]}
json.dump(found, open(os.environ["FCCTL_OUT"] + "/bench.json", "w"))
"""


def test_a_run_compares_itself_at_its_end(store: FileStore, tmp_path: Path, fcctl: Typed) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    (tmp_path / "jobs").mkdir()
    step = f"steps:\n  - id: bench\n    run: '{sys.executable} bench.py $TOOK'\n"
    (tmp_path / "jobs" / "bench.yaml").write_text(f'job: bench\nenv: {{TOOK: "10"}}\n{step}')
    run = ["run", "bench", "--on", "local", "--compare", "baseline", "--fail-on", "slower:3%"]
    fcctl(*run, code=102)  # nothing is sent before the baseline is known to be there
    assert store.rows() == []
    fcctl("run", "bench", "--on", "local", "-q")
    fcctl("results", "tag", "baseline", "last")
    assert "1 inconclusive" in fcctl(*run).out
    found = fcctl(*run, "--set", "TOOK=10.8", "--json", code=9).json
    assert found["status"] == "passed"
    assert found["comparison"]["failures"][0]["kind"] == "slower"
    assert [d["name"] for d in found["comparison"]["environment"]] == ["settings.TOOK"]
    fcctl(*run, "--detach", code=2)
    fcctl("run", "bench", "--fail-on", "slower", code=2)
