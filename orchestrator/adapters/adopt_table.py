"""The table that a search's winners come into: a file of the workspace, ours or one that its own command writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from orchestrator.adapters.store.durable import disk_errors, write_atomic
from orchestrator.domain import adoption
from orchestrator.domain.adoption import Adoption
from orchestrator.domain.tune_file import Adopt
from orchestrator.errors import ConfigError, FcctlError

COMMAND_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class AdoptTable:
    """One such file. ``root`` is the workspace's folder, in which its command runs."""

    root: Path
    adopt: Adopt

    @property
    def file(self) -> str:
        return self.adopt.file

    def read(self) -> str:
        """What is there; empty if there is no file yet. Raises: FcctlError."""
        try:
            return (self.root / self.adopt.file).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise FcctlError(f"cannot read {self.adopt.file}", cause=str(error)) from error

    def with_rows(self, text: str, taken: Adoption) -> str:
        """``text`` with the rows of ``taken`` in it.

        Raises:
            ConfigError: the file is no table of ours, or the command that writes it fails.
        """
        if self.adopt.write:
            return self._written(text, taken)
        try:
            return adoption.table(text, taken.search, taken.rows)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.adopt.file} is no table that rows can come into",
                cause=str(error),
                hint="name another file in `adopt`, or a command that writes this one: adopt: {file: .., write: ..}",
            ) from None

    def _written(self, text: str, taken: Adoption) -> str:
        """What the search's own command makes of it: a JSON object on its input, the file's new content as output."""
        given = {"search": taken.search, "env": dict(taken.env), "rows": [row.as_dict() for row in taken.rows]}
        env = {**os.environ, "FCCTL_PYTHON": sys.executable, **taken.env}
        try:
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", self.adopt.write], cwd=self.root, env=env, check=False,
                input=json.dumps({**given, "text": text}), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
            raise self._failed(str(error)) from error
        if done.returncode != 0 or not done.stdout:
            said = done.stderr.strip().splitlines()[-3:]
            raise self._failed("\n".join([f"exit code {done.returncode}", *said]))
        return done.stdout

    def _failed(self, cause: str) -> ConfigError:
        return ConfigError(
            f"the command that writes {self.adopt.file} failed", cause=cause, hint=f"try it: {self.adopt.write}"
        )

    def write(self, text: str) -> None:
        """Raises: FcctlError."""
        path = (self.root / self.adopt.file).resolve()  # a link stays a link
        with disk_errors(f"write {self.adopt.file}", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path.parent, path.name, text.encode())
