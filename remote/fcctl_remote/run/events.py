"""``events.jsonl``: the append-only log of a run."""

from __future__ import annotations

import os
import time

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.text import new_lines, tail
from fcctl_remote.record import Any

#: No event is as long, bytes.
MAX_LINE_BYTES = 512 * 1024


class EventLog:
    """Appends events; one process at a time writes, the one that holds the supervisor's lock."""

    def __init__(self, path: str, reserve: files.DiskReserve) -> None:
        self.path = path
        self.reserve = reserve
        self.seq = self._mend()

    def _mend(self) -> int:
        """The number of the next event. A half line of a killed writer is ended, and counts."""
        data = tail(self.path, MAX_LINE_BYTES)
        if data and not data.endswith(b"\n"):
            files.append_line(self.path, b"")
        lines = data.split(b"\n")
        bad = 0
        for line in reversed(lines if lines[-1] else lines[:-1]):
            event = _parse(line)
            if event is not None:
                return event.seq + 1 + bad
            bad += 1
        return bad

    def append(self, kind: str, data: dict[str, Any], durable: bool = False, spare_reserve: bool = False) -> wire.Event:
        """Write one event. A full disk costs the run's reserve, unless ``spare_reserve``. Raises DiskFull: not even the
        reserve made room."""
        event = wire.Event(self.seq, time.time(), kind, data)
        line = files.to_json(wire.encode(event))
        self.reserve.write(lambda: files.append_line(self.path, line), spare=spare_reserve)
        self.seq += 1
        if durable:
            self._sync()
        return event

    def _sync(self) -> None:
        with files.closing(files.open_plain(self.path)) as fd:
            files.flush(fd)
        files.sync_folder(os.path.dirname(self.path))


def read(path: str, offset: int, most_bytes: int) -> tuple[list[wire.Event], int]:
    """The whole events after byte ``offset``, and the offset that follows them."""
    lines, offset = new_lines(path, offset, most_bytes)
    return [event for event in map(_parse, lines) if event is not None], offset


def _parse(line: bytes) -> wire.Event | None:
    if not line:
        return None
    try:
        return wire.decode(wire.Event, files.parse_json(line))
    except ValueError:
        return None  # the half line of a killed writer
