"""A machine that a search was on until it moved: what is left of it there is ended, so that nobody else leads it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from orchestrator.base.errors import FcctlError, MachineStopped, RunNotFound
from orchestrator.base.observer import Observer
from orchestrator.runs.reopen import resumed
from orchestrator.runs.services import Services
from orchestrator.tune.fleet.member import REACH_AGAIN_S, SILENT_NOTIFIER, MemberEvents

#: What its step has to end in order, seconds.
GRACE_S = 10.0
_log = logging.getLogger(__name__)


class PreviousLeader:
    """Ends one such run, in a thread of its own: at once if its machine is off, else as soon as that answers again.

    Args:
        make: what a workflow may touch, for this thread alone; with this observer.
        why: what is written down as the reason.
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
        self._thread = threading.Thread(target=self._live, name=f"fcctl-former-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """It is not waited for any more."""
        self._closed.set()

    def end(self) -> None:
        """Wait until it is ended, or one more attempt to reach its machine has failed: then say that."""
        self._closed.set()
        self._thread.join()
        self.tell()

    def tell(self) -> None:
        """Say that it is not ended, if it is not."""
        if not self._is_over:
            self._events.note(
                f"out of reach: what it has of the search may go on; end it with: fcctl cancel {self.run_id}"
            )

    def _live(self) -> None:
        try:
            while True:
                is_last = self._closed.is_set()
                self._is_over = self._is_ended()
                if self._is_over or is_last:
                    return
                self._closed.wait(REACH_AGAIN_S)
        except Exception as error:  # noqa: BLE001 - it must not end without a word
            _log.exception("the former run %s", self.run_id)
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
            pass  # it is home
        except FcctlError as error:
            _log.info("run %s is not ended yet: %s", self.run_id, error.message)
            return False
        return True
