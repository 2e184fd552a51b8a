"""Every module and path of ours that a text names is there: in code, comments, docs, jobs, errors and configuration."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOPS = {
    "orchestrator": ROOT / "orchestrator",
    "fcctl_remote": ROOT / "remote/fcctl_remote",
    "fcctl_tune": ROOT / "remote/fcctl_tune",
}
DOTTED = re.compile(r"(?<![\w./-])(?:orchestrator|fcctl_remote|fcctl_tune)(?:\.[A-Za-z_]\w*)+(?![\w-])")
SLASHED = re.compile(r"(?<![\w./{}~-])(?:orchestrator|remote|fcctl_remote|fcctl_tune)/[\w./-]*\w/?")
#: Folders of the layout before this one. A path below one of them names nothing.
GONE = re.compile(r"(?<![\w./-])(?:domain|workflows|adapters|ports)/\w+")
#: Made when the wheel is built, by Python itself, or by tests that need a name of nothing.
MADE_ELSEWHERE = re.compile(r"/_data/|__\w+__")
NOTHING = ("orchestrator.emulator.nothing", "orchestrator.test", "fcctl_remote/zz.py", "orchestrator/build/left.py")
#: History, what a run left, and the two tests that plant names.
LEFT_OUT = ("CHANGELOG.md", "results/", "tests/unit/test_floors.py", "tests/unit/test_mentions.py")


def texts() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [
        name
        for name in listed.splitlines()
        if not name.startswith(LEFT_OUT) and (ROOT / name).is_file() and b"\0" not in (ROOT / name).read_bytes()[:4096]
    ]


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines or imports at module level."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return frozenset(found)


@cache
def is_there(dotted: str) -> bool:
    top, *parts = dotted.split(".")
    place = TOPS[top]
    # A folder that was left with its __pycache__ hides no module.
    while parts and (place / parts[0]).is_dir() and not (place / f"{parts[0]}.py").is_file():
        place /= parts.pop(0)
    if not parts:
        return True
    if (module := place / f"{parts[0]}.py").is_file():
        return len(parts) == 1 or parts[1] in names_in(module)
    return parts[0] in names_in(place / "__init__.py") or (place / ".".join(parts)).exists()


def is_a_path(slashed: str) -> bool:
    path = slashed.rstrip("./")
    return any((base / path).exists() for base in (ROOT, ROOT / "remote")) or is_there(path.replace("/", "."))


def problems(text: str) -> list[str]:
    return [
        *(name for name in DOTTED.findall(text) if not expected(name) and not is_there(name)),
        *(name for name in SLASHED.findall(text) if not expected(name) and not is_a_path(name)),
        *GONE.findall(text),
    ]


def expected(name: str) -> bool:
    return name in NOTHING or MADE_ELSEWHERE.search(name) is not None


def test_what_is_named_is_there() -> None:
    names = texts()
    assert len(names) > 500
    wrong = {name: problems((ROOT / name).read_text(errors="replace")) for name in names}
    assert not {name: found for name, found in wrong.items() if found}


@pytest.mark.parametrize(
    "text",
    ["see orchestrator.domain.job", "`orchestrator/workflows/drive.py`", "domain/stopped.py", "fcctl_tune.room.Room",
     "orchestrator.money.caps.no_such_name"],
)  # fmt: skip
def test_a_place_that_is_gone_is_seen(text: str) -> None:
    assert problems(text)
