"""A tar read strictly: plain files in a stream, nothing else. For what strangers made.

Python's own reader follows what a header says about further headers, of any size, before anybody can look at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from orchestrator.results.archive.manifest import BadArchive

BLOCK = 512
MAX_EXTENDED = 64 * 1024
CHUNK = 1024 * 1024
_SIZE = re.compile(r"[0-9]{1,18}")
#: A number of a header as tar programs write it: Python's ``int`` also takes signs, underscores and prefixes.
_OCTAL = re.compile(rb"[0-7]{1,11}[ \0]+")


class Stream(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class TarReader:
    """Iterate over (name, size); read each member's content with :meth:`chunks` before the next.

    Raises, from every method:
        BadArchive: anything that is not a plain file with an honest header.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._left = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        extended: dict[str, str] | None = None
        while True:
            for _ in self.chunks():
                pass
            header = self._exactly(BLOCK)
            if header == bytes(BLOCK):
                return
            kind, name, size = _parse(header)
            if kind == b"x":
                if size > MAX_EXTENDED:
                    raise BadArchive("an extended header is too long")
                if extended is not None:
                    raise BadArchive("it has extended headers one after another")
                extended = _extended(self._padded(size))
                continue
            if kind not in (b"0", b"\0"):
                raise BadArchive(f"{name!r:.200} is no plain file")
            name = (extended or {}).get("path", name)
            size = int((extended or {}).get("size", size))
            extended = None
            self._left = size
            self._padding = -size % BLOCK
            yield name, size

    _padding = 0

    def chunks(self) -> Iterator[bytes]:
        """The content of the present member, in pieces."""
        while self._left:
            piece = self._stream.read(min(CHUNK, self._left))
            if not piece:
                raise BadArchive("it ends in the middle of a file")
            self._left -= len(piece)
            yield piece
        if self._padding:
            self._exactly(self._padding)
            self._padding = 0

    def _padded(self, size: int) -> bytes:
        content = self._exactly(size)
        self._exactly(-size % BLOCK)
        return content

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._stream.read(size - len(found))
            if not piece:
                raise BadArchive("it ends too early")
            found += piece
        return bytes(found)


def _parse(header: bytes) -> tuple[bytes, str, int]:
    """Kind, name and size from a ustar header whose checksum is right."""
    try:
        told, size = _number(header[148:156]), _number(header[124:136])
        name = header[:100].split(b"\0", 1)[0].decode()
        prefix = header[345:500].split(b"\0", 1)[0].decode() if header[257:262] == b"ustar" else ""
    except ValueError:
        raise BadArchive("a header is damaged") from None
    if told != sum(header[:148]) + 8 * 32 + sum(header[156:]):
        raise BadArchive("a header is damaged")
    return header[156:157], f"{prefix}/{name}" if prefix else name, size


def _number(field: bytes) -> int:
    if not _OCTAL.fullmatch(field):
        raise ValueError(f"{field!r} is no octal number")
    return int(field.rstrip(b" \0"), 8)


def _extended(content: bytes) -> dict[str, str]:
    """The records of a pax header that change what a file is: its name and its size."""
    found: dict[str, str] = {}
    while content:
        length = content.partition(b" ")[0]
        if len(length) > 9 or not length.isdigit() or not len(length) + 1 < int(length) <= len(content):
            raise BadArchive("an extended header is damaged")
        record, content = content[len(length) + 1 : int(length)], content[int(length) :]
        key, _, value = record.rstrip(b"\n").partition(b"=")
        try:
            if key in (b"path", b"size"):
                if key.decode() in found:
                    raise BadArchive("an extended header is damaged")
                found[key.decode()] = value.decode()
        except UnicodeDecodeError:
            raise BadArchive("a name is no UTF-8") from None
    if not _SIZE.fullmatch(found.get("size", "0")):
        raise BadArchive("an extended header is damaged")
    return found
