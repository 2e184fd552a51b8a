"""The threads of one fcctl in virtual time: one goes on at a time, and what is due first comes first.

Each is a real thread, and one of them alone has the baton. It is handed on where a thread waits, for time or for
another thread; which of several that are due at one moment goes on is drawn. So an episode replays exactly.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.simulation.world import Actor, Killed, Violation, World


@dataclass(eq=False)
class _One:
    name: str
    wake: float
    turn: float = 0.0
    #: What it waits for, beside the time.
    awaited: list[_One] | None = None
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class _Thread:
    def __init__(self, threads: Threads, act: Callable[[], None], name: str) -> None:
        self._threads, self._act, self._name = threads, act, name
        self._ended: bool | None = None
        self._joining: list[_One] = []

    def start(self) -> None:
        self._ended = False
        self._threads.begin(self._name, self._live)

    def _live(self) -> None:
        try:
            self._act()
        finally:
            self._ended = True
            self._threads.wake(self._joining)

    def join(self, timeout: float | None = None) -> None:
        if self._ended is False:
            self._threads.wait(timeout, self._joining)

    def is_alive(self) -> bool:
        return self._ended is False


class _Event:
    def __init__(self, threads: Threads) -> None:
        self._threads, self._set = threads, False
        self._waiting: list[_One] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._threads.wake(self._waiting)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._threads.wait(timeout, self._waiting)
        return self._set


class Threads:
    """Stands for the module ``threading``, and hangs itself into a world's ``advance``.

    Args:
        strikes: what is raised in the main thread, by how often that was about to wait before.
    """

    def __init__(self, world: World, actor: Actor, rng: random.Random, strikes: dict[int, type[BaseException]]) -> None:
        self._world, self._actor, self._rng, self._strikes = world, actor, rng, strikes
        self._alone = world.advance
        self._main = self._current = _One("main", world.now)
        self._living = [self._main]
        self._real: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._struck: type[BaseException] | None = None
        self._waits = 0
        #: When the main thread was struck last, epoch seconds.
        self.struck_at: float | None = None
        self._over = False

    def Thread(self, *, target: Callable[..., None], args: tuple[Any, ...] = (), name: str, daemon: bool) -> _Thread:
        assert daemon, "a thread that hangs must not keep a command from exiting"
        return _Thread(self, lambda: target(*args), name)

    def Event(self) -> _Event:
        return _Event(self)

    @contextmanager
    def in_place_of(self, *modules: Any) -> Iterator[None]:
        before = [module.threading for module in modules]
        for module in modules:
            module.threading = self
        self._world.advance = lambda seconds: self.wait(seconds, None)  # type: ignore[method-assign]
        try:
            yield
        finally:
            self._close()
            self._world.advance = self._alone  # type: ignore[method-assign]
            for module, own in zip(modules, before, strict=True):
                module.threading = own
        if self._error is not None:
            raise self._error

    def _close(self) -> None:
        """A process that exits takes its threads with it."""
        self._over = True
        for one in self._living:
            if one is not self._main:
                one.baton.release()
        for thread in self._real:
            thread.join()

    # ------------------------------------------------------------------------------------------------- one at a time
    def wait(self, seconds: float | None, awaited: list[_One] | None) -> None:
        """``seconds`` long, or until one wakes those in ``awaited``."""
        me = self._current
        self._check()
        if me is self._main:
            self._waits += 1
            if self._waits in self._strikes:
                self.strike(self._strikes[self._waits])
                self._check()
        me.wake = inf if seconds is None else self._world.now + max(0.0, seconds)
        me.turn, me.awaited = self._rng.random(), awaited
        if awaited is not None:
            awaited.append(me)
        try:
            self._let_others_go_on(me)
        finally:
            if awaited is not None and me in awaited:
                awaited.remove(me)

    def strike(self, error: type[BaseException]) -> None:
        """Raise ``error`` in the main thread, in which signals are."""
        self._struck, self._main.wake = error, self._world.now
        self.struck_at = self._world.now

    def wake(self, awaited: list[_One]) -> None:
        for one in awaited:
            one.wake, one.turn = min(one.wake, self._world.now), self._rng.random()
        awaited.clear()

    def _let_others_go_on(self, me: _One) -> None:
        following = self._due()
        if following is not me:
            following.baton.release()
            me.baton.acquire()
            self._goes_on(me)
        self._check()

    def _goes_on(self, one: _One) -> None:
        self._current, self._actor.name = one, one.name.removeprefix("fcctl-")

    def _due(self) -> _One:
        """Who goes on, at whose time it is then."""
        while True:
            following = min(self._living, key=lambda one: (one.wake, one.turn))
            due = self._world.next_timer()
            if due is None or due > following.wake:
                break
            self._happen(due)
        if following.wake == inf:
            self._error = self._error or Violation(f"nobody goes on: {[one.name for one in self._living]}")
            return self._main
        self._happen(following.wake)
        return following

    def _happen(self, until: float) -> None:
        """What the world does by itself until then. What must not happen is for the main thread to tell, and not for
        whoever just waits."""
        try:
            self._alone(max(0.0, until - self._world.now))
        except Violation as error:
            self._error = self._error or error
            self._main.wake = self._world.now

    def _check(self) -> None:
        if self._over or not self._actor.alive:
            raise Killed
        if self._error is not None and self._current is self._main:
            error, self._error = self._error, None
            raise error
        if self._struck is not None and self._current is self._main:
            struck, self._struck = self._struck, None
            if struck is Killed:
                self._actor.alive = False
            raise struck

    def begin(self, name: str, act: Callable[[], None]) -> None:
        one = _One(name, self._world.now, self._rng.random())
        self._living.append(one)
        thread = threading.Thread(target=self._live, args=(one, act), name=name, daemon=True)
        self._real.append(thread)
        thread.start()

    def _live(self, one: _One, act: Callable[[], None]) -> None:
        one.baton.acquire()
        if self._over:
            return
        self._goes_on(one)
        try:
            if self._actor.alive:
                act()
        except Killed:
            pass
        except BaseException as error:  # as a thread's, it would be a traceback on the terminal
            self._error = self._error or Violation(f"{one.name} ended with {type(error).__name__}: {error}")
            self._main.wake = self._world.now
        if not self._over:
            self._living.remove(one)
            self._due().baton.release()
