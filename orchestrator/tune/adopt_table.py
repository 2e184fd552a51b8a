"""The table that a search's winners come into: a file of the workspace, ours or one that its own command writes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.errors import ConfigError, ConflictError
from orchestrator.base.files import alone_in, disk_errors, make_folders, write_atomic
from orchestrator.tune import adoption
from orchestrator.tune.adoption import Adoption
from orchestrator.tune.search_file import Adopt

COMMAND_TIMEOUT_S = 120.0


def _carried_out(command: str, folder: Path, env: Mapping[str, str], given: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a shell command. What it started ends with it if it takes too long or if we are
    told to stop.

    Raises:
        OSError, UnicodeDecodeError, subprocess.TimeoutExpired
    """
    words = ["bash", "-eo", "pipefail", "-c", command]
    with subprocess.Popen(
        words, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(given.encode(), COMMAND_TIMEOUT_S)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output.decode(), errors.decode("utf-8", "replace")


@dataclass(frozen=True)
class AdoptTable:
    """One such file. ``root`` is the workspace's folder, in which its command runs."""

    root: Path
    adopt: Adopt

    @property
    def file(self) -> str:
        return self.adopt.file

    def read(self) -> str:
        """What is there; empty if there is no file yet. Raises: ConfigError."""
        try:
            return (self.root / self.adopt.file).read_bytes().decode()  # its line ends are its own
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"cannot read {self.adopt.file}",
                cause=str(error),
                hint="move it away, or name another file in the search's `adopt`",
            ) from error

    def with_rows(self, text: str, taken: Adoption) -> str:
        """``text`` with the rows of ``taken`` in it.

        Raises:
            ConfigError: the file is no table of ours, or the command that writes it fails.
        """
        if self.adopt.write:
            return self._written(text, taken)
        try:
            return adoption.table(text, taken.search, taken.rows, taken.env)
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
            code, output, errors = _carried_out(self.adopt.write, self.root, env, json.dumps({**given, "text": text}))
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
            raise self._failed(str(error)) from error
        if code != 0 or not output:
            what = (
                f"exit code {code}" if code else "it printed nothing: the file's whole new content is to be its output"
            )
            raise self._failed("\n".join([what, *errors.strip().splitlines()[-3:]]))
        return output

    def _failed(self, cause: str) -> ConfigError:
        return ConfigError(
            f"the command that writes {self.adopt.file} failed", cause=cause, hint=f"try it: {self.adopt.write}"
        )

    def write(self, text: str, instead_of: str) -> None:
        """``instead_of`` is what was there when somebody agreed to ``text``.

        Raises:
            ConflictError: somebody else has changed it since.
            FcctlError: it cannot be written.
        """
        path = (self.root / self.adopt.file).resolve()  # a link stays a link
        with disk_errors(f"write {self.adopt.file}", path.parent):
            make_folders(path.parent)
            with alone_in(path.parent):
                if self.read() != instead_of:
                    hint = "the same command shows it anew"
                    raise ConflictError(f"{self.adopt.file} was changed since its difference was shown", hint=hint)
                write_atomic(path.parent, path.name, text.encode())
