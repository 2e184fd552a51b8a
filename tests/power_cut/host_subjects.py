"""Power cuts on the machine: the host program's own files, submissions, outcomes, libraries, and a search's journal."""

from __future__ import annotations

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import pytest

from fcctl_remote import start, wire
from fcctl_remote.agent import submit
from fcctl_remote.agent.calls import Calls
from fcctl_remote.base import bundles, files, hostfacts, tree
from fcctl_remote.base.layout import Layout, RunLayout
from fcctl_remote.run import lost
from fcctl_remote.run import state as runs
from fcctl_remote.run.control import HostLock
from fcctl_remote.run.shutdown_timer import LeaseKeeper
from fcctl_remote.wire import Refusal
from fcctl_tune.errors import TuneError
from fcctl_tune.search.storage import Journal
from fcctl_tune.search.storage import _is_operation as is_operation
from tests.power_cut.base_subjects import LONG, is_newest
from tests.power_cut.play import Done, Subject
from tests.support.stores import NOVEMBER, make_id

RUN, OTHER = make_id(at=NOVEMBER, token="3fa9c1"), make_id(at=NOVEMBER + 1, token="aaaaaa")
SOURCE = {"main.cu": LONG, "lib/a.h": b"int a;\n"}


def layout_of(root: Path) -> Layout:
    return Layout(str(root / "home" / ".fcctl"))


def made(root: Path) -> Layout:
    layout = layout_of(root)
    layout.ensure()
    return layout


class HostAtomic(Subject):
    """The host's ``write_atomic``."""

    contents = (b"first", LONG, b"third")

    def act(self, root: Path, done: Done) -> None:
        for at, content in enumerate(self.contents):
            files.write_atomic(str(root / "file"), content)
            done(str(at))

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        path = root / "file"
        is_newest(path.read_bytes() if path.exists() else None, [None, *self.contents], done)
        files.write_atomic(str(path), b"afterwards")
        assert path.read_bytes() == b"afterwards"


class Events(Subject):
    """A run that has begun is never taken up again; a torn event costs only itself."""

    def prepare(self, root: Path) -> None:
        files.make_folders(made(root).run(RUN).folder)

    def act(self, root: Path, done: Done) -> None:
        run = layout_of(root).run(RUN)
        log = runs.EventLog(run.events, files.DiskReserve(run.reserve))
        log.append("run_started", {"job": "j"}, durable=True)
        done("begun")
        log.append("step_started", {"step": LONG.decode()})
        log.append("step_finished", {"step": "build"})

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        run = layout_of(root).run(RUN)
        assert runs.has_begun(run) or not done
        found, _ = runs.read_events(run.events, 0, 1 << 20)
        kinds = [event.type for event in found]
        assert not done or kinds[0] == "run_started"
        assert len(kinds) == len(set(kinds))
        runs.EventLog(run.events, files.DiskReserve(run.reserve)).append("run_finished", {}, durable=True)
        again, _ = runs.read_events(run.events, 0, 1 << 20)
        assert [event.type for event in again] == [*kinds, "run_finished"]


class Outcome(Subject):
    """An outcome says that results are there: logs and documents of the steps are whole with it."""

    results: ClassVar = {
        "steps/build/log.txt": LONG,
        "steps/build/out/report.json": b'{"a":1}',
        "artifacts/kernel.so": LONG * 3,
    }

    def prepare(self, root: Path) -> None:
        run = made(root).run(RUN)
        files.make_folders(run.folder)
        files.write_atomic(run.plan, files.to_json(wire.encode(_plan("0" * 64))))

    def act(self, root: Path, done: Done) -> None:
        run = layout_of(root).run(RUN)
        runs.EventLog(run.events, files.DiskReserve(run.reserve)).append("run_started", {}, durable=True)
        for name, content in self.results.items():
            path = Path(run.folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        outcome = runs.outcome(_plan("0" * 64), "passed", "")
        runs.write_outcome(run, outcome, files.DiskReserve(run.reserve))
        done("finished")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        run = layout_of(root).run(RUN)
        if runs.is_finished(run):
            assert {name: Path(run.folder, name).read_bytes() for name in self.results} == self.results
            assert (runs.summary(run) or _none()).status == "passed"
        else:
            assert not done
            assert lost.write_lost_outcome(run) == runs.has_begun(run)
            assert (runs.summary(run) or _none()).status in ("lost", "queued")


class Heartbeat(Subject):
    """What is known of a run while it runs: a power cut may cost it, and the run is never begun anew."""

    def prepare(self, root: Path) -> None:
        Outcome().prepare(root)
        run = layout_of(root).run(RUN)
        runs.EventLog(run.events, files.DiskReserve(run.reserve)).append("run_started", {}, durable=True)

    def act(self, root: Path, done: Done) -> None:
        run = layout_of(root).run(RUN)
        reserve = files.DiskReserve(run.reserve)
        reserve.take()
        state = runs.State(wire.RunSummary(RUN, "job", "running", 1.0, step_count=1), "boot", 1)
        for step in ("build", LONG.decode()):
            state.summary.step = step
            runs.Progress(run, state, reserve).save()

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        run = layout_of(root).run(RUN)
        assert (runs.summary(run) or _none()).status in ("running", "queued")
        assert lost.write_lost_outcome(run)
        assert (runs.summary(run) or _none()).status == "lost"
        assert not Path(run.reserve).exists()


class Submission(Subject):
    """The source's snapshot and the plan: whoever submits again after the restart never starts on half a source."""

    states = 60

    def __init__(self) -> None:
        self._entries = [
            wire.TreeEntry(name, hashlib.sha256(content).hexdigest(), len(content)) for name, content in SOURCE.items()
        ]
        self._digest = tree.tree_digest(self._entries)
        self._started: list[str] = []
        self._boots = 0

    def prepare(self, root: Path) -> None:
        layout = made(root)
        for name, content in SOURCE.items():
            path = Path(layout.tree("ws"), name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def act(self, root: Path, done: Done) -> None:
        with self._boot():
            self._submit(root, done)

    def _submit(self, root: Path, done: Done) -> wire.Submitted:
        calls = Calls(layout_of(root), [], "")
        manifest = json.dumps([wire.encode(entry) for entry in self._entries]).encode()
        calls.snapshot({"workspace": "ws", "tree_sha256": self._digest, "run_id": RUN}, manifest)
        answer, _ = calls.submit({"plan": wire.encode(_plan(self._digest))}, b"")
        done("submitted")
        assert isinstance(answer, wire.Submitted)
        return answer

    def _boot(self) -> AbstractContextManager[None]:
        self._boots += 1
        boot_id = str(self._boots)
        return _patched(
            (hostfacts, "boot_id", lambda: boot_id),
            (lost, "boot_id", lambda: boot_id),
            (submit, "_start", self._start),
        )

    def _start(self, run: RunLayout, *_: object) -> bool:
        self._started.append(run.source)
        return True

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        self.recover(root, done)

    def recover(self, root: Path, done: tuple[str, ...]) -> None:
        run = layout_of(root).run(RUN)
        self._started.clear()
        with self._boot():
            if done:
                found, _ = Calls(layout_of(root), [], "").status({"run_ids": [RUN]}, b"")
                assert [summary.status for summary in found["runs"]] == ["lost"]
            layout_of(root).ensure()
            answer = self._submit(root, lambda _: None)
        assert (answer.summary.status == "lost") == (not self._started)
        if self._started:
            assert {name: Path(run.source, name).read_bytes() for name in SOURCE} == SOURCE
            assert runs.load_plan(run) == _plan(self._digest)


class Forget(Subject):
    """A run is deleted on its machine: it is there as it was, or not at all."""

    prepared = Outcome()

    def prepare(self, root: Path) -> None:
        self.prepared.prepare(root)
        self.prepared.act(root, lambda _: None)

    def act(self, root: Path, done: Done) -> None:
        Calls(layout_of(root), [], "").forget({"run_id": RUN}, b"")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        layout = layout_of(root)
        if layout.run_ids():
            self.prepared.judge(root, ("finished",))
        Calls(layout, [], "").forget({"run_id": RUN}, b"")
        assert layout.run_ids() == []


class ShutdownTimer(Subject):
    """The machine's own deadline: what was armed or renewed is remembered. A dry one: no timer is set here."""

    #: Counted from the import of this module: of them all, none passes before the tests have ended.
    ends = (time.time() + 6000, time.time() + 3000, time.time() + 9000)

    def act(self, root: Path, done: Done) -> None:
        keeper = LeaseKeeper(made(root))
        for op, end in zip(("arm", "arm", "renew"), self.ends, strict=True):
            keeper.handle(wire.LeaseRequest(op, deadline=end, token="t" * 32))
            done(op)

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        keeper = LeaseKeeper(made(root))
        found = keeper.handle(wire.LeaseRequest("show"))
        assert found.deadline in (None, *self.ends)[len(done) :]
        assert found.armed == (found.deadline is not None)
        if found.armed:
            keeper.handle(wire.LeaseRequest("renew", deadline=self.ends[2], token="t" * 32))
        else:
            keeper.handle(wire.LeaseRequest("arm", deadline=self.ends[2], token="t" * 32))


class Queue(Subject):
    """Tickets of before the restart are nobody's."""

    def act(self, root: Path, done: Done) -> None:
        layout = made(root)
        first, second = HostLock(layout, RUN, "exclusive"), HostLock(layout, OTHER, "shared")
        first.join()
        second.join()
        assert second.behind() == RUN
        first.leave()
        second.leave()

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        layout = made(root)
        assert HostLock.is_free(layout)
        queue = HostLock(layout, RUN, "exclusive")
        queue.join()
        assert queue.behind() is None
        queue.leave()


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class Bundles(Subject):
    """Libraries that a step needs: sent in pieces, unpacked, whole at each use."""

    members: ClassVar = {"pkg/__init__.py": b"x = 1\n", "pkg/data.bin": LONG}

    def __init__(self) -> None:
        listed = {name: hashlib.sha256(content).hexdigest() for name, content in self.members.items()}
        self._data = _zip({**self.members, bundles.CONTENTS: json.dumps({"files": listed}).encode()})
        self._sha256 = hashlib.sha256(self._data).hexdigest()

    def _send(self, store: bundles.Bundles) -> None:
        size, offset, data = len(self._data), 0, b""
        while not (state := store.take(self._sha256, size, offset, data)).ready:
            offset = state.received
            data = self._data[offset : offset + 3000]

    def _use(self, store: bundles.Bundles) -> None:
        with store.in_use(self._sha256) as folder:
            assert {name: Path(folder, name).read_bytes() for name in self.members} == self.members

    def act(self, root: Path, done: Done) -> None:
        store = bundles.Bundles(made(root))
        self._send(store)
        done("sent")
        self._use(store)

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        store = bundles.Bundles(made(root))
        assert store.here(self._sha256) or not done
        with suppress(Refusal):  # a piece was damaged, and all of it is thrown away
            self._send(store)
        self._send(store)
        self._use(store)


class Unpacked(Subject):
    """The host program beside its archive: whole, or put right by the next start."""

    members: ClassVar = {"__main__.py": b"pass\n", "fcctl_remote/__init__.py": b"", "fcctl_remote/wire.py": b"#" + LONG}

    def prepare(self, root: Path) -> None:
        (root / "program.pyz").write_bytes(_zip(self.members))

    def act(self, root: Path, done: Done) -> None:
        start.unpack(str(root / "program.pyz"), str(root / "program.d"))

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        archive, folder = str(root / "program.pyz"), str(root / "program.d")
        if start.damaged(folder) != []:
            (start.put_right if (root / "program.d").is_dir() else start.unpack)(archive, folder)
        assert {name: (root / "program.d" / name).read_bytes() for name in self.members} == self.members


class Study(Subject):
    """A search's journal: what was synced is read again; what was not may be missing from some point on."""

    def act(self, root: Path, done: Done) -> None:
        journal = Journal(str(root / "out" / "study.jsonl"))
        for at in range(3):
            journal.append_logs([{"op": at, "text": LONG.decode()}, {"op": at, "text": "x"}])
            if at != 1:
                journal.sync()
                done(str(at))
        journal.close()

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        path, whole = root / "out" / "study.jsonl", (0, 2, 6)[len(done)]
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        good = [is_operation(line) for line in lines]
        if True in good[good.index(False) :] if False in good else False:
            # A block is missing before one that is there. It is after all that was synced, and a person decides.
            assert good.index(False) >= whole
            with pytest.raises(TuneError, match="is damaged at line"):
                Journal(str(path))
            return
        journal = Journal(str(path))
        found = [(log["op"], len(log["text"])) for log in journal.read_logs(0)]
        every = [(at, length) for at in range(3) for length in (len(LONG), 1)]
        assert found == every[: len(found)]
        assert len(found) >= whole
        journal.append_logs([{"op": 9, "text": ""}])
        journal.sync()
        assert len(list(journal.read_logs(0))) == len(found) + 1
        journal.close()


def _plan(digest: str) -> wire.RunPlan:
    return wire.RunPlan(RUN, "job", "l4", "ws", digest, [wire.StepSpec("build", "true")])


def _none() -> wire.RunSummary:
    raise AssertionError("the host does not know the run")


@contextmanager
def _patched(*changes: tuple[object, str, Callable[..., object]]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, instead in changes:
            patch.setattr(owner, name, instead)
        yield


HOST = (
    HostAtomic, Events, Outcome, Heartbeat, Submission, Forget, ShutdownTimer, Queue, Bundles, Unpacked, Study,
)  # fmt: skip
