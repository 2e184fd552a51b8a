"""What is exchanged with a host: files are verified, damaged ones are fetched again; logs are asked for once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import FcctlError, HostFault, LinkLost, RunNotFound
from orchestrator.results.store.intake import FolderIntake, Limits
from orchestrator.runs.transfer import KEPT_ON_HOST, LOW_BYTES, amount, collect, delete_old_runs, follow, make_room


class Host:
    """Sends files, the first ``wrong`` times of each with one byte changed."""

    def __init__(self, wrong: int = 0, **content: bytes) -> None:
        self.content = {f"steps/a/{name}": data for name, data in content.items()}
        self.wrong = wrong
        self.asked: list[tuple[str, int, int]] = []
        self.phases: list[str] = []

    def files(self, run_id: str) -> wire.FileList:
        entries = [
            wire.FileEntry(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in self.content.items()
        ]
        return wire.FileList(entries, [wire.Omitted("steps/a/core", "too_large"), wire.Omitted("other/b", "too_large")])

    def fetch(self, run_id: str, parts: Sequence[wire.FilePart]) -> Iterator[tuple[wire.FilePart, bytes]]:
        for part in parts:
            times = sum(path == part.path for path, _, _ in self.asked)
            self.asked.append((part.path, part.offset, part.size))
            data = self.content[part.path][part.offset : part.offset + part.size]
            yield part, data if times >= self.wrong else b"?" + data[1:]

    def collect(self, intake: FolderIntake, wanted: Callable[[str], bool] = lambda _: True) -> Any:
        link: Any = SimpleNamespace(call=lambda action: action(self))
        observer = SimpleNamespace(phase=lambda _, text: self.phases.append(text))
        services: Any = SimpleNamespace(observer=observer)
        return collect(link, "r", intake, services, wanted)


@pytest.fixture
def intake(tmp_path: Path) -> FolderIntake:
    return FolderIntake(tmp_path / "r.partial", Limits())


def test_everything_comes_and_is_flushed(intake: FolderIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[bytes | None] = []
    monkeypatch.setattr(intake, "flush", lambda: flushed.append((intake.root / "steps/a/log").read_bytes()))
    host = Host(log=b"12345", empty=b"")
    found = host.collect(intake)
    assert (found.files, found.bytes, [o.path for o in found.omitted]) == (2, 5, ["steps/a/core", "other/b"])
    assert flushed == [b"12345"]
    assert host.asked == [("steps/a/log", 0, 5), ("steps/a/empty", 0, 0)]
    assert host.phases == ["2 files, 5 bytes"]


@pytest.mark.parametrize(
    ("here", "asked"),
    [(b"123", [(3, 2)]), (b"12345", []), (b"1234567", [(0, 5)]), (b"xx", [(2, 3), (0, 5)]), (b"xxxxx", [(0, 5)])],
)
def test_only_what_is_missing_is_fetched(intake: FolderIntake, here: bytes, asked: list[tuple[int, int]]) -> None:
    intake.write("steps/a/log", 0, here)
    host = Host(log=b"12345")
    host.collect(intake)
    assert [(offset, length) for _, offset, length in host.asked] == asked
    assert (intake.root / "steps/a/log").read_bytes() == b"12345"


def test_a_file_that_arrives_damaged_is_fetched_three_times(intake: FolderIntake) -> None:
    host = Host(2, log=b"12345")
    assert host.collect(intake).files == 1
    assert len(host.asked) == 3
    lying = Host(3, bad=b"12345", other=b"12345")
    with pytest.raises(HostFault, match="2 files of the run arrived damaged; the first is 'steps/a/bad'"):
        lying.collect(intake)
    assert len(lying.asked) == 6
    assert intake.size("steps/a/bad") == 0, "nothing damaged is kept"


@pytest.mark.parametrize(("breaks", "arrives"), [(3, True), (99, False)])
def test_a_link_that_breaks_again_and_again_but_brings_bytes_is_tried_on(
    intake: FolderIntake, breaks: int, arrives: bool
) -> None:
    """Each time, ``link.call`` has given up after ``reconnect_s``; without a byte in that time it is the last."""
    host, fetch, offsets = Host(log=b"12345"), Host.fetch, []

    def broken(run_id: str, parts: Sequence[wire.FilePart]) -> Iterator[tuple[wire.FilePart, bytes]]:
        offsets.append(parts[0].offset)
        bytes_of_it = len(parts[0].path) if len(offsets) > breaks else int(len(offsets) < 4)
        yield from fetch(host, run_id, [replace(parts[0], size=min(parts[0].size, bytes_of_it))])
        if len(offsets) <= breaks:
            raise LinkLost("cut")

    host.fetch = broken  # type: ignore[method-assign]
    with nullcontext() if arrives else pytest.raises(LinkLost):
        assert host.collect(intake).bytes == 5
    assert offsets == [0, 1, 2, 3]


def test_names_that_are_not_safe_or_not_wanted_are_left_out(intake: FolderIntake, tmp_path: Path) -> None:
    host = Host(log=b"12345")
    host.content.update({"../out": b"x", "other/log": b"y"})
    found = host.collect(intake, lambda path: not path.startswith("other/"))
    assert (found.files, found.bytes) == (1, 5)
    assert [o.path for o in found.omitted] == ["steps/a/core", "../out"]
    assert not (tmp_path / "out").exists()


def test_what_does_not_fit_is_left_out_by_name_the_largest_first(tmp_path: Path) -> None:
    FolderIntake(tmp_path / "p").write("steps/a/huge", 0, b"x" * 9)  # of an earlier collection
    intake = FolderIntake(tmp_path / "p", Limits(bytes=10))
    host = Host(huge=b"x" * 11, large=b"y" * 6, log=b"12345", outcome=b"{}")
    found = host.collect(intake)
    left = [(omitted.path, omitted.reason) for omitted in found.omitted[2:]]
    assert sorted(left) == [("steps/a/huge", "too_large"), ("steps/a/large", "too_large")]
    assert (found.files, found.bytes) == (2, 7)
    assert host.asked == [("steps/a/log", 0, 5), ("steps/a/outcome", 0, 2)]
    assert sorted(path.name for path in (tmp_path / "p/steps/a").iterdir()) == ["log", "outcome"]


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (7800, "7.8 kB"), (62_900_000, "62.9 MB"),
        (999_999_999, "1000.0 MB"), (999_999, "1000.0 kB"), (1_000_000, "1.0 MB"), (2_500_000_000, "2.5 GB"),
        (1_000_000_000, "1.0 GB"),
    ],
)  # fmt: skip
def test_bytes_as_people_read_them(size: int, shown: str) -> None:
    assert amount(size) == shown


RUN = "20261121t110151z-small-box-6eef63"


class WatchedHost:
    """A step ``a`` has written 5 bytes, then 3 more; a step ``b`` has written 2, and the run is over."""

    def __init__(self) -> None:
        self.asked: list[wire.WatchRequest] = []
        running, ended = (wire.RunSummary(RUN, "small", status, 0.0) for status in ("running", "passed"))
        self._answers = [
            (wire.WatchReply([wire.Event(1, 0.0, "run_started")], 10, running), b""),
            (wire.WatchReply([], 10, running, log_step="a", log_offset=0, log_size=5), b"12345"),
            (wire.WatchReply([], 10, running, log_step="a", log_offset=5, log_size=8), b"678"),
            (wire.WatchReply([], 30, ended, log_step="b", log_offset=0, log_size=2), b"ab"),
        ]

    def watch(self, request: wire.WatchRequest) -> tuple[wire.WatchReply, bytes]:
        self.asked.append(replace(request))
        return self._answers[len(self.asked) - 1]

    def call(self, ask: Callable[[Any], Any]) -> Any:
        return ask(self)


def test_what_was_told_is_not_asked_for_again() -> None:
    """Else a host answers each poll at once, as long as the step has any log, and both of them do nothing else."""
    host, told = WatchedHost(), []
    events: list[wire.Event] = []
    observer = SimpleNamespace(event=events.append, progress=lambda _, tail: told.append(tail))
    ended = follow(host, RUN, SimpleNamespace(observer=observer))  # type: ignore[arg-type]
    assert ended is not None
    assert ended.status == "passed"
    assert told == [b"", b"12345", b"678", b"ab"]
    assert [event.type for event in events] == ["run_started"]
    asked = [(r.events_offset, r.log_offset, r.log_offset_step) for r in host.asked]
    assert asked == [(0, 0, None), (10, 0, None), (10, 5, "a"), (10, 8, "a")]
    assert all(r.wait_s >= 1 for r in host.asked)


def host_with(*runs: tuple[str, str], free: int = LOW_BYTES) -> tuple[Any, Any, list[str], list[str]]:
    """A connection to a host with these runs and their status, the services, what is deleted there, what is noted."""
    deleted: list[str] = []
    notes: list[str] = []
    ended = [wire.RunSummary(run_id, "j", status, 0.0) for run_id, status in runs]  # type: ignore[arg-type]
    session = SimpleNamespace(
        status=lambda _: ended, forget=deleted.append, hello=SimpleNamespace(free_bytes=free)
    )  # fmt: skip
    target = SimpleNamespace(name="l4")
    link = SimpleNamespace(session=lambda: session, call=lambda ask: ask(session), target=target)
    partly = {"r1": [wire.Omitted("core", "too_large")]}
    store = SimpleNamespace(
        is_complete=lambda run_id: run_id != "r2", get=lambda run_id: SimpleNamespace(omitted=partly.get(run_id, []))
    )
    return link, SimpleNamespace(store=store, observer=SimpleNamespace(note=notes.append)), deleted, notes


def test_old_runs_that_are_whole_here_are_deleted_there() -> None:
    ended = [(f"r{n}", "passed") for n in range(6)]
    link, services, deleted, _ = host_with(*ended, ("r9", "running"))
    assert delete_old_runs(services, link, 2) == 2
    assert deleted == ["r3", "r0"]


def test_a_run_that_the_host_needs_yet_keeps_no_other_one_there() -> None:
    link, services, deleted, notes = host_with(*((f"r{n}", "passed") for n in range(4, 7)))
    session = link.session()

    def forget(run_id: str) -> None:
        if run_id == "r5":
            raise HostFault("run r7 works in its folder", fault="conflict")
        deleted.append(run_id)

    session.forget = forget
    assert (delete_old_runs(services, link, 0), deleted, notes) == (2, ["r6", "r4"], [])


def test_a_run_that_cannot_be_read_here_keeps_no_other_one_there() -> None:
    """Its record is damaged; or it is deleted here at this moment. The machine is stopped after this."""
    link, services, deleted, notes = host_with(*((f"r{n}", "passed") for n in range(4, 7)))

    def get(run_id: str) -> SimpleNamespace:
        if run_id == "r5":
            raise RunNotFound("this workspace has no run r5")
        return SimpleNamespace(omitted=[])

    services.store.get = get
    assert (delete_old_runs(services, link, 0), deleted, notes) == (2, ["r6", "r4"], [])


def test_the_newest_ten_stay_on_a_host_with_room() -> None:
    link, services, deleted, _ = host_with(*((f"r{n:02}", "failed") for n in range(KEPT_ON_HOST + 1)))
    assert (delete_old_runs(services, link), deleted, KEPT_ON_HOST) == (1, ["r00"], 10)
    assert LOW_BYTES == 2 << 30


@pytest.mark.parametrize(
    ("free", "runs", "deleted", "noted"),
    [
        (LOW_BYTES, ["r0", "r3"], [], []),
        (LOW_BYTES - 1, ["r0", "r3"], ["r3", "r0"], ["the disk of l4 is nearly full: fcctl deleted 2 old runs there"]),
        (LOW_BYTES - 1, ["r1", "r2"], [], []),  # one is not whole here, one not here
    ],
)
def test_on_a_host_whose_disk_is_nearly_full_no_old_run_stays(
    free: int, runs: list[str], deleted: list[str], noted: list[str]
) -> None:
    link, services, gone, notes = host_with(*((run_id, "passed") for run_id in runs), free=free)
    make_room(services, link)
    assert (gone, notes) == (deleted, noted)


@pytest.mark.parametrize("error", [HostFault("it is busy", fault="bad_reply"), FcctlError("it is busy")])
def test_what_cannot_be_deleted_there_is_only_noted(error: FcctlError) -> None:
    link, services, _, notes = host_with()

    def broken(_: object) -> None:
        raise error

    link.session().status = broken
    assert delete_old_runs(services, link) == 0
    assert notes == ["could not delete old runs on l4: it is busy"]


@pytest.mark.parametrize("fault", ["not_found", "internal"])
def test_a_run_that_the_host_does_not_know_is_not_followed(fault: str) -> None:
    def watch(_: object) -> None:
        raise HostFault("no", fault=fault)

    link: Any = SimpleNamespace(call=watch)
    if fault == "not_found":
        assert follow(link, "r", SimpleNamespace()) is None  # type: ignore[arg-type]
    else:
        with pytest.raises(HostFault):
            follow(link, "r", SimpleNamespace())  # type: ignore[arg-type]
