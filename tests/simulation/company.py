"""Several processes in one virtual time: one goes on at a time, and whoever waits lets those go on that are due before.

Each is a thread, and one of them alone has the baton. So what happens when is a function of the waits alone, and an
episode with two fcctls in it replays as exactly as one with one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from tests.simulation.world import Killed, World


@dataclass(eq=False)
class _Member:
    wake: float
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class Company:
    """Hangs itself into a world's ``advance``, for as long as there is more than one process in it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._alone = world.advance
        self._members: list[_Member] = []
        self._threads: list[tuple[_Member, threading.Thread]] = []
        self._current: _Member | None = None
        self._error: BaseException | None = None
        self._over = False

    def join(self, act: Callable[[], None]) -> None:
        """``act`` beside whoever calls this, from now on."""
        if self._current is None:
            self._current = _Member(self._world.now)
            self._members.append(self._current)
            self._world.advance = self._advance  # type: ignore[method-assign]
        member = _Member(self._world.now)
        self._members.append(member)
        thread = threading.Thread(target=self._live, args=(member, act), name="fcctl-beside", daemon=True)
        self._threads.append((member, thread))
        thread.start()

    def finish(self) -> None:
        """Let all others come to their end; raises what one of them has met."""
        if self._current is not None:
            self._wait_until(inf)
        self.close()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """End whoever is left, and be alone again."""
        self._over = True
        for member, thread in self._threads:
            if member in self._members:
                member.baton.release()
            thread.join()
        self._members, self._threads, self._current, self._over = [], [], None, False
        self._world.advance = self._alone  # type: ignore[method-assign]

    # ------------------------------------------------------------------------------------------------- one at a time
    def _live(self, member: _Member, act: Callable[[], None]) -> None:
        member.baton.acquire()
        self._current = member
        try:
            if not self._over:
                act()
        except Killed:
            pass
        except BaseException as error:
            self._error = self._error or error
        if not self._over:
            self._members.remove(member)
            self._hand_on()

    def _advance(self, seconds: float) -> None:
        if self._over:
            raise Killed
        until = self._world.now + seconds
        self._wait_until(until)
        self._alone(max(0.0, until - self._world.now))

    def _wait_until(self, until: float) -> None:
        """Until then the others go on, as far as they are due before."""
        me = self._current
        assert me is not None
        me.wake = until
        while len(self._members) > 1 and min(self._members, key=lambda m: m.wake) is not me:
            self._hand_on()
            me.baton.acquire()
            self._current = me
            if self._over:
                raise Killed

    def _hand_on(self) -> None:
        """To the one that is due first, at its time; who only waits for the others has none."""
        following = min(self._members, key=lambda m: m.wake)
        try:
            if following.wake < inf:
                self._alone(max(0.0, following.wake - self._world.now))
        except BaseException as error:
            self._error = self._error or error
        following.baton.release()
