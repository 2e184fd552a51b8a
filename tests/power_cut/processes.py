"""Power cuts under real processes: commands are recorded, crash states taken from the record, and commands recover.

A crash state lies at the path of the folder that was recorded, and its processes are gone: the computer that finds it
has another boot id.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fcctl_remote.run.process import become_subreaper
from orchestrator.schedules.due import Firing
from orchestrator.schedules.firings import FiringRecords
from tests.power_cut.play import Cut, Result, restore
from tests.power_cut.recorded import Log, Record, build, replaying
from tests.support import forked
from tests.support.living import started_with
from tests.support.sshd import end_processes_of
from tests.support.waiting import wait_for
from tests.support.workspace import FCCTL, Workspace

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
#: What looks after itself (SQLite), and what is checked or made again at each use.
BESIDE = ("index.sqlite", "/.cache/", "/.fcctl/runner/", "/.local/")


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
        wait_for(lambda: not [pid for pid, _ in started_with(f"HOME={self.home}")], 20)


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


# ----------------------------------------------------------------------------------------------------------- playing
@dataclass
class Recording:
    scenario: Scenario
    place: PreloadedWorkspace
    records: list[Record] = field(default_factory=list)

    @property
    def before(self) -> Path:
        return self.place.base / "before"


@contextmanager
def recording(scenario: Scenario) -> Iterator[Recording]:
    # A short path, in memory: tmux puts a socket below it, and nothing here needs a disk that really syncs.
    base = Path(tempfile.mkdtemp(prefix="pc", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"))
    try:
        place = PreloadedWorkspace(base)
        scenario.prepare(place)
        place.quiet()
        made = Recording(scenario, place)
        shutil.copytree(base / "root", made.before, symlinks=True)
        scenario.act(place)
        place.quiet()
        made.records = list(place.log)
        yield made
    finally:
        end_processes_of(base / "root/home")
        shutil.rmtree(base)


def moments(records: list[Record], most: int) -> list[int]:
    """After how many operations the power fails: promises and the first that the store and the host's runs see."""
    chance = random.Random(0)
    done = [at for at, record in enumerate(records, 1) if record.kind == "D"]
    near: list[int] = []
    rest: list[int] = []
    for at, record in enumerate(records, 1):
        if record.kind in "FRLU":
            beside = any(name in f"/{record.path}" for name in BESIDE)
            (rest if beside else near).extend((at - 1, at))
        elif record.kind in "WOMST":
            rest.append(at)
    near, rest = sorted({*near} - {*done}), sorted({*rest} - {*near, *done})
    count = max(0, most - len(done))
    chosen = chance.sample(near, min(len(near), count * 3 // 4))
    chosen += chance.sample(rest, min(len(rest), count - len(chosen)))
    return sorted([*chosen, *done])


def cuts(made: Recording, most: int, ignore: str | None = None) -> Iterator[Cut]:
    """Crash states, no two alike."""
    chosen, seen = set(moments(made.records, most)), set[int]()
    promises: tuple[str, ...] = ()
    folder = made.place.base / "replayed"
    shutil.copytree(made.before, folder, symlinks=True)
    with replaying(folder, ignore) as replay:
        for at, record in enumerate(made.records, 1):
            replay.apply(record)
            if record.kind == "D":
                promises = (*promises, record.data.decode())
            if at not in chosen:
                continue
            states = [
                Cut(tree, promises, f"operation {at}, {record}") for tree in replay.disk.crash_states(12, str(at))
            ]
            new = [cut for cut in states if looks(cut) not in seen]
            if new:  # after a promise the last of the first four: all that is not durable is lost
                cut = new[:4][-1] if record.kind == "D" else random.Random(at).choice(new)
                seen.add(looks(cut))
                yield cut
    shutil.rmtree(folder)


def looks(cut: Cut) -> int:
    return hash((cut.done, tuple((name, node.mode, node.data) for name, node in cut.tree.items())))


def judge(made: Recording, cut: Cut, boot: str) -> str | None:
    """None, or what the commands did wrong. The next run passes."""
    place = made.place
    place.boot = boot
    restore(cut.tree, place.base / "root")
    try:
        made.scenario.judge(place, frozenset(cut.done))
        place.fcctl("run", "greet", "--on", "here")
    except Exception as error:
        return f"after {cut.after}, promised {cut.done}: {type(error).__name__}: {error}"
    finally:
        place.end_all()
    return None


def play_processes(made: Recording, most: int, ignore: str | None = None) -> Result:
    result = Result(len(made.records))
    for cut in cuts(made, most, ignore):
        result.states += 1
        violation = judge(made, cut, f"boot {result.states}")
        if violation is not None:
            result.violations.append(violation)
    return result


def table(most: int = 22) -> list[str]:
    """Print a line for each scenario; what was violated. Seconds: of processors, all processes included."""
    become_subreaper()  # supervisors and tmux count, too
    faults, operations, states, began = [], 0, 0, seconds()
    print(f"{'scenario':<18}{'operations':>11}{'crash states':>14}{'seconds':>9}")
    for scenario in SCENARIOS:
        at = seconds()
        with recording(scenario()) as made:
            result = play_processes(made, most)
        print(f"{scenario.__name__:<18}{result.operations:>11}{result.states:>14}{seconds() - at:>9.2f}", flush=True)
        operations, states = operations + result.operations, states + result.states
        faults += [f"{scenario.__name__}: {violation}" for violation in result.violations]
    print(f"{'all':<18}{operations:>11}{states:>14}{seconds() - began:>9.2f}")
    return faults


def seconds() -> float:
    """Of processors, used by this process and all those that it has waited for."""
    forked.close()
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return sum(os.times()[:4])
