"""Frames over a pair of descriptors, as :mod:`fcctl_remote.wire` describes them."""

from __future__ import annotations

import json
import os
import select
import threading
import time

from fcctl_remote.base import files
from fcctl_remote.record import Any
from fcctl_remote.wire import MAX_FRAME_BYTES


class BadFrame(ValueError):
    """The peer does not speak the protocol; nothing after this can be trusted."""


class FrameReader:
    """Reads requests, and can tell whether the next one is there already."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._ahead: dict[str, Any] | None = None
        self.ended = False

    def next(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame and its blob; None at the end of the stream.

        Raises:
            BadFrame: too long, no JSON object, or cut off.
        """
        while self._ahead is None and not self._parse_line():
            if not self._fill():
                if self._buffer:
                    raise BadFrame("the stream ended within a frame")
                return None
        frame, self._ahead = self._ahead, None
        assert frame is not None  # noqa: S101 - the loop above ends no other way
        return frame, self._blob(frame)

    def peek(self, timeout: float) -> dict[str, Any] | None:
        """Wait up to ``timeout`` seconds for the line of the next frame; None if there is none yet."""
        if self._ahead is None and not self._parse_line():
            ready, _, _ = select.select([self._fd], [], [], timeout)
            if ready:
                self._fill()
                self._parse_line()
        elif timeout:
            time.sleep(timeout)
        return self._ahead

    def _blob(self, frame: dict[str, Any]) -> bytes:
        size = frame.get("blob", 0)
        if not isinstance(size, int) or not 0 <= size <= MAX_FRAME_BYTES:
            raise BadFrame("a blob of %r bytes" % (size,))
        while len(self._buffer) < size:
            if not self._fill(size - len(self._buffer)):
                raise BadFrame("the stream ended within a blob")
        blob = bytes(self._buffer[:size])
        del self._buffer[:size]
        return blob

    def _parse_line(self) -> bool:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_FRAME_BYTES:
                raise BadFrame("a frame longer than %d bytes" % MAX_FRAME_BYTES)
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            frame = json.loads(line)
        except ValueError:
            raise BadFrame("a frame that is not JSON") from None
        if not isinstance(frame, dict):
            raise BadFrame("a frame that is not an object")
        self._ahead = frame
        return True

    def _fill(self, least: int = 65536) -> bool:
        data = os.read(self._fd, min(max(least, 65536), 1024 * 1024))
        self._buffer += data
        self.ended = self.ended or not data
        return bool(data)


class FrameWriter:
    """Writes frames whole, also when two threads do."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def line(self, text: str) -> None:
        with self._lock:
            files.write_all(self._fd, text.encode("ascii") + b"\n")

    def send(self, frame: dict[str, Any], blob: bytes = b"") -> None:
        """Raises: BrokenPipeError, when the peer is gone; BadFrame, when the frame is too long to be read."""
        if blob:
            frame = {**frame, "blob": len(blob)}
        line = files.to_json(frame)
        if len(line) > MAX_FRAME_BYTES:
            raise BadFrame("the answer has %d bytes, more than a frame may" % len(line))
        with self._lock:
            files.write_all(self._fd, line + b"\n")
            if blob:
                files.write_all(self._fd, blob)
