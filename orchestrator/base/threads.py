"""Work in daemon threads: one that hangs does not keep a finished command from exiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")


def in_thread(action: Callable[[], R], name: str) -> Future[R]:
    """Starts ``action`` in a daemon thread."""
    answer: Future[R] = Future()

    def run() -> None:
        try:
            answer.set_result(action())
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


def when_late(answer: Future[R], dispose: Callable[[R], object]) -> None:
    """Calls ``dispose`` with the result of ``answer`` once there is one, for example to close a connection that was
    made after its caller had given up. Not called if ``answer`` failed."""

    def done(future: Future[R]) -> None:
        if future.exception() is None:
            dispose(future.result())

    answer.add_done_callback(done)
