"""docs/troubleshooting.md and the program know the same failures and the same cures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fcctl_remote.run import hints
from orchestrator.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()


def section(title: str) -> str:
    return re.split(r"^## ", PAGE[PAGE.index(f"## {title}") + 3 :], maxsplit=1, flags=re.MULTILINE)[0]


def cures(title: str) -> list[tuple[str, str]]:
    """(symptom, fix) of each item, with its lines joined."""
    items = re.findall(r"^- `(.+?)` → (.+?)(?=\n- |\n\n|\Z)", section(title), flags=re.MULTILINE | re.DOTALL)
    return [(" ".join(symptom.split()), " ".join(fix.split())) for symptom, fix in items]


LOGS = cures("A step failed: the last lines")
EXITS = cures("A step failed without a word")
GATES = cures("A gate failed")


@pytest.mark.parametrize(("line", "fix"), LOGS)
def test_a_log_that_ends_so_gets_this_hint(line: str, fix: str) -> None:
    assert hints.for_log(f"compiling\n{line}\n", 1) == fix


@pytest.mark.parametrize(("code", "fix"), EXITS)
def test_a_step_that_ends_so_gets_this_hint(code: str, fix: str) -> None:
    assert hints.for_log("", int(code.removeprefix("exit code "))) == fix


@pytest.mark.parametrize(("expr", "fix"), GATES)
def test_a_gate_that_fails_gets_this_hint(expr: str, fix: str) -> None:
    assert hints.for_gate(expr) == fix


def test_every_hint_is_on_the_page() -> None:
    assert {fix for _, fix in LOGS} == set(hints.KNOWN.values())
    assert {fix for _, fix in EXITS} == set(hints.EXIT_CODES.values())
    assert {fix for _, fix in GATES} == {fix for _, fix in hints.GATES}


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


def test_the_commands_that_are_named_exist() -> None:
    for verb in re.findall(r"`fcctl ([a-z-]+)", PAGE):
        assert verb in VERBS or verb == "--debug", verb
    assert "docs/troubleshooting.md" in (ROOT / "README.md").read_text()
    assert "docs/troubleshooting.md" in (ROOT / "AGENTS.md").read_text()
