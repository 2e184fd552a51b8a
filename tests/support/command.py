"""``fcctl`` as a process."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.support import forked

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Fcctl(Protocol):
    def __call__(self, *argv: str, cwd: Path, env: dict[str, str] | None = None) -> Outcome: ...


def source_environment(env: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment, so that a child Python finds the source tree."""
    return {**os.environ, "PYTHONPATH": forked.PYTHON_PATH, **(env or {})}


def run_fcctl(*argv: str, cwd: Path, env: dict[str, str] | None = None) -> Outcome:
    """Run ``fcctl`` with the given arguments in ``cwd``; ``env`` is added to the environment."""
    done = forked.run(argv, cwd, source_environment(env))
    return Outcome(done.returncode, done.stdout, done.stderr)
