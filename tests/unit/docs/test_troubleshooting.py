"""docs/troubleshooting.md and the program know the same failures and the same cures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fcctl_remote.run import hints

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()


def section(title: str) -> str:
    return re.split(r"^## ", PAGE[PAGE.index(f"## {title}") + 3 :], maxsplit=1, flags=re.MULTILINE)[0]


def cures(title: str) -> list[tuple[str, str]]:
    """(symptom, fix) of each item, with its lines joined."""
    items = re.findall(r"^- `(.+?)` → (.+?)(?=\n- |\n\n|\Z)", section(title), flags=re.MULTILINE | re.DOTALL)
    return [(" ".join(symptom.split()), " ".join(fix.split())) for symptom, fix in items]


LOGS = cures("A step failed: the last lines")
EXITS = cures("A step failed without an error message")
GATES = cures("A gate failed")


@pytest.mark.parametrize(
    ("hint", "fix"),
    [
        *((hints.for_log(f"compiling\n{line}\n", 1), fix) for line, fix in LOGS),
        *((hints.for_log("", int(code.removeprefix("exit code "))), fix) for code, fix in EXITS),
        *((hints.for_gate(expr), fix) for expr, fix in GATES),
    ],
)
def test_a_log_a_step_and_a_gate_that_end_so_get_this_hint(hint: str | None, fix: str) -> None:
    assert hint == fix


def test_every_hint_is_on_the_page_which_is_named_where_people_begin() -> None:
    assert {fix for _, fix in LOGS} == set(hints.KNOWN.values())
    assert {fix for _, fix in EXITS} == set(hints.EXIT_CODES.values())
    assert {fix for _, fix in GATES} == {fix for _, fix in hints.GATES}
    assert all("docs/troubleshooting.md" in (ROOT / page).read_text() for page in ("README.md", "AGENTS.md"))


def test_every_check_of_preflight_is_on_the_page() -> None:
    source = (ROOT / "remote/fcctl_remote/probe/checks.py").read_text()
    named = set(re.findall(r'(?:yield|return) "([a-z]+\.\w+)", (?!"(?:info|pass)")', source))
    named |= {f"tools.{tool}" for tool in ("bash", "tmux", "rsync", "git")}
    listed = set(re.findall(r"`([a-z]+\.\w+)`", "".join(re.findall(r"^\|(.+?)\|", section("Preflight"), re.MULTILINE))))
    assert named - listed == set()
    assert listed - named <= {"cuda.path"}


def test_the_errors_that_are_quoted_are_those_fcctl_prints() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "orchestrator").rglob("*.py"))
    for title in ("The machine cannot be reached", "The cloud says no", "A run that is not where"):
        quoted = re.findall(r"^\| `(.+?)` \|", section(title), flags=re.MULTILINE)
        assert quoted
        for text in quoted:
            assert text in sources, text
