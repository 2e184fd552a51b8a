"""Power cuts under real processes: commands are recorded, crash states taken from the record, and commands recover.

A crash state lies at the path of the folder that was recorded, and its processes are gone: the computer that finds it
has another boot id.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fcctl_remote.run.process import become_subreaper
from tests.power_cut.play import Cut, restore
from tests.power_cut.process_scenarios import SCENARIOS, PreloadedWorkspace, Scenario
from tests.power_cut.recorded import Record, Replay, replaying
from tests.support import forked, scratch
from tests.support.sshd import end_processes_of

#: What looks after itself (SQLite), and what is checked or made again at each use.
BESIDE = ("index.sqlite", "/.cache/", "/.fcctl/runner/", "/.local/")


@dataclass
class Recording:
    scenario: Scenario
    place: PreloadedWorkspace
    records: list[Record] = field(default_factory=list)

    @property
    def before(self) -> Path:
        return self.place.base / "before"

    @contextmanager
    def replay(self, ignore: str | None = None) -> Iterator[Replay]:
        """From the beginning, in a folder of its own."""
        folder = self.place.base / "replayed"
        shutil.copytree(self.before, folder, symlinks=True)
        try:
            with replaying(folder, ignore) as replay:
                yield replay
        finally:
            shutil.rmtree(folder)


@contextmanager
def recording(scenario: Scenario) -> Iterator[Recording]:
    # A short path, in memory: tmux puts a socket below it, and nothing here needs a disk that really syncs.
    base = Path(tempfile.mkdtemp(prefix="pc", dir=scratch.folder()))
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
    with made.replay(ignore) as replay:
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


def play_processes(made: Recording, most: int, ignore: str | None = None) -> Iterator[str | None]:
    """What :func:`judge` finds, of each crash state."""
    for number, cut in enumerate(cuts(made, most, ignore)):
        yield judge(made, cut, f"boot {number}")


def table(most: int = 22) -> list[str]:
    """Print a line for each scenario; what was violated. Seconds: of processors, all processes included."""
    become_subreaper()  # supervisors and tmux count, too
    faults, operations, states, began = [], 0, 0, seconds()
    print(f"{'scenario':<18}{'operations':>11}{'crash states':>14}{'seconds':>9}")
    for scenario in SCENARIOS:
        at = seconds()
        with recording(scenario()) as made:
            found = list(play_processes(made, most))
        print(f"{scenario.__name__:<18}{len(made.records):>11}{len(found):>14}{seconds() - at:>9.2f}", flush=True)
        operations, states = operations + len(made.records), states + len(found)
        faults += [f"{scenario.__name__}: {violation}" for violation in filter(None, found)]
    print(f"{'all':<18}{operations:>11}{states:>14}{seconds() - began:>9.2f}")
    return faults


def seconds() -> float:
    """Of processors, used by this process and all those that it has waited for."""
    forked.close()
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return sum(os.times()[:4])
