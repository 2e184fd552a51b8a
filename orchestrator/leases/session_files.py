"""Sessions on disk: ``results/sessions/<session-id>/{session.json, journal.jsonl, lock, end.json, visitors/}``. A
user's workspaces find each other's open sessions in a shared folder: one file per session with the path of its
workspace's ``results``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcctl_remote.base.files import sync_folder
from orchestrator.base import run_id as ids
from orchestrator.base.files import disk_errors, make_folders, user_folder, write_atomic
from orchestrator.base.journal import FileJournal, OwnerLock, read_object

if TYPE_CHECKING:
    from pydantic import BaseModel

    from orchestrator.base.clock import Clock
    from orchestrator.base.journal import JournalEntry

PLAN, JOURNAL, LOCK, END, VISITORS = "session.json", "journal.jsonl", "lock", "end.json", "visitors"


def shared_folder() -> Path:
    """``~/.local/state/fcctl/sessions`` or its like."""
    return user_folder("state") / "sessions"


class LockedSession:
    """A session that this process alone changes, until :meth:`release`."""

    def __init__(self, folder: Path, lock: OwnerLock, clock: Clock, shared: Path | None = None) -> None:
        self.session_id = folder.name
        self._folder, self._lock, self._shared = folder, lock, shared
        self.journal = FileJournal(folder / JOURNAL, clock)

    def end(self, record: BaseModel) -> None:
        """Writes how the session ended; it is over when this returns. May be repeated."""
        with disk_errors("write the session's end", self._folder):
            write_atomic(self._folder, END, json.dumps(record.model_dump(mode="json")).encode())
            if self._shared is not None:
                (self._shared / self.session_id).unlink(missing_ok=True)

    def add(self, files: Mapping[str, bytes]) -> None:
        """Writes files beside the session's own."""
        with disk_errors("write the session's report", self._folder):
            for name, content in files.items():
                write_atomic(self._folder, name, content)

    def release(self) -> None:
        self.journal.close()
        self._lock.release()


class SessionFiles:
    """The sessions of a workspace. ``shared``: the user's folder; None: other workspaces are unknown."""

    def __init__(self, results_dir: Path, clock: Clock, shared: Callable[[], Path] | None = None) -> None:
        self._folder, self._clock, self._where_shared = results_dir / "sessions", clock, shared

    @property
    def _shared(self) -> Path | None:
        return None if self._where_shared is None else self._where_shared()

    @property
    def place(self) -> str:
        """The workspace's folder."""
        return str(self._folder.parent.parent)

    @contextmanager
    def starting(self) -> Iterator[bool]:
        """Whether this process alone may start a session now."""
        with disk_errors("lock the sessions", self._folder):
            make_folders(self._folder)
            lock = OwnerLock.take(self._folder / "starting.lock", self._clock.now())
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def begin(self, session_id: str, plan: dict[str, Any]) -> LockedSession:
        """Under a name that is no session's until it is locked and planned: else another process could end it."""
        folder, new = self._folder / session_id, self._folder / f".{session_id}"
        with disk_errors("start a session", self._folder):
            make_folders(self._folder)
            new.mkdir()
            lock = OwnerLock.take(new / LOCK, self._clock.now())
            if lock is None:
                raise FileExistsError(17, "another process uses this session", str(new / LOCK))
            write_atomic(new, PLAN, json.dumps(plan).encode())
            new.rename(folder)
            sync_folder(self._folder)
            if (shared := self._shared) is not None:
                make_folders(shared, 0o700)
                write_atomic(shared, session_id, str(self._folder.parent.resolve()).encode())
        return LockedSession(folder, lock, self._clock, self._shared)

    def open(self) -> list[str]:
        """Ids of the open sessions, oldest first."""
        return [name for name in self._ids() if not (self._folder / name / END).exists()]

    def claim(self, session_id: str) -> LockedSession | None:
        """None while another live process has it."""
        folder = self._folder / session_id
        with disk_errors("lock the session", folder):
            lock = OwnerLock.within(folder / LOCK, 0.0, self._clock.now())
        return None if lock is None else LockedSession(folder, lock, self._clock, self._shared)

    def is_followed(self, session_id: str) -> bool:
        """Whether a live process has it."""
        path = self._folder / session_id / LOCK
        with disk_errors("read the lock of the session", path):
            return OwnerLock.is_taken(path)

    def plan_of(self, session_id: str) -> dict[str, Any] | None:
        return read_object(self._folder / session_id / PLAN)

    def journal_of(self, session_id: str) -> list[JournalEntry]:
        return FileJournal(self._folder / session_id / JOURNAL, self._clock).entries()

    def ends(self) -> Iterator[dict[str, Any]]:
        """The records of how closed sessions ended, oldest first."""
        ends = (read_object(self._folder / name / END) for name in self._ids())
        return (end for end in ends if end is not None)

    def abroad(self) -> list[tuple[SessionFiles, str]]:
        """The open sessions of the user's other workspaces."""
        shared = self._shared
        if shared is None or not shared.is_dir():
            return []
        own = self._folder.parent.resolve()
        found: list[tuple[SessionFiles, str]] = []
        for path in sorted(shared.iterdir()):
            if not ids.is_valid(path.name):
                continue
            try:
                results = Path(path.read_text(encoding="utf-8"))
                folder = results / "sessions" / path.name
                if results == own:
                    continue
                if not (folder / PLAN).is_file() or (folder / END).exists():
                    path.unlink(missing_ok=True)
                    continue
            except (OSError, ValueError):
                continue
            found.append((SessionFiles(results, self._clock, self._where_shared), path.name))
        return found

    def visited(self, session_id: str, run_id: str) -> None:
        """Records that a run of another workspace was in the session."""
        folder = self._folder / session_id / VISITORS
        with disk_errors("record a run of another workspace", folder):
            make_folders(folder)
            (folder / run_id).touch()
            sync_folder(folder)

    def visitors(self, session_id: str) -> list[str]:
        """The runs of other workspaces that were in the session."""
        folder = self._folder / session_id / VISITORS
        return sorted(path.name for path in folder.iterdir() if ids.is_valid(path.name)) if folder.is_dir() else []

    def _ids(self) -> list[str]:
        with disk_errors("read the sessions", self._folder):
            try:
                return sorted(path.name for path in self._folder.iterdir() if ids.is_valid(path.name))
            except FileNotFoundError:
                return []
