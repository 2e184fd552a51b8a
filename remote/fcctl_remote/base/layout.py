"""Where everything lives: one class owns each path below ``~/.fcctl`` and each path of a run."""

from __future__ import annotations

import os
import re

from fcctl_remote.base import files

RUN_ID = re.compile(r"\d{8}t\d{6}z-[a-z0-9]+(?:-[a-z0-9]+)*-[0-9a-f]{6}")
STEP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_RUN_ID = 63
#: How the folder of a run is called while it is deleted.
FORGOTTEN = ".forget-"
WORKSPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class BadName(ValueError):
    """A run, step or workspace name that must not become a path."""


def default_root(archive: str | None) -> str:
    """``FCCTL_ROOT``, the root that the archive is in (``<root>/runner/<sha256>.pyz``), or ``~/.fcctl``."""
    given = os.environ.get("FCCTL_ROOT")
    if given:
        return os.path.abspath(given)
    folder = os.path.dirname(archive or "")
    if os.path.basename(folder) == "runner":
        return os.path.dirname(folder)
    return os.path.join(os.path.expanduser("~"), ".fcctl")


class Layout:
    """The host program's root folder."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.runner = os.path.join(root, "runner")
        self.bin = os.path.join(root, "bin")
        self.cache = os.path.join(root, "cache")
        self.trees = os.path.join(root, "trees")
        self.indexes = os.path.join(self.trees, ".index")
        self.locks = os.path.join(root, "locks")
        self.tickets = os.path.join(self.locks, "queue")
        self.runs = os.path.join(root, "runs")
        self.bundles = os.path.join(root, "bundles")
        self.lease = os.path.join(root, "lease.json")
        self.lease_lock = os.path.join(self.locks, "lease.lock")

    def ensure(self) -> None:
        """Create the folders, readable by this user only: sources and results are nobody else's."""
        files.make_folders(self.root, 0o700)
        for folder in (self.runner, self.indexes, self.tickets, self.runs):
            files.make_folders(folder)

    def tree(self, workspace: str) -> str:
        return os.path.join(self.trees, _checked(WORKSPACE, workspace, "workspace"))

    def index(self, workspace: str) -> str:
        return os.path.join(self.indexes, _checked(WORKSPACE, workspace, "workspace") + ".json")

    def cache_of(self, workspace: str) -> str:
        """What a workspace's runs keep for each other."""
        return os.path.join(self.cache, _checked(WORKSPACE, workspace, "workspace"))

    def tree_lock(self, workspace: str) -> str:
        return os.path.join(self.locks, "tree-%s.lock" % _checked(WORKSPACE, workspace, "workspace"))

    def run(self, run_id: str) -> RunLayout:
        """Raises: BadName, unless ``run_id`` is one."""
        return RunLayout(os.path.join(self.runs, _checked(RUN_ID, run_id, "run id", MAX_RUN_ID)), run_id)

    def run_ids(self) -> list[str]:
        """All runs on this host, oldest first."""
        try:
            names = os.listdir(self.runs)
            return sorted(name for name in names if RUN_ID.fullmatch(name) and len(name) <= MAX_RUN_ID)
        except FileNotFoundError:
            return []


class RunLayout:
    """One run's folder."""

    def __init__(self, folder: str, run_id: str) -> None:
        self.folder = folder
        self.run_id = run_id
        self.plan = os.path.join(folder, "plan.json")
        self.submission = os.path.join(folder, "submission.json")
        self.source = os.path.join(folder, "src")
        self.source_facts = os.path.join(folder, "snapshot.json")
        self.events = os.path.join(folder, "events.jsonl")
        self.telemetry = os.path.join(folder, "telemetry.jsonl")
        self.heartbeat = os.path.join(folder, "heartbeat.json")
        self.supervisor_log = os.path.join(folder, "supervisor.log")
        self.supervisor_lock = os.path.join(folder, "supervisor.lock")
        self.submit_lock = os.path.join(folder, "submit.lock")
        self.cancel = os.path.join(folder, "cancel.json")
        self.reserve = os.path.join(folder, "reserve")
        self.bin = os.path.join(folder, "bin")
        self.shim = os.path.join(self.bin, "fcctl-host")
        self.steps = os.path.join(folder, "steps")
        self.artifacts = os.path.join(folder, "artifacts")
        self.outcome = os.path.join(folder, "outcome.json")

    def step(self, step_id: str) -> StepLayout:
        return StepLayout(self, _checked(STEP_ID, step_id, "step id"))

    def relative(self, path: str) -> str:
        return os.path.relpath(path, self.folder)


class StepLayout:
    """One step's folder within a run."""

    def __init__(self, run: RunLayout, step_id: str) -> None:
        self.folder = os.path.join(run.steps, step_id)
        self.script = os.path.join(self.folder, "script.sh")
        self.spec = os.path.join(self.folder, "spec.json")
        self.log = os.path.join(self.folder, "log.txt")
        self.out = os.path.join(self.folder, "out")


def _checked(pattern: re.Pattern[str], name: str, what: str, longest: int | None = None) -> str:
    if not pattern.fullmatch(name) or (longest is not None and len(name) > longest):
        raise BadName("%r is not a %s" % (name[:80], what))
    return name
