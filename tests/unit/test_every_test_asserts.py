"""A test without an assertion passes whatever the code does, unless it raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
#: Raise AssertionError or pytest's own failure: ``wait_for`` when its time is over, ``ok`` of an operation that failed.
ASSERTING = ("raises", "fail", "warns", "wait_for", "wait_for_url", "expect")
#: ``Workspace.fcctl`` and the like check an exit code, 0 if nothing else is said; ``check=None`` does not.
RUNNING = ("fcctl", "json", "type")


def unasserted(text: str) -> list[str]:
    """The names of the tests in a module that assert nothing, themselves or through the module's own functions."""
    functions = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    asserting: set[str] = set()
    while True:
        more = {name for name, node in functions.items() if name not in asserting and _asserts(node, asserting)}
        if not more:
            return [name for name in functions if name.startswith("test_") and name not in asserting]
        asserting |= more


def _asserts(function: ast.FunctionDef, asserting: set[str]) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(function)) or any(
        name in ASSERTING or name in asserting or name.startswith("check")
        or (name in RUNNING and not _unchecked(call))
        for call in _calls(function) for name in [_name(call.func)]
    )  # fmt: skip


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Call))


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _unchecked(call: ast.Call) -> bool:
    return any(k.arg == "check" and isinstance(k.value, ast.Constant) and k.value.value is None for k in call.keywords)


def test_each_asserts_something() -> None:
    modules = sorted(TESTS.rglob("test_*.py"))
    assert len(modules) > 300
    assert {str(path): names for path in modules if (names := unasserted(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("reads(1)", ["test_it"]),
        ("assert reads(1)", []),
        ("with pytest.raises(ValueError): reads(1)", []),
        ("by_hand(1)", []),
        ("workspace.fcctl('ps', check=None)", ["test_it"]),
        ("workspace.fcctl('ps')", []),
    ],
)
def test_one_that_does_not_is_found(body: str, found: list[str]) -> None:
    assert unasserted(f"def test_it():\n    {body}\n\ndef by_hand(value):\n    assert value\n") == found
