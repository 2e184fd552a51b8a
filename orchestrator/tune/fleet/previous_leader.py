"""The machine that led a search before: its run is ended, and its journal continues on the next leader."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.base.errors import FcctlError, MachineStopped, RunNotFound
from orchestrator.base.observer import Observer
from orchestrator.runs.reopen import resumed
from orchestrator.runs.services import Services
from orchestrator.tune.fleet.member import REACH_AGAIN_S, SILENT_NOTIFIER
from orchestrator.tune.fleet.observers import MemberEvents
from orchestrator.tune.fleet.rules import JOURNAL, MAX_JOURNAL_BYTES

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

#: Seconds that its step has to end in order.
GRACE_S = 10.0
_log = logging.getLogger(__name__)


class PreviousLeader:
    """Ends the run ``run_id`` in a thread: at once if its machine is off, else as soon as that answers.

    Args:
        make: services for this thread alone, with this observer.
        why: the reason that the run's record gets.
    """

    def __init__(
        self, make: Callable[[Observer], Services], observer: Observer, run_id: str, name: str, why: str
    ) -> None:
        self.run_id = run_id
        self._events = MemberEvents(name, observer)
        self._services = replace(make(self._events), notifier=SILENT_NOTIFIER)
        self._why = why
        self._closed = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._live, name=f"fcctl-previous-leader-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Try once more, then end the thread."""
        self._closed.set()

    def end(self) -> None:
        """Wait until the run is ended, or one more attempt to reach its machine has failed, which is printed."""
        self._closed.set()
        self._thread.join()
        self.tell()

    def tell(self) -> None:
        """Print that the run is not ended, if it is not."""
        if not self._is_over:
            self._events.note(f"no connection; its run may still be active; cancel it: fcctl cancel {self.run_id}")

    def _live(self) -> None:
        try:
            while True:
                is_last = self._closed.is_set()
                self._is_over = self._is_ended()
                if self._is_over or is_last:
                    return
                self._closed.wait(REACH_AGAIN_S)
        except Exception as error:  # noqa: BLE001 - shown, and the search continues
            _log.exception("the earlier run %s", self.run_id)
            self._events.note(f"unexpected {type(error).__name__}: {error}")

    def _is_ended(self) -> bool:
        try:
            with resumed(self._services, self.run_id, patience_s=0.0) as driver:
                try:
                    if driver.finish(wait=False) is None:
                        driver.cancel(self._why, GRACE_S)
                        driver.finish()
                except MachineStopped:
                    driver.give_up(self._why, disk=False)
        except RunNotFound:
            pass  # it is complete
        except FcctlError as error:
            _log.info("run %s is not ended yet: %s", self.run_id, error.message)
            return False
        return True


def stored_journal(store: FileStore, run_id: str) -> bytes | None:
    """The journal that a complete run collected; None if there is none, or it is too large."""
    path = store.folder(run_id) / JOURNAL
    with contextlib.suppress(OSError):
        if 0 < path.stat().st_size <= MAX_JOURNAL_BYTES:
            return path.read_bytes()
    return None


def active_journal(store: FileStore, run_id: str) -> bytes | None:
    """The journal from which an active run was to continue, if this computer has it."""
    with contextlib.suppress(RunNotFound):
        active = store.claim(run_id)
        if active is not None:
            try:
                return active.intake().read(JOURNAL, MAX_JOURNAL_BYTES)
            finally:
                active.release()
    return None


def longest(*journals: bytes | None) -> bytes | None:
    """The longest of them: each is the beginning of those that are longer."""
    return max(journals, key=lambda journal: len(journal or b""))
