"""Power cuts while records of money and time are written: usage, firings, sessions; and while results are exported."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import zstandard

from orchestrator.base.clock import SystemClock
from orchestrator.cli.verbs import results_files
from orchestrator.leases.session_files import SessionFiles
from orchestrator.leases.session_rules import SessionRecord, ended
from orchestrator.money import book as books
from orchestrator.money.billable import ResourceRecord
from orchestrator.money.ledger import RunUsage, UsageRecord
from orchestrator.results.records import CostRecord
from orchestrator.schedules.due import Firing
from orchestrator.schedules.fire import FiringRecords
from tests.power_cut.base_subjects import LONG
from tests.power_cut.play import Done, Subject, folder
from tests.support.spending import book_in, reservation
from tests.support.stores import NOVEMBER, make_id

SESSION, VISITOR = make_id("session", at=NOVEMBER, token="5e5510"), make_id(at=NOVEMBER, token="aaaaaa")


def sighting(started: float, user: str = "") -> UsageRecord:
    return UsageRecord(
        project="p", zone="z", name="vm", instance_id="1", target="l4", usd_per_hour=1.0, started=started,
        seen=started + 1, user=user,
    )  # fmt: skip


class Usage(Subject):
    """The book of spending: nothing that was noted or reserved is lost, nothing torn is read, a change is made as a
    whole or not at all, and a book that is written anew says the same."""

    states = 60
    seen = (sighting(1.0), sighting(2.0, LONG.decode()), sighting(3.0))
    disk = ResourceRecord(project="p", kind="disk", place="z", name="vm", seen=4.0)
    cost = RunUsage(run_id=VISITOR, job="j", target="l4", created="", cost=CostRecord(usd=1.0, billed_s=1.0))
    run, kept = reservation("run", owner_id=LONG.decode()), reservation("kept", owner="kept")
    #: What is reserved, and whether the run is booked, after each change from the promise "disk" on.
    stages = ((set(), False), ({"wake"}, False), ({"run"}, False), ({"kept"}, True), ({"kept"}, True))
    promises = ("1.0", "2.0", "3.0", "disk", "reserved", "replaced", "settled", "compacted")

    def act(self, root: Path, done: Done) -> None:
        book = book_in(root / "state")
        for one in self.seen:
            book.add_usage(one)
            done(str(one.started))
        book.add_resource(self.disk)
        done("disk")
        with book.changing() as change:
            change.reserve(reservation("wake"))
        done("reserved")
        with book.changing() as change:  # as a run that takes over what was reserved to wake its machine
            change.release(reservation("wake"))
            change.reserve(self.run)
        done("replaced")
        with book.changing() as change:  # as a run that is over, and leaves its machine on
            change.add("run", self.cost)
            change.reserve(self.kept)
            change.release(self.run)
        done("settled")
        with pytest.MonkeyPatch.context() as patch, book.changing() as change:
            patch.setattr(books, "COMPACT_BYTES", 1)
            for n in range(99):
                change.reserve(reservation(f"of no use {n}", owner_id=LONG.decode()[:200]))
                change.release(reservation(f"of no use {n}"))
        assert (root / "state" / books.NAME).stat().st_size < 10_000
        done("compacted")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        book = book_in(root / "state")
        found, open_, booked = book.usage(), set(book.state().open()), VISITOR in book.state().runs()
        assert found == list(self.seen[: len(found)])
        assert len(found) >= min(len(done), 3)
        assert book.resources() in ([[self.disk]] if "disk" in done else [[], [self.disk]])
        at = max(0, len(done) - 4)
        assert (open_, booked) in self.stages[at : at + 2]
        assert book.state().damaged == [], "what a power cut tore is nobody's damage"
        book.add_usage(sighting(9.0))
        with book.changing() as change:
            change.reserve(reservation("later"))
        for reader in (book, book_in(root / "state")):
            assert reader.usage() == [*found, sighting(9.0)]
            assert set(reader.state().open()) == {*open_, "later"}


class DamagedBook(Subject):
    """A damaged line of the book costs only itself, and what is put aside is there before the line is gone."""

    def _lines(self) -> list[bytes]:
        with folder() as made:
            book = book_in(made)
            for name in ("a", "b", "c"):
                with book.changing() as change:
                    change.reserve(reservation(name, owner_id=LONG.decode()[:600]))
            return (made / books.NAME).read_bytes().splitlines(keepends=True)

    def prepare(self, root: Path) -> None:
        first, second, third = self._lines()
        self.damaged = b"".join([first, b"x" + second[1:], third])
        (root / "state").mkdir()
        (root / "state" / books.NAME).write_bytes(self.damaged)

    def act(self, root: Path, done: Done) -> None:
        book = book_in(root / "state")
        assert book.set_damage_aside() is not None
        done("aside")
        with book.changing() as change:
            change.reserve(reservation("d"))
        done("reserved")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        book = book_in(root / "state")
        opened = list(book.state().open())
        assert opened in (["a", "c"], ["a", "c", "d"])
        assert "reserved" not in done or len(opened) == 3
        kept = [path.read_bytes() for path in (root / "state").glob("book.*") if path.name != books.LOCK]
        assert self.damaged in kept, "in the book, or beside it"
        assert not done or book.state().damaged == []
        book.set_damage_aside()
        assert (list(book.state().open()), book.state().damaged) == (opened, [])


class Firings(Subject):
    """A schedule's record: what was started stays started, and a refusal that is repeated is counted."""

    fired = (
        Firing(outcome="watching", due=1.0, at=1.0),
        Firing(outcome="started", due=2.0, at=2.0, reason=LONG.decode()),
        Firing(outcome="finished", due=2.0, at=3.0, usd=0.5),
        Firing(outcome="refused", due=4.0, at=4.0, reason="no money"),
        Firing(outcome="refused", due=5.0, at=5.0, reason="no money"),
    )

    def _records(self) -> list[list[Firing]]:
        """After each of them."""
        appended = [list(self.fired[:count]) for count in range(5)]
        return [*appended, [*self.fired[:3], self.fired[4].model_copy(update={"count": 2})]]

    def act(self, root: Path, done: Done) -> None:
        book = FiringRecords(root / "results")
        for number, firing in enumerate(self.fired):
            book.append("nightly", (firing,))
            done(f"{number}")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        book = FiringRecords(root / "results")
        found = book.read("nightly")
        assert found in self._records()[len(done) : len(done) + 2]
        with book.deciding() as alone, book.firing("nightly") as free:
            assert alone
            assert free
        book.append("nightly", (Firing(outcome="missed", due=9.0, at=9.0),))
        assert [firing.outcome for firing in book.read("nightly")] == [*(f.outcome for f in found), "missed"]


class Session(Subject):
    """A session: from its beginning it is known here and to the user's other workspaces, until it is over."""

    def _books(self, root: Path) -> tuple[SessionFiles, SessionFiles]:
        return (
            SessionFiles(root / "here" / "results", SystemClock(), lambda: root / "user" / "sessions"),
            SessionFiles(root / "there" / "results", SystemClock(), lambda: root / "user" / "sessions"),
        )

    def _record(self) -> SessionRecord:
        return SessionRecord(
            session_id=SESSION, target="l4", how="stopped", reason="asked", created=1.0, ended=2.0, usd=0.5
        )  # fmt: skip

    def act(self, root: Path, done: Done) -> None:
        here, _ = self._books(root)
        held = here.begin(SESSION, {"target": "l4"})
        done("begun")
        held.journal.append("acquire")
        done("acquire")
        here.visited(SESSION, VISITOR)
        done("visited")
        held.end(self._record())
        done("ended")
        held.release()

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        here, there = self._books(root)
        assert "ended" not in done or list(ended(here)) == [self._record()]
        if SESSION not in here.open():
            assert list(ended(here)) == [self._record()] or not done
            assert there.abroad() == []
            return
        assert "ended" not in done
        assert here.plan_of(SESSION) == {"target": "l4"}
        if done:
            assert [name for _, name in there.abroad()] in ([[SESSION]] if "visited" not in done else [[SESSION], []])
        assert [entry.kind for entry in here.journal_of(SESSION)] in (
            [["acquire"]] if len(done) > 1 else [[], ["acquire"]]
        )
        assert here.visitors(SESSION) in ([[VISITOR]] if "visited" in done else [[], [VISITOR]])
        held = here.claim(SESSION)
        assert held is not None
        held.end(self._record())
        held.release()
        assert list(ended(here)) == [self._record()]


class Export(Subject):
    """``results export -o``: who has the file may delete the runs."""

    content = zstandard.compress(LONG)

    def prepare(self, root: Path) -> None:
        (root / "runs.tar.zst").write_bytes(b"of last week")

    def act(self, root: Path, done: Done) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(results_files, "_write", lambda _shown, _form, stream: stream.write(self.content))
            with results_files.written(root / "runs.tar.zst") as stream:
                results_files._write((), "tar.zst", stream)
        done("exported")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        found = (root / "runs.tar.zst").read_bytes()
        assert found in ([self.content] if done else [self.content, b"of last week"])
        if found == self.content:
            assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(found)).read() == LONG


RECORDS = (Usage, DamagedBook, Firings, Session, Export)
