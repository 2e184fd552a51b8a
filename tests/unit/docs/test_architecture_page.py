"""docs/architecture.md names what there is: folders, modules, journal lines, the host's files."""

from __future__ import annotations

import re
from pathlib import Path

from fcctl_remote.base.layout import Layout
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
