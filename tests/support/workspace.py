"""Small workspaces and the fcctl command, as a user has them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.base import run_id
from tests.support import forked
from tests.support.sshd import LoopbackSshd

REPOSITORY = Path(__file__).resolve().parents[2]
_STARTED: dict[Path, list[subprocess.Popen[str]]] = {}


def end_started(home: Path) -> None:
    """End what :meth:`Workspace.start` started and a test that failed did not; its report shows what that printed."""
    for process in _STARTED.pop(home, []):
        if process.poll() is None:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what it started has its pipes, too
            print(f"{process.args}: {process.communicate(timeout=10)}")
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()  # else the garbage collector complains of it during another test


class Workspace:
    """A folder with fcctl.toml, its own HOME, and :meth:`fcctl` to type commands in it.

    The target ``here`` is local with a root of its own; ``box`` is the given sshd.
    """

    #: What most of its commands import, beside fcctl.
    imports: tuple[str, ...] = ()

    def __init__(self, folder: Path, home: Path, server: LoopbackSshd | None = None, **box: Any) -> None:
        self.root = folder
        self.home = home
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fcctl.toml").write_text('[project]\nname = "small"\n\n[targets.here]\nkind = "local"\n')
        if server is not None:
            self.add_ssh("box", server, **box)
        (folder / "jobs").mkdir(exist_ok=True)
        (folder / "main.cu").write_text("// nothing\n")

    def add_ssh(self, name: str, server: LoopbackSshd, **values: Any) -> None:
        """Another target, that server."""
        found = server.target().model_dump(exclude={"name"}, exclude_none=True, exclude_defaults=True)
        with (self.root / "fcctl.toml").open("a") as stream:
            stream.write("\n" + table(f"targets.{name}", {"kind": "ssh", **found, **values}))

    def job(self, name: str, text: str) -> None:
        (self.root / f"jobs/{name}.yaml").write_text(f"job: {name}\n{text}")

    def write_search(self, name: str, text: str) -> None:
        (self.root / "tune").mkdir(exist_ok=True)
        (self.root / f"tune/{name}.yaml").write_text(f"tune: {name}\n{text}")

    def env(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FCCTL_", "XDG_", "SSH_AUTH"))}
        return {**kept, "HOME": str(self.home), "PYTHONPATH": forked.PYTHON_PATH, "COLUMNS": "100", **more}

    def fcctl(
        self, *args: str, check: int | None = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Type ``fcctl ARGS`` here. ``check`` is the exit code it must have; None for any."""
        done = forked.run(args, self.root, {**self.env(), **(env or {})}, self.imports)
        if check is not None and done.returncode != check:
            raise AssertionError(
                f"fcctl {' '.join(args)}: exit code {done.returncode}, not {check}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def killed(self, when: str, line: int, *args: str) -> int:
        """The exit code of ``fcctl ARGS`` that is killed with SIGKILL at a line of its journal, if it comes so far.

        ``after``: the line is on disk and its effect has not begun. ``before``: the effect of the line before has
        happened and this line is not on disk.
        """
        done = forked.run(args, self.root, self.env(), more=self.imports, kill=(when, line))
        if done.returncode not in (0, -signal.SIGKILL):
            print(done.stderr)
        return done.returncode

    def changed(self, what: str, number: int | str, *args: str) -> subprocess.CompletedProcess[str]:
        """``fcctl ARGS`` to which ``what`` happens, as :mod:`tests.support.killed_fcctl` has it."""
        return forked.run(args, self.root, self.env(), more=self.imports, kill=(what, number))

    def start(self, *args: str, **more: str) -> subprocess.Popen[str]:
        """The same in the background, for tests that kill it or press Ctrl-C."""
        process = forked.start(args, self.root, self.env(**more), self.imports)
        _STARTED.setdefault(self.home, []).append(process)
        return process

    def json(self, *args: str, check: int | None = 0) -> Any:
        return json.loads(self.fcctl(*args, "--json", check=check).stdout)

    def runs(self) -> dict[str, dict[str, Any]]:
        """Every complete run's run.json by id."""
        found = (self.root / "results/runs").glob("*/run.json")
        return {path.parent.name: json.loads(path.read_text()) for path in found if not path.parent.suffix}

    def active(self) -> list[str]:
        folder = self.root / "results/active"
        # One that is just being made has another name, for a moment.
        return sorted(p.name for p in folder.iterdir() if run_id.is_valid(p.name)) if folder.is_dir() else []

    def only_run(self) -> dict[str, Any]:
        (record,) = self.runs().values()
        return record

    def only_folder(self) -> Path:
        (run_id,) = self.runs()
        return self.root / "results/runs" / run_id


def table(name: str, values: Mapping[str, Any]) -> str:
    """A table of fcctl.toml."""
    return f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
