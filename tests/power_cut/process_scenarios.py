"""Commands for the power cuts under real processes: what they do, what they promise, and how a user recovers."""

from __future__ import annotations

import json
import shutil
import subprocess
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.schedules.due import Firing
from orchestrator.schedules.fire import FiringRecords
from tests.power_cut.recorded import Log, build
from tests.support.forked import FCCTL
from tests.support.living import started_with
from tests.support.sshd import end_processes_of
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

DOCUMENT = {"kind": "metrics", "schema_version": 1, "metrics": {"answer": 42}}
LINE = "a line of the log"
JOB = f"""\
steps:
  - id: greet
    run: |
      echo {LINE}
      printf '%s' '{json.dumps(DOCUMENT)}' > "$FCCTL_OUT/m.json"
"""
#: Exit codes of errors that a command explains: a run that failed, a host or a run that is not there.
EXPLAINED = (0, 3, 5, 6, 7, 8, 100, 101, 102, 103, 104)


class PreloadedWorkspace(Workspace):
    """Its commands are processes of their own; ``recording``: with the recorder."""

    def __init__(self, base: Path) -> None:
        self.base, self.boot = base, "first"
        for name in ("sockets", "temporary", "root/home"):
            (base / name).mkdir(parents=True)
        super().__init__(base / "root/work", base / "root/home")
        self.job("greet", JOB)
        self.log = Log(base / "log", base / "root")
        build(base / "recorder.so")

    def env(self, **more: str) -> dict[str, str]:
        volatile = {"TMUX_TMPDIR": str(self.base / "sockets"), "TMPDIR": str(self.base / "temporary")}
        return super().env(**volatile, FCCTL_EMULATOR_BOOT_ID=self.boot, **more)

    def record(self, *args: str) -> str:
        """Type ``fcctl ARGS`` with the recorder; what it printed."""
        env = self.env(**self.log.environment(self.base / "recorder.so"))
        done = subprocess.run([*FCCTL, *args], cwd=self.root, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"fcctl {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def end_all(self) -> None:
        """As a power cut does."""
        end_processes_of(self.home)
        for name in ("sockets", "temporary"):
            shutil.rmtree(self.base / name)
            (self.base / name).mkdir()

    def quiet(self) -> None:
        wait_for(lambda: not [pid for pid, _ in started_with(f"HOME={self.home}")])


class Scenario(ABC):
    """Commands and what they promise: ``ID known``, ``ID ended`` on its host, ``ID collected``, ``ID deleted``."""

    def prepare(self, place: PreloadedWorkspace) -> None:  # noqa: B027
        """What is on the disk for long."""

    @abstractmethod
    def act(self, place: PreloadedWorkspace) -> None: ...

    def judge(self, place: PreloadedWorkspace, promises: frozenset[str]) -> None:
        """Recover with the commands that a user would type."""
        explained(place, "ps")
        explained(place, "pull-results")
        shown = {row["run_id"]: row["status"] for row in place.json("results", "ls")["runs"]}
        for run, status in shown.items():
            assert_whole(place, run, status)
        for run, what in map(str.split, promises):
            kept = {"known": run in shown, "deleted": run not in shown}.get(what, shown.get(run) == "passed")
            assert kept, f"{run} was {what}; results ls has {shown}"
        active = place.json("ps")["runs"]
        assert active == [], f"still active: {active}"


def explained(place: PreloadedWorkspace, *args: str) -> None:
    done = place.fcctl(*args, check=None)
    assert done.returncode in EXPLAINED, f"fcctl {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr


def assert_whole(place: PreloadedWorkspace, run: str, status: str) -> None:
    shown = place.json("results", "show", run)
    assert shown["problems"] == [], shown
    assert shown["run"]["status"] == status, shown
    if status == "passed":
        assert [document["content"] for document in shown["documents"]] == [DOCUMENT], shown
        # Of a run that was resumed the log is with the one that carried the step out.
        logs = [Path(shown["folder"], step["log"]) for step in shown["run"]["steps"] if step["log"]]
        assert logs
        assert [log.read_text() for log in logs if log.parent.name == "greet"] in ([], [f"{LINE}\n"])


class FirstRun(Scenario):
    """The first run on a computer: the host program is laid down, too."""

    def act(self, place: PreloadedWorkspace) -> None:
        run = json.loads(place.record("run", "greet", "--on", "here", "--json"))["run_id"]
        place.log.done(f"{run} collected")


class Detached(Scenario):
    """``run -d``, and the results are pulled when the host has finished."""

    def prepare(self, place: PreloadedWorkspace) -> None:
        place.fcctl("run", "greet", "--on", "here")

    def act(self, place: PreloadedWorkspace) -> None:
        run = place.record("run", "greet", "--on", "here", "-d").strip()
        place.log.done(f"{run} known")
        wait_for((place.home / ".fcctl/runs" / run / "outcome.json").exists)
        place.quiet()
        place.log.done(f"{run} ended")
        place.record("pull-results")
        place.log.done(f"{run} collected")


class Prune(Scenario):
    """Old runs are deleted; the newest stays."""

    def prepare(self, place: PreloadedWorkspace) -> None:
        for _ in range(3):
            place.fcctl("run", "greet", "--on", "here")

    def act(self, place: PreloadedWorkspace) -> None:
        *old, newest = sorted(place.runs(), key=lambda run: place.runs()[run]["created"])
        place.log.done(f"{newest} collected")
        place.record("results", "prune", "--older-than", "0h", "--keep-best", "0", "--yes")
        for run in old:
            place.log.done(f"{run} deleted")


class Scheduled(Scenario):
    """A schedule is due once. Whatever is left of its firing, the job runs once at most."""

    def prepare(self, place: PreloadedWorkspace) -> None:
        now = datetime.now(UTC)
        cron = f"{now.minute} {now.hour} {now.day} {now.month} *"
        place.fcctl("run", "greet", "--on", "here")
        place.fcctl(*("schedule", "add", "once", "--cron", cron, "--job", "greet", "--on", "here", "--timezone", "UTC"))
        since = now.timestamp() - 120
        records(place).append("once", (Firing(outcome="watching", due=since, at=since, key=f"{cron} UTC"),))

    def act(self, place: PreloadedWorkspace) -> None:
        place.record("schedule", "tick")
        place.log.done("once fired")
        place.quiet()
        (run,) = [firing.run_id for firing in records(place).read("once") if firing.outcome == "finished"]
        place.log.done(f"{run} collected")

    def judge(self, place: PreloadedWorkspace, promises: frozenset[str]) -> None:
        left = [firing.outcome for firing in records(place).read("once")]
        assert "once fired" not in promises or "started" in left, f"its record has {left}"
        explained(place, "schedule", "tick")
        place.quiet()
        super().judge(place, promises - {"once fired"})
        assert len(place.runs()) <= 2, f"it ran again: {place.runs()}"
        explained(place, "schedule", "ls")


class Resumed(Scenario):
    """The computer restarts while a step runs; the run is collected as cut off, and resumed."""

    def prepare(self, place: PreloadedWorkspace) -> None:
        go_on = place.base / "go-on"
        place.job("greet", f"{JOB}  - {{id: wait, run: 'until test -e {go_on}; do sleep 0.05; done'}}\n")
        run = place.fcctl("run", "greet", "--on", "here", "-d").stdout.strip()
        wait_for((place.home / ".fcctl/runs" / run / "steps/wait/log.txt").exists)
        place.end_all()
        place.boot = "second"
        go_on.touch()

    def act(self, place: PreloadedWorkspace) -> None:
        (run,) = place.active()
        place.record("pull-results")
        place.log.done(f"{run} known")
        resumed = json.loads(place.record("run", "--resume", run, "--json"))["run_id"]
        place.log.done(f"{resumed} collected")


def records(place: PreloadedWorkspace) -> FiringRecords:
    return FiringRecords(place.root / "results")


SCENARIOS: tuple[type[Scenario], ...] = (FirstRun, Detached, Prune, Scheduled, Resumed)
