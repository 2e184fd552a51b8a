"""``events.jsonl``: the append-only story of a run."""

import json
import os
import time
from typing import Any, Dict, List, Optional, Tuple

from fcctl_remote import wire
from fcctl_remote.base import files


class EventLog:
    """Appends events; one process at a time writes, the one that holds the supervisor's lock."""

    def __init__(self, path: str, reserve: files.Reserve) -> None:
        self.path = path
        self.reserve = reserve
        self.seq = self._mend()

    def _mend(self) -> int:
        """Count the lines, and end one that a killed writer left open."""
        try:
            with open(self.path, "rb") as stream:
                lines, last = 0, b"\n"
                while True:
                    block = stream.read(65536)
                    if not block:
                        break
                    lines, last = lines + block.count(b"\n"), block[-1:]
        except FileNotFoundError:
            return 0
        if last != b"\n":
            files.append_line(self.path, b"")
            lines += 1
        return lines

    def append(self, kind: str, data: Dict[str, Any], durable: bool = False, spare_reserve: bool = False) -> wire.Event:
        """Write one event. A full disk costs the run's reserve, unless ``spare_reserve``.

        Raises:
            DiskFull: not even the reserve made room.
        """
        event = wire.Event(self.seq, time.time(), kind, data)
        line = files.to_json(wire.encode(event))
        try:
            files.append_line(self.path, line)
        except OSError as error:
            if not files.is_disk_full(error):
                raise
            if spare_reserve or not self.reserve.spend():
                raise files.DiskFull(str(error)) from error
            self._again(line)
        self.seq += 1
        if durable:
            self._sync()
        return event

    def _again(self, line: bytes) -> None:
        try:
            files.append_line(self.path, line)
        except OSError as error:
            if files.is_disk_full(error):
                raise files.DiskFull(str(error)) from error
            raise

    def _sync(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        files.sync_folder(os.path.dirname(self.path))


def read(path: str, offset: int, most_bytes: int) -> Tuple[List[wire.Event], int]:
    """The whole events after byte ``offset``, and the offset that follows them."""
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            data = stream.read(most_bytes)
    except OSError:
        return [], offset
    end = data.rfind(b"\n") + 1
    if not end and len(data) == most_bytes:
        end = len(data)  # no event is as long: what something else wrote here must not hold up the rest
    found = []
    for line in data[:end].split(b"\n"):
        event = _parse(line)
        if event is not None:
            found.append(event)
    return found, offset + end


def _parse(line: bytes) -> Optional[wire.Event]:
    if not line:
        return None
    try:
        value: Dict[str, Any] = json.loads(line)
        return wire.decode(wire.Event, value)
    except ValueError:
        return None  # the half line of a killed writer
