"""A link that heals: the same calls on a new session when the old one broke."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from orchestrator.base.errors import FcctlError, HostUnreachable, LinkLost

if TYPE_CHECKING:
    from fcctl_remote import wire
    from orchestrator.base.clock import Clock
    from orchestrator.base.observer import Observer
    from orchestrator.machines.host_api import HostConnector, HostSession
    from orchestrator.machines.targets import Target

R = TypeVar("R")

#: Waits between attempts, in seconds; the last one repeats.
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)

#: A sleeping laptop that wakes has, for a while, no name service, no route and no open port. A wrong key or login
#: does not heal by waiting.
_PASSING = frozenset({"name", "port", "timeout", "proxy"})


class Link:
    """Calls on one target, repeated over new sessions until :attr:`Target.reconnect_s` have passed without success.

    Every call of ``HostSession`` may be repeated: they are idempotent by run id, content or
    offset. The first connection is not retried: a host that cannot be reached at the start is an error at once.
    """

    def __init__(self, hosts: HostConnector, target: Target, clock: Clock, observer: Observer) -> None:
        self.target = target
        #: Called after each failed attempt to reconnect: they raise if there is no use in trying again.
        self.doubts: list[Callable[[], None]] = []
        self._host_ahead_s = 0.0
        self._hosts = hosts
        self._clock = clock
        self._observer = observer
        self._session: HostSession | None = None
        self._opening: Future[HostSession] | None = None

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_soon(self) -> None:
        """Begin to connect in the background, while the caller loads the job and reads the source."""
        if self._session is None and self._opening is None:
            self._opening = Future()
            # A daemon: a connection that hangs must not keep a finished command from exiting.
            threading.Thread(target=self._open, args=(self._opening,), name="fcctl-connect", daemon=True).start()

    def _open(self, opening: Future[HostSession]) -> None:
        try:
            opening.set_result(self._connect())
        except BaseException as e:  # noqa: BLE001 - handed to whoever asks for the session
            opening.set_exception(e)

    def _connect(self) -> HostSession:
        session = self._hosts.connect(self.target)
        self._host_ahead_s = session.hello.time - self._clock.now()
        if session.hello.mended:
            self._observer.note(f"{self.target.name}: {mended(session.hello)}")
        return session

    def opened(self) -> bool | None:
        """Whether there is a session, or (None) it is still being opened; False if that failed."""
        if self._session is not None:
            return True
        if self._opening is None:
            return False
        if not self._opening.done():
            return None
        return self._opening.exception() is None

    def session(self) -> HostSession:
        """The live session, connecting first if there is none."""
        if self._session is None:
            opening, self._opening = self._opening, None
            self._session = opening.result() if opening else self._connect()
        return self._session

    def host_now(self) -> float:
        """The time on the host's clock, epoch seconds."""
        self.session()
        return self._clock.now() + self._host_ahead_s

    def call(self, action: Callable[[HostSession], R]) -> R:
        """``action`` on the live session; on a broken link, on the next one.

        Raises:
            LinkLost: the host stayed away for ``reconnect_s``.
        """
        try:
            return action(self.session())
        except LinkLost as lost:
            return self._again(action, lost)

    def _again(self, action: Callable[[HostSession], R], lost: FcctlError) -> R:
        deadline = self._clock.monotonic() + self.target.reconnect_s
        attempt = 0
        self._observer.note(f"link to {self.target.name} lost ({lost.cause or lost.message}); reconnecting")
        while True:
            self.close()
            wait = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
            if self._clock.monotonic() + wait > deadline:
                raise LinkLost(
                    f"no link to {self.target.name} for {self.target.reconnect_s:.0f} s",
                    cause=lost.cause or lost.message,
                    hint=lost.hint,
                ) from lost
            self._clock.sleep(wait)
            attempt += 1
            try:
                return action(self.session())
            except LinkLost as e:
                self._ask_doubt()
                lost = e
            except HostUnreachable as e:
                self._ask_doubt()
                if e.reason not in _PASSING and not (e.reason == "login" and self.doubts):
                    raise
                lost = e

    def _ask_doubt(self) -> None:
        """A machine that may be off is no longer tried; one that boots refuses logins for a while."""
        for doubt in self.doubts:
            doubt()

    def close(self) -> None:
        """End the session; the next call opens another."""
        session, self._session = self._session, None
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.add_done_callback(_close_late)
        if session is not None:
            session.close()


def mended(hello: wire.Hello) -> str:
    """What was found damaged of the host program, and what became of that."""
    more = len(hello.mended) - 3
    files = ", ".join(hello.mended[:3])[:500] + (f" and {more} more" if more > 0 else "")
    return f"the host program was damaged on that machine's disk ({files}), and was installed again"


def _close_late(opening: Future[HostSession]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
