"""``fcctl results import --format flashcore``: old figures in the history, called unverified wherever they are."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.clock import SystemClock
from orchestrator.results.store.store import FileStore
from tests.support.dashboard import dashboard
from tests.support.measured_runs import measured, simple
from tests.support.workspace import REPOSITORY, Workspace

OLD = REPOSITORY / "tests/fixtures/readers/flashcore/latency.json"
WORD = "unverified"


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    shutil.copy(OLD, made.root / "baseline.json")
    return made


def take_in(workspace: Workspace, *more: str) -> str:
    done = workspace.fcctl("results", "import", "--format", "flashcore", "baseline.json", "--at", "2026-10-14", *more)
    return done.stdout.strip()


def test_they_are_called_unverified_everywhere(workspace: Workspace) -> None:
    run_id = take_in(workspace)
    assert run_id.startswith("20261014t000000z-imported-unverified-")
    for command in (
        ("results", "ls"),
        ("results", "show", run_id),
        ("results", "history", "--benchmark", "mission"),
        ("results", "report", run_id),
    ):
        printed = workspace.fcctl(*command).stdout
        assert WORD in printed, command
        assert "1397.7" in printed or command == ("results", "ls")
    workspace.fcctl("results", "export", run_id, "-o", "all.csv")
    assert ",imported,unverified,imported," in (workspace.root / "all.csv").read_text()
    report = workspace.fcctl("results", "report", run_id).stdout
    assert "| flashcore (imported, unverified) | 1397.7 |" in report
    (row,) = workspace.json("results", "ls")["runs"]
    assert (row["status"], row["created"][:10], row["gpu"]) == ("imported", "2026-10-14", "NVIDIA L4")
    (trend,) = workspace.json("results", "history", "--benchmark", "mission")["series"]
    assert (trend["method"], trend["points"][0]["status"]) == ("imported, unverified", "imported")
    assert workspace.json("results", "export", run_id, "--format", "flashcore")["status"] == "imported"


def test_the_dashboards_pages_do_so_too(workspace: Workspace) -> None:
    run_id = take_in(workspace)
    with dashboard(workspace) as site:
        site.enter()
        for page in (
            "/history",
            f"/runs/{run_id}",
            "/trends/charts?benchmark=mission",
            "/history?status=imported",
        ):
            answer = site.ask(page)
            assert answer.status == 200, page
            assert WORD in answer.text, page
        assert "Faster or slower?" not in site.ask("/").text


def test_no_comparison_with_them_has_a_verdict(workspace: Workspace) -> None:
    run_id = take_in(workspace)
    script = 'cp baseline.json "$FCCTL_OUT/b.json"'
    workspace.job(
        "bench",
        f"""
steps: [{{id: bench, run: '{script}', collect: [{{reader: flashcore, file: "$FCCTL_OUT/b.json"}}]}}]
""",
    )
    workspace.fcctl("run", "bench", "--on", "here")
    later = workspace.fcctl("results", "import", "--format", "flashcore", "baseline.json", "--at", "2026-10-20").stdout
    for old, new, which in ((run_id, "last:bench", "old side"), (run_id, later.strip(), "old and the new side")):
        allowed = ("--allow", "method", "--allow", "gpu", "--allow", "driver")
        compared = workspace.json("results", "compare", old, new, *allowed)
        assert {one["verdict"] for one in compared["benchmarks"]} == {"incomparable"}
        assert compared["benchmarks"][0]["ratio"] == pytest.approx(1.0)
        assert compared["old"]["runs"][0]["status"] == "imported"
        printed = workspace.fcctl("results", "compare", old, new, *allowed).stdout
        assert f"the figures of the {which} are imported, unverified" in printed


def test_an_export_comes_back_as_it_was(workspace: Workspace) -> None:
    """What a run measured, exported, imported elsewhere and exported again."""
    name = measured(FileStore(workspace.root / "results", SystemClock()), [simple(8.0)])

    def exported(name: str) -> dict[str, Any]:
        return json.loads(workspace.fcctl("results", "export", name, "--format", "flashcore").stdout)

    first = exported(name)
    (workspace.root / "out.json").write_text(json.dumps(first))
    run_id = workspace.fcctl("results", "import", "--format", "flashcore", "out.json").stdout.strip()
    second = exported(run_id)
    assert (second.pop("status"), second.pop("run_id")) == ("imported", run_id)
    assert second == {key: value for key, value in first.items() if key not in ("status", "run_id")}
    assert second["results"]["mission"]["pytorch"]["p50"] == pytest.approx(20.0, rel=0.01)
    (workspace.root / "again.json").write_text(json.dumps(exported(run_id)))
    again = workspace.json("results", "import", "--format", "flashcore", "again.json")
    assert (again["imported"], again["here_already"]) == ([], [run_id])


@pytest.mark.parametrize(
    ("text", "more", "code", "message", "hint"),
    [
        (None, (), 2, "has no date of its figures", "--at 2026-10-14"),
        (None, ("--at", "yesterday"), 2, "is not a date", "2026-10-14T09:30"),
        (None, ("--at", "2999-01-01"), 2, "is not in the past", "the day"),
        (
            '{"created": "2999-01-01", "results": {"a": {"b": {"p50": 1}}}}',
            (),
            2,
            "the date of baseline.json, 2999",
            "--at",
        ),
        ("{", ("--at", "2026-10-14"), 1, "cannot import", "python3 -m json.tool"),
        ("{}", ("--at", "2026-10-14"), 1, "cannot import", '"results"'),
        (
            '{"results": {"mission": {"flashcore": {"p50": -1}}}}',
            ("--at", "2026-10-14"),
            1,
            "cannot import",
            "help jobs",
        ),
        (
            '{"results": {"mission": {"flashcore": {"p50": 1, "p90": -1}}}}',
            ("--at", "2026-10-14"),
            1,
            "cannot import",
            "help jobs",
        ),
    ],
)
def test_a_file_or_a_date_that_is_none(
    workspace: Workspace, text: str | None, more: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    if text is not None:
        (workspace.root / "baseline.json").write_text(text)
    words = ("results", "import", "--format", "flashcore", "baseline.json", *more, "--json")
    error = json.loads(workspace.fcctl(*words, check=code).stderr)["error"]
    assert message in error["message"]
    assert hint in error["hint"]
    assert workspace.runs() == {}


@pytest.mark.parametrize("name", [b"two\nlines.json", b"no \xff text.json", b"it's.json"])
def test_a_file_of_any_name_is_imported(workspace: Workspace, name: bytes) -> None:
    path = os.fsdecode(name)
    (workspace.root / "baseline.json").rename(workspace.root / path)
    run_id = workspace.fcctl("results", "import", "--format", "flashcore", path, "--at", "2026-10-14").stdout.strip()
    assert workspace.runs()[run_id]["status"] == "imported"
    refused = workspace.fcctl("results", "import", "it's.json", check=2).stderr
    assert "fcctl results import --format flashcore 'it'\"'\"'s.json' --at" in refused


def test_json_without_a_format_names_the_command(workspace: Workspace) -> None:
    done = workspace.fcctl("results", "import", "baseline.json", check=2)
    assert "fcctl results import --format flashcore baseline.json --at" in done.stderr
