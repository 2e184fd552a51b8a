"""Every error that is raised with a message of its own also says what to type next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from orchestrator.base import errors

ROOT = Path(__file__).resolve().parents[3] / "orchestrator"
CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
#: Translated or passed on before a user sees them, or nothing is left to do; by file.
NO_HINT = {
    "cli/context.py": 1,  # the user said no
    "machines/connect/reconnect.py": 1,  # a program without clouds
    "machines/connect/ssh/terminal.py": 1,
    "machines/connect/transport.py": 1,  # the caller names the key
    "machines/connect/tunnels.py": 1,  # tried again
    "results/store/intake.py": 2,  # listed as not collected
    "runs/logs.py": 1,  # then the log of the store
    "runs/machine/run_lease.py": 2,  # the run's end says it
    "tune/tunnels.py": 2,  # tried again; a bug
    "views/dashboard/site.py": 1,  # a bug; its cause names the log
}


def without_hint(source: str) -> Iterator[int]:
    """The lines of ``raise`` whose error is made there, of a class of ours, without ``hint``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES:
            names = {word.arg for word in node.keywords}
            if not names & {"hint", None}:
                yield node.lineno


def test_an_error_without_a_hint_is_found() -> None:
    text = "raise ConfigError('a', cause='b')\nraise JobError('a', hint='b')\nraise DiskError(*a, **b)\n"
    assert [*without_hint(text)] == [1]


def test_every_error_says_what_to_type_next() -> None:
    found = {str(path.relative_to(ROOT)): [*without_hint(path.read_text())] for path in ROOT.rglob("*.py")}
    assert {file: lines for file, lines in found.items() if len(lines) > NO_HINT.get(file, 0)} == {}
