"""What a person sees who attaches to the run's window: the steps, and the running step's log, made safe to show."""

from __future__ import annotations

import contextlib
import os

from fcctl_remote.base import files
from fcctl_remote.base.text import sanitise

#: A burst larger than this is shown by its end only.
BURST_BYTES = 16 * 1024


class TerminalMirror:
    """Writes to the terminal, never blocks, and stops for good once the terminal is closed."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._log: str | None = None
        self._offset = 0
        try:
            os.set_blocking(fd, False)
        except OSError:
            self._fd = None

    def note(self, text: str) -> None:
        self._write("\x1b[1m>>> %s\x1b[0m\r\n" % sanitise(text.encode("utf-8", "replace")).replace("\n", " "))

    def say(self, line: str) -> None:
        self._write(line + "\r\n")

    def follow(self, log: str | None) -> None:
        """From now on show what is added to ``log``."""
        self._log = log
        self._offset = 0
        if log is not None:
            with contextlib.suppress(OSError):
                self._offset = files.size_of(log)

    def show_news(self) -> None:
        """Show what the log gained since the last call, or the end of it if that is much."""
        if self._fd is None or self._log is None:
            return
        try:
            size = files.size_of(self._log)
            if size == self._offset:
                return
            start = max(self._offset, size - BURST_BYTES) if size > self._offset else size
            with os.fdopen(files.open_plain(self._log), "rb") as stream:
                stream.seek(start)
                data = stream.read(size - start)
        except OSError:
            return
        if start > self._offset:
            self.note("%d bytes of the log are not shown" % (start - self._offset))
        self._offset = size
        self._write(sanitise(data).replace("\n", "\r\n"))

    def _write(self, text: str) -> None:
        if self._fd is None:
            return
        try:
            os.write(self._fd, text.encode("utf-8", "replace"))
        except BlockingIOError:
            pass  # a terminal nobody reads: its viewer misses a few lines, the log has them
        except OSError:
            self._fd = None
