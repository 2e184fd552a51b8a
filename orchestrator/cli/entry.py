"""The console script ``fcctl``: :func:`orchestrator.cli.main.main`, started and left quickly."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import sys
import termios
from types import ModuleType
from typing import Any, NoReturn

from orchestrator.cli import interrupts

#: Importing makes many objects that live as long as the process. Looking through them for garbage again and again, as
#: Python's default of 700 has it, is a tenth of the time that a short command takes; no command makes as many as this
#: by importing.
GC_THRESHOLD = 100_000
#: How long a thread that is busy keeps others waiting, seconds. With Python's default of 5 ms, each answer of an SSH
#: handshake would wait that long for the thread that imports meanwhile.
SWITCH_INTERVAL_S = 0.0005
#: Where Pydantic looks for plugins of its own: in every package that is installed, which takes as long as importing
#: all of fcctl's command line. fcctl has none.
PLUGIN_LOADER = "pydantic.plugin._loader"


def entry() -> NoReturn:
    """Run the command line and leave with its exit code.

    The process ends without Python's own clearing up: that frees memory piece by piece and waits for the threads of
    connections that are closed already. By now streams are flushed, the log file is closed, and what had to be on disk
    was flushed when it was written.
    """
    _open_closed()
    _lossy_stderr()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sys.modules.setdefault(PLUGIN_LOADER, _NoPlugins(PLUGIN_LOADER))
    terminal = _terminal()
    interrupts.install()
    try:
        from orchestrator.cli.main import main

        code = main()
    except KeyboardInterrupt:  # before or after all that could be said of it
        code = interrupts.SIGINT_EXIT
    interrupts.ends()
    _restore(terminal)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class _NoPlugins(ModuleType):
    """Stands in for the loader, and becomes it for a version of Pydantic that wants something else of it."""

    @staticmethod
    def get_plugins() -> tuple[()]:
        return ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _open_closed() -> None:
    """Give descriptors 0 to 2 back, if whoever started this has closed one (``fcctl run first >&-``): else the next
    file or socket to be opened takes its place, and gets what is printed."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


class _Lossy(io.FileIO):
    """Loses what it cannot write."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _lossy_stderr() -> None:
    """Standard error on a full disk, or that nobody reads any more, ends no command: it may be about to stop a
    machine."""
    before = sys.stderr
    raw = io.BufferedWriter(_Lossy(before.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(raw, before.encoding, before.errors, line_buffering=True)


def _terminal() -> list[Any] | None:
    try:
        return termios.tcgetattr(0)
    except (termios.error, OSError):  # standard input is no terminal, or closed
        return None


def _restore(terminal: list[Any] | None) -> None:
    """Undo what a thread left behind: one that asks for a passphrase has the echo off while it waits."""
    with contextlib.suppress(termios.error, OSError):
        if terminal is not None and termios.tcgetattr(0) != terminal:
            termios.tcsetattr(0, termios.TCSANOW, terminal)


if __name__ == "__main__":
    entry()
