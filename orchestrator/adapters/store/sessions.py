"""Sessions on disk: ``results/sessions/<session-id>/{session.json, journal.jsonl, lock, end.json}``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.adapters.store.durable import disk_errors, sync_folder, write_atomic
from orchestrator.adapters.store.journal import FileJournal
from orchestrator.adapters.store.lock import OwnerLock
from orchestrator.domain import run_id as ids

if TYPE_CHECKING:
    from orchestrator.domain.records import JournalEntry
    from orchestrator.domain.session import SessionRecord
    from orchestrator.ports import Clock

PLAN, JOURNAL, LOCK, END = "session.json", "journal.jsonl", "lock", "end.json"


class FileHeldSession:
    """See :class:`orchestrator.ports.HeldSession`."""

    def __init__(self, folder: Path, lock: OwnerLock, clock: Clock) -> None:
        self.session_id = folder.name
        self._folder, self._lock = folder, lock
        self.journal = FileJournal(folder / JOURNAL, clock)

    def end(self, record: SessionRecord) -> None:
        with disk_errors("write how the session ended", self._folder):
            write_atomic(self._folder, END, json.dumps(record.model_dump(mode="json")).encode())

    def release(self) -> None:
        self.journal.close()
        self._lock.release()


class SessionFiles:
    """See :class:`orchestrator.ports.SessionBook`."""

    def __init__(self, results_dir: Path, clock: Clock) -> None:
        self._folder, self._clock = results_dir / "sessions", clock

    @contextmanager
    def starting(self) -> Iterator[bool]:
        with disk_errors("lock the sessions", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = OwnerLock.take(self._folder / "starting.lock", self._clock.now())
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def begin(self, session_id: str, plan: dict[str, Any]) -> FileHeldSession:
        folder = self._folder / session_id
        with disk_errors("begin a session", self._folder):
            folder.mkdir(parents=True)
            lock = OwnerLock.take(folder / LOCK, self._clock.now())
            if lock is None:
                raise FileExistsError(17, "somebody else has it", str(folder / LOCK))
            write_atomic(folder, PLAN, json.dumps(plan).encode())
            sync_folder(self._folder)
        return FileHeldSession(folder, lock, self._clock)

    def open(self) -> list[str]:
        return [name for name in self._ids() if not (self._folder / name / END).exists()]

    def claim(self, session_id: str) -> FileHeldSession | None:
        folder = self._folder / session_id
        with disk_errors("take the session over", folder):
            lock = OwnerLock.take(folder / LOCK, self._clock.now())
        return None if lock is None else FileHeldSession(folder, lock, self._clock)

    def plan_of(self, session_id: str) -> dict[str, Any] | None:
        return _object(self._folder / session_id / PLAN)

    def journal_of(self, session_id: str) -> list[JournalEntry]:
        return FileJournal(self._folder / session_id / JOURNAL, self._clock).entries()

    def ended(self) -> list[SessionRecord]:
        from pydantic import ValidationError

        from orchestrator.domain.session import SessionRecord

        found = []
        for name in self._ids():
            with suppress(ValidationError):
                if (raw := _object(self._folder / name / END)) is not None:
                    found.append(SessionRecord.model_validate(raw))
        return found

    def _ids(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if ids.is_valid(path.name))


def _object(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
