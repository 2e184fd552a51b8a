"""Power cuts while records of money and time are written: usage, firings, sessions; and while results are exported."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import zstandard
from orchestrator.money.usage_file import SightingFile

from orchestrator.base.clock import SystemClock
from orchestrator.cli.results import export
from orchestrator.leases.session_files import SessionFiles
from orchestrator.leases.session_rules import SessionRecord
from orchestrator.money.billable import Holding
from orchestrator.money.ledger import Sighting
from orchestrator.schedules.due import Firing
from orchestrator.schedules.firings import FiringRecords
from tests.power_cut.base_subjects import LONG
from tests.power_cut.play import Done, Subject
from tests.support.stores import NOVEMBER, make_id

SESSION, VISITOR = make_id("session", at=NOVEMBER, token="5e5510"), make_id(at=NOVEMBER, token="aaaaaa")


def sighting(started: float, user: str = "") -> Sighting:
    return Sighting(
        project="p", zone="z", name="vm", instance_id="1", target="l4", usd_per_hour=1.0, started=started,
        seen=started + 1, user=user,
    )  # fmt: skip


class Usage(Subject):
    """What the cloud said of machines and disks: nothing that was noted is lost, nothing torn is read."""

    seen = (sighting(1.0), sighting(2.0, LONG.decode()), sighting(3.0))
    disk = Holding(project="p", kind="disk", place="z", name="vm", seen=4.0)

    def act(self, root: Path, done: Done) -> None:
        file = SightingFile(root / "results")
        for one in self.seen:
            file.note(one)
            done(str(one.started))
        file.note_holding(self.disk)
        done("disk")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        file = SightingFile(root / "results")
        found = file.all()
        assert found == list(self.seen[: len(found)])
        assert len(found) >= min(len(done), 3)
        assert file.holdings() in ([[self.disk]] if "disk" in done else [[], [self.disk]])
        file.note(sighting(9.0))
        assert file.all() == [*found, sighting(9.0)]


class Firings(Subject):
    """A schedule's record: what was started stays started."""

    fired = (
        Firing(outcome="watching", due=1.0, at=1.0),
        Firing(outcome="started", due=2.0, at=2.0, reason=LONG.decode()),
        Firing(outcome="finished", due=2.0, at=3.0, usd=0.5),
    )

    def act(self, root: Path, done: Done) -> None:
        book = FiringRecords(root / "results")
        for firing in self.fired:
            book.append("nightly", (firing,))
            done(firing.outcome)

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        book = FiringRecords(root / "results")
        found = book.read("nightly")
        assert found == list(self.fired[: len(found)])
        assert len(found) >= len(done)
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
        assert "ended" not in done or here.ended() == [self._record()]
        if SESSION not in here.open():
            assert here.ended() == [self._record()] or not done
            assert there.abroad() == []
            return
        assert "ended" not in done
        assert here.plan_of(SESSION) in ([{"target": "l4"}] if done else [None, {"target": "l4"}])
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
        assert here.ended() == [self._record()]


class Export(Subject):
    """``results export -o``: who has the file may delete the runs."""

    content = zstandard.compress(LONG)

    def prepare(self, root: Path) -> None:
        (root / "runs.tar.zst").write_bytes(b"of last week")

    def act(self, root: Path, done: Done) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export, "_write", lambda _shown, _form, stream: stream.write(self.content))
            export._write_file((), "tar.zst", str(root / "runs.tar.zst"))
        done("exported")

    def judge(self, root: Path, done: tuple[str, ...]) -> None:
        found = (root / "runs.tar.zst").read_bytes()
        assert found in ([self.content] if done else [self.content, b"of last week"])
        if found == self.content:
            assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(found)).read() == LONG


RECORDS = (Usage, Firings, Session, Export)
