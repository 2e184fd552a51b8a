"""Signals that end a command as :class:`KeyboardInterrupt`, wherever it is at that moment."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import cast

SIGINT_EXIT = 130
#: How long a handler waits before it looks again, seconds, and how often it does at most.
PAUSE_S, PATIENCE = 0.02, 250
#: The files of code that an exception of ours does not get through as it is. In the midst of an import Python may lose
#: it (in the callback that frees a module's lock) or make a RuntimeError of it (up to 3.11, out of ``__set_name__``);
#: Pydantic's compiled part makes an error of a schema or of a value of it.
_IMPORTER, _MODELS = "<frozen importlib._bootstrap>", f"{os.sep}pydantic{os.sep}"
#: Paramiko takes a lock before the ``try`` that releases it: an exception between the two leaves it taken, and closing
#: the connection waits for ever. Where Paramiko waits, another file's code runs, so such a wait ends at once.
_CONNECTION = f"{os.sep}paramiko{os.sep}"


class Interrupt:
    """A signal handler that raises :class:`KeyboardInterrupt`, once what would not let it through is over."""

    def __init__(self, on_signal: Callable[[int], None] = lambda _number: None) -> None:
        self._told, self._left = on_signal, PATIENCE

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._left and _in_the_way(frame):
            self._left -= 1
            again(number)
            return
        self._left = PATIENCE
        self._told(number)
        raise KeyboardInterrupt


def install() -> None:
    """From here on Ctrl-C is not lost, not even in a callback whose exceptions Python only prints. A SIGINT that is
    switched off, as for a shell's background jobs, stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, Interrupt())
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            again(signal.SIGINT)
        else:
            before(unraisable)

    sys.unraisablehook = hook


def ends() -> None:
    """From here on there is nothing left that Ctrl-C could end."""
    if isinstance(signal.getsignal(signal.SIGINT), Interrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def behind(error: BaseException) -> bool:
    """Whether ``error`` is what became of a KeyboardInterrupt, as where what it left half done cannot be closed."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def again(number: int) -> None:
    """Send the main thread ``number`` in a moment, which also wakes it where it waits. Safe in a handler: takes none of
    the locks of :mod:`threading`, which the main thread may hold."""
    _thread.start_new_thread(_later, (number,))


def _later(number: int) -> None:
    time.sleep(PAUSE_S)
    signal.pthread_kill(cast("int", threading.main_thread().ident), number)


def _in_the_way(frame: FrameType | None) -> bool:
    if frame is not None and _CONNECTION in frame.f_code.co_filename:
        return True
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTER or _MODELS in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
