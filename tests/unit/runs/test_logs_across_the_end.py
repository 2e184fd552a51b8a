"""Logs of a run that comes home, and whose machine is stopped, while they are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import HostFault, HostUnreachable, LinkLost
from orchestrator.base.journal import JournalEntry
from orchestrator.machines.targets import SshTarget
from orchestrator.results.records import SourceRecord, StepRecord
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.logs import read_logs

RUN = "20261121t081530z-j-t-3fa9c1"
LOG = b"0123456789"


@dataclass
class World:
    """A machine that gives four bytes of the log and is then off; a run's folder that has them all."""

    folder: Path
    journal: list[str]
    gone_after: int
    asked: int = 0
    slept: list[float] = field(default_factory=list)
    comes_home: bool = True

    def services(self) -> Any:
        plan = wire.RunPlan(RUN, "j", "t", "w", "0" * 64, [wire.StepSpec("a", "x")])
        target = SshTarget(name="t", host="h", reconnect_s=60)
        saved = SavedPlan(plan=plan, target=target, source=SourceRecord(tree_sha256="0" * 64))
        store = SimpleNamespace(
            is_complete=lambda _run: False,
            plan_of=lambda _run: saved.model_dump(mode="json"),
            journal_of=self._entries,
            folder=lambda _run: self.folder,
            active=lambda: [RUN],
        )
        clock = SimpleNamespace(now=lambda: 0.0, monotonic=lambda: sum(self.slept), sleep=self.slept.append)
        return SimpleNamespace(store=store, clock=clock, hosts=self, observer=SimpleNamespace(note=lambda _said: None))

    def _entries(self, _run: str) -> list[JournalEntry]:
        return [JournalEntry(seq=i, time=0.0, kind=kind) for i, kind in enumerate(self.journal)]

    def connect(self, _target: object) -> Any:
        self.asked += 1
        if self.asked > self.gone_after:
            raise HostUnreachable("it is off", reason="port")
        return SimpleNamespace(
            hello=SimpleNamespace(time=0.0, mended=[]),
            status=lambda _ids: [object()],
            watch=self._watch,
            close=lambda: None,
        )

    def _watch(self, request: wire.WatchRequest) -> tuple[Any, bytes]:
        if request.log_offset:
            if self.comes_home:
                self.journal += ["ended", "collected"]
            raise LinkLost("cut")
        reply = SimpleNamespace(events_offset=0, events=[], log_offset=0, log_size=len(LOG), summary=None)
        return reply, LOG[:4]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "steps/a").mkdir(parents=True)
    (tmp_path / "steps/a/log.txt").write_bytes(LOG)
    return tmp_path


def test_the_rest_is_read_here(folder: Path) -> None:
    world = World(folder, ["sync", "submit", "submitted"], gone_after=1)
    pieces = [piece.data for piece in read_logs(world.services(), RUN, None, wait=False)]
    assert pieces == [LOG[:4], LOG[4:]]
    assert len(world.slept) == 1, "nobody waits for a machine that was let go"


def test_a_run_that_is_here_is_not_asked_for_there(folder: Path) -> None:
    world = World(folder, ["sync", "submit", "submitted", "ended", "collected"], gone_after=0)
    assert [piece.data for piece in read_logs(world.services(), RUN, "a", wait=True)] == [LOG]
    assert world.asked == 0


def test_a_machine_that_stays_away_with_the_log_is_an_error(folder: Path) -> None:
    world = World(folder, ["sync", "submit", "submitted"], gone_after=1, comes_home=False)
    with pytest.raises(LinkLost):
        list(read_logs(world.services(), RUN, None, wait=False))


@pytest.mark.parametrize("wait", [False, True])
def test_a_host_that_promises_a_log_and_sends_none_is_not_asked_for_ever(folder: Path, wait: bool) -> None:
    world = World(folder, ["sync", "submit", "submitted"], gone_after=1)
    asked: list[wire.WatchRequest] = []
    ended = wire.RunSummary(RUN, "j", "passed", 0.0)

    def watch(request: wire.WatchRequest) -> tuple[wire.WatchReply, bytes]:
        asked.append(request)
        assert len(asked) < 9
        return wire.WatchReply([], 0, ended, log_step="a", log_size=10**9), b""

    world._watch = watch  # type: ignore[method-assign]
    assert list(read_logs(world.services(), RUN, None, wait=wait)) == []


@pytest.mark.parametrize("name", ["a", "../../elsewhere"])
def test_a_log_of_an_imported_run_is_no_other_file(folder: Path, tmp_path: Path, name: str) -> None:
    """What a record calls a step is no way out of its run's folder, nor is a link in it."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "log.txt").write_bytes(b"secret")
    (folder / "steps/a/log.txt").unlink()
    (folder / "steps/a/log.txt").symlink_to(outside / "log.txt")
    (folder / "run/steps").mkdir(parents=True)
    step = StepRecord(id=name, status="passed")
    store = SimpleNamespace(
        is_complete=lambda _run: True,
        get=lambda _run: SimpleNamespace(steps=[step]),
        folder=lambda _run: folder if name == "a" else folder / "run",
    )
    services: Any = SimpleNamespace(store=store)
    assert list(read_logs(services, RUN, None, wait=False)) == []


def complete_services(folders: list[Path], complete: list[bool]) -> Any:
    """Of a run that another fcctl completes: the folders that it has, and whether it is complete, asked in turn."""

    def next_of(values: list[Any]) -> Any:
        return values.pop(0) if len(values) > 1 else values[0]

    store = SimpleNamespace(
        is_complete=lambda _run: next_of(complete),
        plan_of=lambda _run: None,
        get=lambda _run: SimpleNamespace(steps=[StepRecord(id="a", status="passed")]),
        folder=lambda _run: next_of(folders),
    )
    return SimpleNamespace(store=store)


def test_a_folder_that_gets_its_final_name_before_it_is_read(folder: Path) -> None:
    services = complete_services([folder.with_name("r.partial"), folder], [True])
    assert [piece.data for piece in read_logs(services, RUN, None, wait=False)] == [LOG]
    nowhere = complete_services([folder.with_name("r.partial")], [True])
    assert list(read_logs(nowhere, RUN, None, wait=False)) == []


def test_a_run_that_is_complete_before_its_plan_is_read(folder: Path) -> None:
    services = complete_services([folder], [False, True])
    assert [piece.data for piece in read_logs(services, RUN, None, wait=False)] == [LOG]


def test_a_step_on_this_computer_whose_files_are_collected_and_deleted_there_while_it_is_read(folder: Path) -> None:
    world = World(folder, [], gone_after=9)
    services = world.services()
    saved = services.store.plan_of(RUN)
    (step,) = saved["plan"]["steps"]
    plan = {**saved["plan"], "steps": [{**step, "id": "b"}]}
    services.store.plan_of = lambda _run: {**saved, "plan": plan, "before_wake": [step]}
    begun = JournalEntry(seq=1, time=0.0, kind="begun", data={"before_wake": 1})
    services.store.journal_of = lambda _run: [begun, JournalEntry(seq=2, time=0.0, kind="prewake")]
    session, watch = world.connect(None), world._watch

    def gone(request: wire.WatchRequest) -> tuple[Any, bytes]:
        if request.log_offset:
            raise HostFault("this host has no such run", fault="not_found")
        return watch(request)

    session.watch = gone
    services.hosts = SimpleNamespace(connect=lambda _target: session)
    assert [piece.data for piece in read_logs(services, RUN, "a", wait=False)] == [LOG[:4], LOG[4:]]


def test_a_run_that_its_host_has_no_more_since_it_is_complete(folder: Path) -> None:
    world = World(folder, ["sync", "submit", "submitted"], gone_after=9)
    services = world.services()
    session = world.connect(None)

    def status(_ids: object) -> list[object]:
        services.store.is_complete = lambda _run: True  # by another fcctl, which deleted it there
        services.store.active = list
        return []

    session.status = status
    services.hosts = SimpleNamespace(connect=lambda _target: session)
    assert [piece.data for piece in read_logs(services, RUN, None, wait=True)] == [LOG]
