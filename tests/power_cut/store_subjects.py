"""Power cuts while runs begin, are collected, completed, deleted and imported; SQLite's index looks after itself.

SQLite has its own tests of power cuts. A crash state has the index as it was, or not at all; a run that it lists may be
lost, and one that it does not list may be there.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fcctl_remote import wire
from orchestrator.base.clock import SystemClock
from orchestrator.base.errors import FcctlError
from orchestrator.results.store.active import FileActiveRun
from orchestrator.results.store.intake import FolderIntake
from orchestrator.results.store.names import Tag
from orchestrator.results.store.store import FileStore
from orchestrator.runs.transfer import collect
from tests.power_cut.base_subjects import LONG
from tests.power_cut.play import Done, Subject
from tests.support.stores import NOVEMBER, begin, completed, make_id, make_record, written

RUN, OTHER = make_id(at=NOVEMBER, token="3fa9c1"), make_id(at=NOVEMBER + 1, token="aaaaaa")
FILES = {"outcome.json": b'{"status":"passed"}\n', "steps/build/log.txt": LONG, "steps/build/empty": b""}
REPORT = "report.json"


def store_of(root: Path) -> FileStore:
    return FileStore(root / "results", SystemClock(), note=lambda _: None)


class Host:
    """As much of a link and its session as collecting asks for."""

    observer = SimpleNamespace(phase=lambda *_: None)

    def call(self, ask: Callable[[Any], Any]) -> Any:
        return ask(self)

    def files(self, _run_id: str) -> wire.FileList:
        return wire.FileList([wire.FileEntry(n, len(c), hashlib.sha256(c).hexdigest()) for n, c in FILES.items()])

    def fetch(self, _run_id: str, parts: Sequence[wire.FilePart]) -> Iterator[tuple[wire.FilePart, bytes]]:
        for part in parts:
            yield part, FILES[part.path][part.offset : part.offset + part.size]


def collect_all(intake: FolderIntake) -> None:
    host: Any = Host()
    collect(host, RUN, intake, host)


def recover(store: FileStore, *, least: int) -> FileActiveRun | None:
    """What the next command does with the run; None if it never was one. ``least``: lines its journal has."""
    if RUN not in store.active():
        return None
    run = store.claim(RUN)
    assert run is not None
    if store.plan_of(RUN) is None:
        assert not least
        run.discard()
        return None
    assert run.plan["plan"]["run_id"] == RUN
    kinds = [entry.kind for entry in run.journal.entries()]
    assert kinds in [["begun", "ended", "collected", "complete"][:count] for count in range(least, 5)]
    return run


def assert_whole(store: FileStore) -> None:
    folder = store.folder(RUN)
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert store.get(RUN) == make_record(RUN)
    assert [entry.kind for entry in store.journal_of(RUN)] == ["begun", "ended", "collected", "complete"]
    assert store.plan_of(RUN) is None or RUN not in store.active()
    assert RUN in [row.run_id for row in store.rows()]
    assert not [name for name in os.listdir(folder) if name.startswith(".")]


class StoreBegin(Subject):
    """A run's first moments: from ``begin`` on it is known, and each line of its journal is kept."""

    def act(self, root: Path, done: Done) -> None:
        run = begin(store_of(root), RUN)
        done("begun")
        run.journal.append("begun")
        done("journal")
        run.release()

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        store = store_of(root)
        run = recover(store, least=len(done) - 1 if done else 0)
        assert run is not None or not done
        if run is None:
            run = begin(store, RUN)
        run.journal.append("ended")
        run.release()
        begin(store, OTHER).release()
        assert store.active() == [RUN, OTHER]


class StoreCollect(Subject):
    """A run is collected. What the journal calls collected is not asked of its host again."""

    #: Lines of the journal that are durable at the beginning, and the most crash states after each operation.
    before, states = 1, 30

    def prepare(self, root: Path) -> None:
        run = begin(store_of(root), RUN)
        run.journal.append("begun")
        run.release()

    def act(self, root: Path, done: Done) -> None:
        store = store_of(root)
        run = store.claim(RUN)
        assert run is not None
        run.journal.append("ended")
        done("ended")
        collect_all(run.intake())
        run.journal.append("collected")
        done("collected")
        run.release()

    def recover(self, root: Path, done: tuple[str, ...]) -> None:
        store = store_of(root)
        run = recover(store, least=self.before + len(done))
        assert (run is None) == store.is_complete(RUN)
        assert run is None or "complete" not in done
        if run is not None:
            kinds = [entry.kind for entry in run.journal.entries()]
            if kinds == ["begun"]:
                run.journal.append("ended")
            if "collected" not in kinds:
                collect_all(run.intake())
                run.journal.append("collected")
            _complete(run, said="complete" in kinds)

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        self.recover(root, done)
        store = store_of(root)
        assert_whole(store)
        assert (store.folder(RUN) / REPORT).read_bytes() == LONG
        begin(store, OTHER).release()
        assert store.active() == [OTHER]
        assert os.listdir(root / "results/active") == [OTHER]


def _complete(run: FileActiveRun, *, said: bool) -> None:
    run.add(lambda _folder: {REPORT: LONG})
    if not said:
        run.journal.append("complete")
    run.complete(make_record(RUN))


class StoreComplete(StoreCollect):
    """A collected run is completed, and listed."""

    before = 3

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        super().act(root, lambda _: None)

    def act(self, root: Path, done: Done) -> None:
        store = store_of(root)
        run = store.claim(RUN)
        assert run is not None
        _complete(run, said=False)
        done("complete")
        store.rows()


class StoreDelete(Subject):
    """A complete run is deleted: it is there whole, or gone."""

    def prepare(self, root: Path) -> None:
        store = store_of(root)
        run = begin(store, RUN)
        for kind in ("begun", "ended", "collected", "complete"):
            run.journal.append(kind)
        collect_all(run.intake())
        run.complete(make_record(RUN))
        store.rows()

    def act(self, root: Path, done: Done) -> None:
        store_of(root).delete([RUN])

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        store = store_of(root)
        if store.is_complete(RUN):
            assert_whole(store)
            store.delete([RUN])
        assert store.rows() == []
        store.delete([])
        assert os.listdir(root / "results/runs") == []


class StoreImport(Subject):
    """A run out of an archive."""

    def prepare(self, root: Path) -> None:
        completed(store_of(root), OTHER)

    def _import(self, root: Path) -> None:
        incoming = store_of(root).incoming(RUN)
        incoming.write("run.json", 0, make_record(RUN).model_dump_json().encode())
        incoming.write("steps/log.txt", 0, LONG[:100])
        incoming.write("steps/log.txt", 100, LONG[100:])
        incoming.check()
        incoming.finish()

    def act(self, root: Path, done: Done) -> None:
        self._import(root)
        done("imported")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        store = store_of(root)
        assert store.is_complete(RUN) or not done
        if not store.is_complete(RUN):
            self._import(root)
        assert store.get(RUN) == make_record(RUN)
        assert (store.folder(RUN) / "steps/log.txt").read_bytes() == LONG
        assert [row.run_id for row in store.rows()] == [RUN, OTHER][:: 1 if RUN > OTHER else -1]


class PendingRelease(Subject):
    """A machine that is not known to be off: the note stays until the machine is."""

    def act(self, root: Path, done: Done) -> None:
        store = store_of(root)
        store.add_pending_release(RUN, {"name": "vm"})
        done("pending")
        store.add_pending_release(OTHER, {"name": "other"})
        done("both")
        store.remove_pending_release(RUN)
        done("removed")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        store, notes = store_of(root), {RUN: {"name": "vm"}, OTHER: {"name": "other"}}
        found = store.pending_releases()
        assert all(notes[run_id] == note for run_id, note in found.items())
        assert "both" not in done or OTHER in found
        assert done != ("pending",) or RUN in found
        assert "removed" not in done or RUN not in found
        store.add_pending_release(RUN, {"name": "again"})
        assert store.pending_releases()[RUN] == {"name": "again"}
        store.remove_pending_release(RUN)
        assert RUN not in store.pending_releases()


class Tags(Subject):
    """Names of runs: added, moved, removed."""

    steps = ("one", "two", "moved", "removed")

    def act(self, root: Path, done: Done) -> None:
        store = store_of(root)
        store.tag(Tag("one", (RUN,), note="n" * 3000), move=False)
        done("one")
        store.tag(Tag("two", (RUN,)), move=False)
        done("two")
        store.tag(Tag("two", (OTHER,)), move=True)
        done("moved")
        store.untag("one")
        done("removed")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        store = store_of(root)
        found = {name: tag.runs for name, tag in store.tags().items()}
        one, two, moved = {"one": (RUN,)}, {"two": (RUN,)}, {"two": (OTHER,)}
        assert found in [{}, one, one | two, one | moved, moved][len(done) :]
        store.tag(Tag("three", (RUN,)), move=False)
        assert "three" in store.tags()


def _is_readable(store: FileStore, run_id: str) -> bool:
    with suppress(FcctlError):
        return bool(store.get(run_id))
    return False


class Index(Subject):
    """A run whose index entry was lost is listed, also where the file system counts whole seconds."""

    moment = 0

    def prepare(self, root: Path) -> None:
        completed(store_of(root), OTHER)

    def act(self, root: Path, done: Done) -> None:
        runs = root / "results/runs"
        self.moment = time.time_ns()
        os.utime(runs, ns=(self.moment, self.moment))
        store_of(root).rows()
        written(root / "results", make_record(RUN))  # renamed, and the power fails before the index knows
        os.utime(runs, ns=(self.moment, self.moment))

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        os.utime(root / "results/runs", ns=(self.moment, self.moment))
        store = store_of(root)
        found = {row.run_id for row in store.rows()}
        assert found == {OTHER, RUN} if _is_readable(store, RUN) else found == {OTHER}


STORE = (StoreBegin, StoreCollect, StoreComplete, StoreDelete, StoreImport, PendingRelease, Tags, Index)
