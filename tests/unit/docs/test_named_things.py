"""Pages and workflows name what there is: folders, the journal's lines, the host's files, make targets, figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from fcctl_remote.base.layout import Layout
from fcctl_remote.gates import evaluate as gates
from flashcore import ladder
from orchestrator.runs import lifecycle
from orchestrator.runs.transfer import KEPT_ON_HOST

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/architecture.md").read_text()


def test_the_paths_in_this_repository_exist() -> None:
    named = set(re.findall(r"`((?:orchestrator|remote|kernels|tests|docs|jobs)/[\w./-]+)`", PAGE))
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []
    folders = {f"orchestrator/{p.name}" for p in (ROOT / "orchestrator").iterdir() if (p / "__init__.py").is_file()}
    assert folders - named == set(), "a room that the page does not know"


def test_every_line_of_the_journal_is_accounted_for() -> None:
    table = PAGE[PAGE.index("| killed after |") : PAGE.index("A resumed run is never")]
    rows = [row.split("|")[1] for row in table.splitlines()[2:] if row.startswith("|")]
    named = {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}
    kinds = re.findall(r"^([a-z]+(?:, [a-z]+)*) {2,}\S", str(lifecycle.__doc__), flags=re.MULTILINE)
    known = {kind for line in kinds for kind in line.split(", ")} - {"journal"}
    assert known - named == {"detached", "cancel", "lost", "abandoned"}, "these change what is asked, not what is done"
    assert named <= known


def test_the_hosts_files_are_those_of_the_layout() -> None:
    block = PAGE[PAGE.index("~/.fcctl/runner/<sha256>.pyz") :].split("```")[0]
    layout = Layout("/root")
    run = layout.run("20261121t081530z-phase0-local-3fa9c1")
    step = run.step("build")
    known = {Path(str(p)).name for holder in (layout, run, step) for p in vars(holder).values() if isinstance(p, str)}
    inside = re.findall(r"[\w.]+", " ".join(re.findall(r"\{([^{}]+(?:\{[^{}]+\}[^{}]*)?)\}", block)))
    names = {name for name in inside if name not in ("id",)}
    assert len(names) > 10
    assert names <= known
    assert {"trees", "locks", "runs", "lease.json"} <= set(re.findall(r"[\w.]+", block)) & known


def test_how_many_runs_stay_on_the_host() -> None:
    words = {10: "ten", 20: "twenty", 5: "five"}
    assert f"all but the newest {words[KEPT_ON_HOST]}" in PAGE


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_its_steps_name_what_there_is(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", " ".join(step.get("run", "") for step in steps))) <= targets


def test_checks_run_by_hand_on_both_systems() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert set(workflow[True]) == {"workflow_dispatch", "pull_request"}  # YAML 1.1 reads `on` as true
    (job,) = workflow["jobs"].values()
    assert job["strategy"]["matrix"]["os"] == ["macos-15", "ubuntu-24.04"]
    assert {"make demo", "make lint", "make test", "make mac-like"} <= {step.get("run") for step in job["steps"]}


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("phase?.yaml")), ids=lambda path: path.stem)
def test_a_phase_says_how_to_profile_its_own_variant(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"fcctl run ncu --set VARIANT=(\w+)", text)) <= {yaml.safe_load(text)["env"]["VARIANT"]}


GUIDE = (ROOT / "docs/next-kernel.md").read_text()
KERNELS = (ROOT / "docs/kernels.md").read_text()


def test_the_ladder_is_that_of_the_published_run() -> None:
    (run,) = re.findall(r"The ladder, as the run `(\S+)` measured it on an NVIDIA H200", KERNELS)
    documents = [json.loads(path.read_text()) for path in (ROOT / "results/reference/h200-ladder" / run).glob("*.json")]
    times = {
        document["label"]: {row["name"]: row["stats"]["p50"] for row in document["benchmarks"]}
        for document in documents
        if document.get("kind") == "benchmark"
    }
    tensor = {
        document["label"]: document["kernels"][0]["metrics"]["tensor_active_pct"]
        for document in documents
        if document.get("kind") == "profile"
    }
    table = KERNELS.split("## Commands")[0]
    rows = re.findall(r"^\| `(\w+)`[^|]*\|[^|]+\| ([\d.]+)(?:, ([\d.]+))? \| (\d*) ?\|", table, re.MULTILINE)
    assert [row[0] for row in rows] == [step.name for step in ladder.RUNGS]
    for name, mission, long, active in rows:
        label = ladder.NAMED[name].label
        figures = (times[label].get("mission"), times[label].get("4,16,2048,64"), tensor.get(label))
        for figure, shown in zip(figures, (mission, long, active), strict=True):
            assert shown == ("" if figure is None else f"{figure:.{len(shown.partition('.')[2])}f}"), name


def test_the_gate_is_one_and_the_files_exist() -> None:
    (expr,) = re.findall(r"`(benchmark\.[^`]+)`", GUIDE)
    gates.parse(expr)
    for name in ("registry.py", "tables.py", "csrc/flashcore.h"):
        assert name.rpartition("/")[2] in GUIDE
        assert (ROOT / "kernels/flashcore" / name).exists()


def test_the_guide_is_short() -> None:
    assert len(GUIDE.split()) <= 340, "300 of prose, and the bars of a table"
