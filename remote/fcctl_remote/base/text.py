"""Text from a step, made safe to show: no escape sequence, no control character, valid UTF-8."""

from __future__ import annotations

import contextlib
import os
import re

from fcctl_remote.base.files import open_plain, size_of

#: CSI, OSC (ended by BEL or ST), other string sequences, and two-character escapes.
_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?"
#: Controls other than tab and newline, and the marks that reverse how a line reads.
_CONTROLS = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]"
#: A burst larger than this is shown by its end only.
BURST_BYTES = 16 * 1024


def sanitise(data: bytes) -> str:
    """``data`` as text for people: invalid bytes become U+FFFD, carriage returns newlines, the rest is dropped."""
    text = without_escapes(data.decode("utf-8", "replace"))
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(_CONTROLS, "", text)


def without_escapes(text: str) -> str:
    """``text`` without colours, moves of the cursor and other escape sequences."""
    return re.sub(_ESCAPES, "", text)


def one_line(text: str, longest: int = 500) -> str:
    """``text`` on one line of at most ``longest`` characters."""
    flat = " ".join(sanitise(text.encode("utf-8", "replace")).split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def kernel_name(demangled: str) -> str:
    """One spelling of a name for all demanglers: ``tile<64, true, 4>(anonymous namespace)`` is ``tile<(int)64, (bool)1,
    (unsigned int)4>`` and ``<unnamed>`` by ncu and CUDA's cu++filt, and ``4u`` by c++filt."""
    name = demangled.replace("<unnamed>", "(anonymous namespace)").replace("> >", ">>").replace("> >", ">>")
    name = re.sub(r"\(bool\)([01])\b", lambda found: "true" if found[1] == "1" else "false", name)
    name = re.sub(r"\((?:unsigned |signed )?(?:int|long long|long|short|char)\)(?=-?[0-9])", "", name)
    return re.sub(r"(?<=[<, ])(-?[0-9]+)(?:ull?|u|ll?)\b", r"\1", name)


def tail(path: str, most_bytes: int) -> bytes:
    """The last ``most_bytes`` of a file, starting at a line's beginning if there is one; empty if it is absent, or
    something else."""
    try:
        with os.fdopen(open_plain(path), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            start = max(0, size - most_bytes)
            stream.seek(start)
            data = stream.read(most_bytes)
    except OSError:
        return b""
    if start:
        cut = data.find(b"\n")
        if 0 <= cut < len(data) - 1:
            data = data[cut + 1 :]
    return data


def new_lines(path: str, offset: int, most_bytes: int) -> tuple[list[bytes], int]:
    """The whole lines after byte ``offset``, of at most ``most_bytes``, and the offset that follows them.

    A longer line, which only something else can have written, comes in pieces: it must not hold up the rest."""
    try:
        with os.fdopen(open_plain(path), "rb") as stream:
            stream.seek(offset)
            data = stream.read(most_bytes)
    except OSError:
        return [], offset
    end = data.rfind(b"\n") + 1
    if not end and len(data) == most_bytes:
        end = len(data)
    return data[:end].split(b"\n"), offset + end


#: What make prints behind an error that a compiler has printed.
_OF_MAKE = re.compile(
    r"g?make(\[\d+\])?: ((Entering|Leaving) directory |Target '.*' not remade because of "
    r"|\*\*\* (\[.*\] Error \d|Waiting for unfinished jobs))"
)


def last_lines(data: bytes, lines: int = 6, width: int = 300) -> str:
    """The :func:`ending` of ``data``, sanitised, each line cut at ``width`` characters from its end."""
    texts = [line.strip() for line in sanitise(data).split("\n") if line.strip()]
    return "\n".join(line if len(line) <= width else "…" + line[-width:] for line in ending(texts, lines))


def ending(texts: list[str], lines: int) -> list[str]:
    """The last of ``texts``. Those that make adds to an error are left out, unless there are no others. If none names
    an error, as where others still compiled after it, the first one that does comes before the last."""
    shown = [line for line in texts if not _OF_MAKE.match(line)] or texts
    last = shown[-lines:]
    if not any(re.search(r"error|fatal", line, re.IGNORECASE) for line in last):
        last = [line for line in shown if re.search(r"\b([Ee]rror|fatal)\b.*:", line)][:1] + last
    return last


class TerminalMirror:
    """What a person sees who attaches to the run's window: the steps, and the running step's log.

    Writes to the terminal, never blocks, and stops for good once the terminal is closed."""

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
                self._offset = size_of(log)

    def show_news(self) -> None:
        """Show what the log gained since the last call, or the end of it if that is much."""
        if self._fd is None or self._log is None:
            return
        try:
            size = size_of(self._log)
            if size == self._offset:
                return
            start = max(self._offset, size - BURST_BYTES) if size > self._offset else size
            with os.fdopen(open_plain(self._log), "rb") as stream:
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
